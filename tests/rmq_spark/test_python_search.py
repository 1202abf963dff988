"""`find` and `trace` of Python: lists of keys, a text in the body, and errors that name the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

import rmq_spark
from rmq_spark import charts
from rmq_spark.store import LogCluster, LogStore, Messages
from store_format import MessageStore
from store_format.errors import CorruptStoreError, OptionError
from store_format.search.look_up import Found
from tests.support.fixtures import Golden

COLUMNS = ("topic", "queueId", "queueOffset")


@pytest.fixture
def store(golden: Golden) -> LogStore:
    opened = rmq_spark.open(str(golden("retry-dlq-5.5.0")))
    assert isinstance(opened, LogStore)
    return opened


def test_several_keys_are_the_messages_of_each(store: LogStore) -> None:
    each = [store.find(key=key, columns=COLUMNS).table for key in ("id-9", "grp-2", "id-10")]
    places = {tuple(row.items()) for table in each for row in table.to_pylist()}
    for keys in (["id-9", "grp-2", "id-10"], ("id-10", "id-9", "grp-2", "id-9")):
        found = store.find(key=keys, columns=COLUMNS)
        assert {tuple(row.items()) for row in found.table.to_pylist()} == places
        assert found.table.num_rows == len(places) < sum(table.num_rows for table in each)
        offsets = found.table["physicalOffset"].to_pylist()
        assert offsets == sorted(offsets)
        assert found.table.schema.names == [*COLUMNS, "physicalOffset"]
    assert store.find("id-9", columns=COLUMNS).table == each[0]
    one = store.find(key=["id-9"], columns=COLUMNS)
    assert (one.table, one.how) == (each[0], store.find(key="id-9").how)


def test_messages_take_several_keys_and_say_which_no_message_has(
    store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of a search in the same topics; a key is a word of KEYS or the UNIQ_KEY."""
    unique = store.find(key="id-10", topic="Jobs").table["msgId"][0].as_py()
    keys = ["id-9", unique, "id-9"]
    wanted = store.find(key=keys, topic="Jobs", columns=COLUMNS).table.select(COLUMNS).to_pylist()
    found = store.messages("Jobs", columns=COLUMNS, key=keys)
    assert found.schema.names == found.to_table().schema.names == [*COLUMNS]
    assert sorted(map(str, found.to_table().to_pylist())) == sorted(map(str, wanted))
    assert len(wanted) == 2
    assert not caplog.messages
    assert found.head(1).num_rows == 1
    assert store.messages("Jobs", key=["id-9", "nobody"]).to_table().num_rows == 1
    assert caplog.messages == ["messages: no message that matches has the key 'nobody'"]


def test_a_text_in_the_body(store: LogStore) -> None:
    bodies = store.messages("Jobs", columns=["body"]).to_table()["body"].to_pylist()
    wanted = [body for body in bodies if b"ledger" in body]
    assert sorted(store.find(topic="Jobs", body="ledger").table["body"].to_pylist()) == sorted(wanted) != []


def test_the_lives_of_the_messages_with_a_key(store: LogStore) -> None:
    bare = MessageStore.open(store.path)
    ids = list(dict.fromkeys(store.find(key="id-9").table["msgId"].to_pylist()))
    lives = store.trace(key="id-9")
    assert lives.schema.names[:2] == ["key", "msgId"]
    assert list(dict.fromkeys(lives["msgId"].to_pylist())) == ids
    assert set(lives["key"].to_pylist()) == {"id-9"}
    of_first = [row for row in lives.to_pylist() if row["msgId"] == ids[0]]
    expected = bare.trace(ids[0]).to_pylist()
    assert [{name: row[name] for name in expected[0]} for row in of_first] == expected
    assert store.trace(ids[0]) == bare.trace(ids[0])
    nobody = store.trace(key="nobody")
    assert (nobody.num_rows, nobody.schema) == (0, lives.schema)
    both = store.trace(key=["id-9", "id-10"])
    assert both.num_rows == lives.num_rows + store.trace(key="id-10").num_rows


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda store: store.trace("id-9"), "have it as a key; write trace(key='id-9')"),
        (lambda store: store.trace(), "trace: expected a message id, or key=…, and not both"),
        (lambda store: store.trace(5), "message_id: expected a text, found 5"),
        (lambda store: store.find(message_id=5), "message_id: expected a text, found 5"),
        (lambda store: store.find(key=5), "key: expected a text or a list of texts, found 5"),
        (lambda store: store.find(key=[]), "key: expected a key, found an empty list"),
        (lambda store: store.find(key=""), "the key is empty; give a word of KEYS or a UNIQ_KEY"),
        (lambda store: store.find(key=["id-9", ""]), "the key is empty; give a word of KEYS or a UNIQ_KEY"),
        (lambda store: store.messages("Jobs", key=""), "the key is empty; give a word of KEYS or a UNIQ_KEY"),
        (
            lambda store: store.messages("Jobs", key=["", "a"]),
            "the key is empty; give a word of KEYS or a UNIQ_KEY",
        ),
        (lambda store: store.find(body=""), "body: the text is empty"),
        (lambda store: store.find(tags=[]), "tags: expected tags, found an empty list"),
        (lambda store: store.messages("Jobs", tags=[]), "tags: expected tags, found an empty list"),
        (lambda store: store.find(tags="TagA"), "expected a list of tags, found 'TagA'; write tags=['TagA']"),
        (lambda store: store.find(tags="TagA || Aa"), "write tags=['TagA', 'Aa']"),
        (lambda store: store.messages("Jobs", tags="TagA"), "write tags=['TagA']"),
        (lambda store: store.messages("Jobs", key=["a", 5]), "expected a text or a list of texts"),
        (lambda store: store.messages("Jobs", key=[]), "key: expected a key, found an empty list"),
        (lambda store: store.find(topic="jobs"), "no topic is named 'jobs'; did you mean Jobs?"),
        (lambda store: store.find(bodi="x"), "find: unknown argument 'bodi'; did you mean body?"),
        (lambda store: store.find(body=b"x"), "body: expected a text, found b'x'"),
        (lambda store: store.messages(5), "topic: expected a topic, a pattern or a list of them, found 5"),
        (lambda store: store.messages(["Jobs", "jobs"]), "no topic is named 'jobs'; did you mean Jobs?"),
        (lambda store: store.messages("Jobs", tags="*"), "found '*'; for all messages, leave tags out"),
        (lambda store: store.find(tags=["*"]), "for all messages, leave tags out"),
        (lambda store: store.find(tags=[1]), "expected a list of texts, found 1 in it"),
        (lambda store: store.messages("Jobs", columns="tags, keys"), "write columns=['tags', 'keys']"),
        (lambda store: store.find(columns="body"), "write columns=['body']"),
        (
            lambda store: store.messages("Jobs", since="2026-11-22", until=date(2026, 11, 21)),
            "since must be before until, found since='2026-11-22' and until=datetime.date(2026, 11, 21)",
        ),
        (lambda store: store.find(since=5, until=5), "since must be before until"),
        (lambda store: store.messages("Jobs", columns="body"), "write columns=['body']"),
        (lambda store: store.find(topic=["Jobs", "jobs"]), "no topic is named 'jobs'; did you mean Jobs?"),
        (lambda store: store.find(topic="Job?x*"), "no topic is named 'Job?x*'"),
        (lambda store: store.find(topic=[]), "topic: expected a topic, found an empty list"),
        (lambda store: store.find(topic=[1]), "topic: expected a topic, a pattern or a list of them"),
        (lambda store: store.find(tags=["TagA || Aa"]), "write tags=['TagA', 'Aa']"),
        (lambda store: store.messages("Jobs", tags=["TagA || Aa"]), "write tags=['TagA', 'Aa']"),
        (lambda store: store.messages("Jobs", since=20261129), "in ms; a date is 2026-11-29"),
        (lambda store: store.find(until=1796000000), "in milliseconds: 1796000000000"),
        (lambda store: store.find(until=202611290915), "a date is 2026-11-29T09:15:00Z"),
        (lambda store: store.messages("Jobs", since=1796000000123456789), "in milliseconds: 1796000000123"),
        (lambda store: store.messages("Jobs", since=2026), "a date is 2026-01-01"),
        (
            lambda store: store.view("lag", now_ms=1796000000),
            "now_ms: expected ms since 1970, found 1796000000;",
        ),
        (lambda store: store.view("lag", now_ms=2026), "a date is 2026-01-01"),
        (lambda store: charts.delayed(store, now_ms=1796000000), "in milliseconds: 1796000000000"),
        (lambda store: store.find(since=True), "since: expected a text, ms since 1970, a date"),
        (lambda store: store.messages("Jobs", since=1.5), "since: expected a text, ms since 1970, a date"),
        (
            lambda store: charts.lag(store, group="CG_fial"),
            "'CG_fial'; did you mean CG_fail?",
        ),
    ],
)
def test_an_argument_that_is_wrong(store: LogStore, ask: Callable[[LogStore], object], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        ask(store)
    assert said in str(raised.value)


def test_a_condition_that_names_a_column_is_a_warning(
    store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.messages("Jobs", where="tags = 'TagA'").to_table().num_rows == 0
    said = "where: tags is a column, and a condition names properties of messages: write TAGS"
    assert caplog.messages == [said]
    assert store.messages("Jobs", where="TAGS = 'TagA'").to_table().num_rows > 0
    assert len(caplog.messages) == 1


def test_a_date_is_its_first_moment_in_utc(store: LogStore) -> None:
    day = date(2026, 11, 21)
    counts = [
        store.messages("Jobs", since=since, until=until).to_table().num_rows
        for since, until in ((day, day + timedelta(days=1)), ("2026-11-21", "2026-11-22"), (None, day))
    ]
    assert counts[0] == counts[1] > 0
    assert counts[2] == 0


def test_topics_are_names_patterns_or_a_list(store: LogStore) -> None:
    def topics(topic: object) -> set[str]:
        return set(store.find(topic=topic, columns=COLUMNS).table["topic"].to_pylist())  # type: ignore[arg-type] # as a list

    assert topics("Job*") == topics("Jobs") == {"Jobs"}
    assert topics("%RETRY%CG_f*") == {"%RETRY%CG_fail"}
    assert topics(["Job*", "%RETRY%CG_fail"]) == {"Jobs", "%RETRY%CG_fail"}


def test_what_no_message_has_of_several_is_a_warning(
    store: LogStore, golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.find(key=["id-9", "nobody"]).table == store.find(key="id-9").table
    found = store.find(topic="Jobs", tags=["TagA", "Taga"], columns=["keys"])
    assert "tags" not in found.table.schema.names
    assert found.table.num_rows == store.find(topic="Jobs", tags=["TagA"]).table.num_rows > 0
    assert store.trace("nobody").num_rows == store.trace(key="nobody").num_rows == 0
    cluster = rmq_spark.open(str(golden("cluster-5.5.0")))
    keys = cluster.messages(columns=["keys"]).to_table()["keys"].combine_chunks().flatten().to_pylist()
    there = {tuple(map(bool, _counts(cluster, key))): key for key in sorted(set(keys))[:50]}
    one_each = [there[True, False], there[False, True]]
    missed = "find: no message that matches has the key"
    cluster.find([*one_each, "nobody"])
    assert [each for each in caplog.messages if not each.startswith(f"{missed} 'a")] == [
        "find: no message that matches has the key 'nobody'",
        "find: no message of the chosen topics has the tag Taga; tags are case-sensitive, did you mean TagA?",
        "trace: no message has the id or key 'nobody'",
        "trace: no message has the key 'nobody'",
        "find: no message that matches has the key 'nobody'",
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"where": "amount > 100"}, "no message matches; no message has a property amount, they have "),
        (
            {"where": "uniq_key = 'x'"},
            "no message matches; no message has a property uniq_key, did you mean ",
        ),
        ({"tags": ["nope"]}, "no message matches; the tags are "),
        ({"tags": ["taga"]}, "no message matches; tags are case-sensitive, did you mean TagA?"),
        ({"tags": ["TagA", "nope"]}, "no message of the chosen topics has the tag nope; the tags are "),
        ({"tags": ["TagA,Aa"]}, "no message matches; several tags are tags=['TagA', 'Aa']"),
    ],
)
def test_what_no_message_has_is_said_by_messages_and_find(
    store: LogStore, caplog: pytest.LogCaptureFixture, asked: dict[str, object], said: str
) -> None:
    read = store.messages("Jobs", **asked)  # type: ignore[arg-type] # arguments by name
    assert caplog.messages == []
    assert read.to_table().num_rows == store.find(topic="Jobs", **asked).table.num_rows  # type: ignore[arg-type] # too
    assert [message.partition(": ")[0] for message in caplog.messages] == ["messages", "find"]
    assert all(message.partition(": ")[2].startswith(said) for message in caplog.messages)


def test_a_key_that_no_message_has(store: LogStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.messages("Jobs", key="ID-9").to_table().num_rows == 0
    assert store.find("ID-9").table.num_rows == 0
    assert store.find("id-9").table.num_rows > 0
    assert caplog.messages == [
        "messages: no message matches; keys are case-sensitive, did you mean id-9?",
        "find: no message that matches has the key 'ID-9'; keys are case-sensitive, did you mean id-9?",
    ]


def test_a_range_of_times_without_messages_names_the_end_of_the_topics(
    store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    newest = max(store.messages("Jobs", columns=["storeTimestamp"]).to_table()["storeTimestamp"].to_pylist())
    assert store.messages("Jobs", since=newest + timedelta(seconds=1)).to_table().num_rows == 0
    text = newest.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert caplog.messages == [
        f"messages: no message matches; the newest message of the chosen topics was stored at {text}"
    ]


def test_damaged_messages_are_left_out_on_request(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    place = MessageStore.open(str(root)).queue("Orders", 0).read(0, 1, columns=["physicalOffset"])
    (offset,) = (batch["physicalOffset"][0].as_py() for batch in place)
    log = sorted((root / "commitlog").iterdir())[0]
    with log.open("r+b") as file:
        file.seek(offset + 8)
        file.write(b"\xff" * 30)
    opened = rmq_spark.open(str(root))
    with pytest.raises(CorruptStoreError) as caught:
        opened.messages("Orders").to_table()
    assert caught.value.__notes__ == [
        "messages(…, skip_damage=True) leaves damaged messages out; store.diagnose() lists the damage"
    ]
    whole = rmq_spark.open(str(golden("basic-5.5.0"))).messages("Orders").to_table().num_rows
    assert opened.messages("Orders", skip_damage=True).to_table().num_rows == whole - 1
    assert any(message.startswith("1 malformed message dropped") for message in caplog.messages)


def test_a_list_of_topics(store: LogStore) -> None:
    def places(rows: Messages | Found) -> list[dict[str, object]]:
        table = rows.table if isinstance(rows, Found) else rows.to_table()
        return sorted(table.select(COLUMNS).to_pylist(), key=lambda row: tuple(row.values()))

    both = ["Job*", "%RETRY%CG_fail"]
    assert places(store.messages(both)) == places(store.find(topic=both)) != []
    everything = places(store.messages("Jobs"))
    assert places(store.messages("Jobs", tags=None)) == places(store.find(topic="Jobs")) == everything
    assert "%RETRY%CG_fail" in repr(store.messages(both))


def _counts(cluster: LogStore | LogCluster, key: str) -> list[int]:
    return [each.find(key=key).table.num_rows for each in cluster.stores]


def test_a_data_frame_is_made_by_to_pandas(store: LogStore) -> None:
    messages = store.messages("Jobs", columns=["keys", "tags"])
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"write messages.to_pandas\(\)"):
        pandas.DataFrame(messages)
    assert messages.to_pandas().shape == (messages.to_table().num_rows, 2)
    found = store.find("id-9", columns=["keys", "tags"])
    assert found.to_pandas().equals(found.table.to_pandas())
    assert len(found.to_pandas()) == found.table.num_rows > 0


def test_a_topic_of_one_store_of_a_cluster(golden: Golden) -> None:
    cluster = rmq_spark.open(str(golden("cluster-5.5.0")))
    assert isinstance(cluster, LogCluster)
    of_some = [
        name for name in cluster.topics() if any(name not in store.topics() for store in cluster.stores)
    ]
    for name in of_some[:3]:
        assert set(cluster.find(topic=name)) == {store.broker_name for store in cluster.stores}
    with pytest.raises(OptionError, match="no topic is named 'Nothing'"):
        cluster.find(topic="Nothing")
