"""`rmq_spark.open`: messages by topic, time, tag, key and condition, of a store and of a cluster."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import rmq_spark
from rmq_spark.consume.sql92 import parse_sql92
from rmq_spark.store import LogCluster, LogStore
from store_format import MessageStore
from store_format.errors import OptionError, StoreNotFoundError
from store_format.names import is_system_topic
from tests.support.fixtures import Golden

COLUMNS = ["topic", "queueId", "queueOffset", "storeTimestampMs"]


@pytest.fixture
def store(golden: Golden) -> LogStore:
    opened = rmq_spark.open(str(golden("basic-5.5.0")))
    assert isinstance(opened, LogStore)
    return opened


def test_a_path_may_begin_at_home_or_be_an_object(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden("basic-5.5.0")
    monkeypatch.setenv("HOME", str(root.parent))
    for path in (f"~/{root.name}", root):
        opened = rmq_spark.open(path)
        assert isinstance(opened, LogStore)
        assert opened.path == str(root)


def _rows(messages: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in messages.to_pylist())


def _expected(store: MessageStore, topic: str) -> list[tuple[object, ...]]:
    tables = [queue.to_table(columns=COLUMNS) for queue in store.queues(topic.__eq__)]
    return _rows(pa.concat_tables(tables))


def test_the_messages_of_a_topic_are_those_of_its_queues(store: LogStore) -> None:
    messages = store.messages("Orders", columns=COLUMNS)
    rows = _rows(messages.to_table())
    assert rows == _expected(store, "Orders")
    assert len(rows) > 100
    assert sum(batch.num_rows for batch in messages) == len(rows)  # it can be read again
    assert messages.head(7).num_rows == 7
    assert messages.schema.names == COLUMNS


def test_a_table_of_a_queue(store: LogStore) -> None:
    queue = store.queue("Orders", 1)
    table = queue.to_table(2, 5, columns=["queueOffset", "body"])
    assert table["queueOffset"].to_pylist() == [2, 3, 4]
    assert table == pa.Table.from_batches(queue.read(2, 5, columns=["queueOffset", "body"]))
    assert queue.to_table(2, 2, columns=["keys"]).schema.names == ["keys"]


def test_without_a_topic_system_topics_are_left_out(store: LogStore) -> None:
    topics = set(store.messages(columns=["topic"]).to_table()["topic"].to_pylist())
    assert topics == {name for name in store.topics() if not is_system_topic(name)}
    assert "Orders" in set(store.messages("Ord*", columns=["topic"]).to_table()["topic"].to_pylist())


def test_since_and_until(store: LogStore) -> None:
    rows = _expected(store, "Orders")
    times = sorted(int(str(row[3])) for row in rows)
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    expected = [row for row in rows if low <= int(str(row[3])) < high]
    assert 0 < len(expected) < len(rows)
    moments = [datetime.fromtimestamp(ms / 1000, UTC) for ms in (low, high)]
    for since, until in (
        (low, high),
        (moments[0], moments[1]),
        (moments[0].isoformat(), moments[1].replace(tzinfo=None).isoformat()),  # without a zone: UTC
    ):
        messages = store.messages("Orders", columns=COLUMNS, since=since, until=until)
        assert _rows(messages.to_table()) == expected
    assert store.messages("Orders", since="-1h").to_table().num_rows == 0


def test_where_tags_and_key(store: LogStore) -> None:
    columns = [*COLUMNS, "tags", "keys", "properties"]
    everything = store.messages("Orders", columns=columns).to_table().to_pylist()
    tag = next(row["tags"] for row in everything if row["tags"])
    key = next(row["keys"][0] for row in everything if row["keys"])
    places = [name for name in COLUMNS if name != "topic"]

    def found(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
        return sorted(tuple(row[name] for name in places) for row in rows)

    by_tag = store.messages("Orders", columns=columns, tags=[tag]).to_table().to_pylist()
    assert found(by_tag) == found([row for row in everything if row["tags"] == tag])
    by_key = store.messages("Orders", columns=columns, key=key).to_table().to_pylist()
    assert found(by_key) == found([row for row in everything if key in (row["keys"] or [])])
    where = f"TAGS = '{tag}'"
    by_where = store.messages("Orders", columns=columns, where=where).to_table().to_pylist()
    assert found(by_where) == found(by_tag)
    assert 0 < len(by_where) < len(everything)


def test_find_takes_the_words_of_messages(store: LogStore) -> None:
    """By key, by id, by an offset message id and by queues: the same conditions, the same messages."""
    columns = (*COLUMNS, "msgId", "offsetMsgId", "keys", "properties")
    rows = store.messages("Orders", columns=columns).to_table().to_pylist()
    times = sorted(row["storeTimestampMs"] for row in rows)
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    iso = datetime.fromtimestamp(low / 1000, UTC).isoformat()
    found = store.find(topic="Orders", since=iso, until=high, where="region = 'eu-0'", columns=columns)
    expected = store.messages("Orders", columns=columns, since=low, until=high, where="region = 'eu-0'")
    assert found.table.num_rows == expected.to_table().num_rows > 0
    bare = MessageStore.open(store.path)
    moments = [datetime.fromtimestamp(ms / 1000, UTC) for ms in (low, high)]
    parsed = parse_sql92("region = 'eu-0'")
    same = bare.find(topic="Orders", since=moments[0], until=moments[1], where=parsed, columns=columns)
    assert same.table == found.table

    row = next(row for row in found.table.to_pylist() if row["keys"])
    for one in ({"key": row["keys"][0]}, {"message_id": row["msgId"]}, {"message_id": row["offsetMsgId"]}):
        for more, is_there in (
            ({}, True),
            ({"since": iso, "until": high, "where": "region = 'eu-0'"}, True),
            ({"where": "region = 'nowhere'"}, False),
            ({"until": row["storeTimestampMs"]}, False),
            ({"since": "-1h"}, False),
        ):
            ids = store.find(**one, **more, columns=["msgId"]).table["msgId"].to_pylist()
            assert (row["msgId"] in ids) == is_there, (one, more)
    with pytest.raises(OptionError, match=r"since: expected ms since 1970 or a datetime.*rmq_spark.open"):
        bare.find(since="-2h")  # type: ignore[arg-type] # wrong on purpose


def test_a_place_for_a_new_store_is_told_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "files").mkdir(parents=True)
    for name in ("empty", "missing"):
        with pytest.raises(StoreNotFoundError) as raised:
            rmq_spark.open(str(tmp_path / name))
        place = repr(str(tmp_path / name))
        new = f"MessageStore.create({place}, broker_name=…), then rmq_spark.open({place}).append(table)"
        assert str(raised.value).endswith(f"; a new store is made by store_format.{new}")
        made = MessageStore.create(str(tmp_path / name), broker_name="broker-a")
        opened = rmq_spark.open(made.path)
        assert isinstance(opened, LogStore)
        opened.append(pa.table({"topic": ["Orders"], "body": ["1"]}))
        assert rmq_spark.open(made.path).topics() == ["Orders"]  # the advice is right
    with pytest.raises(StoreNotFoundError) as raised:
        rmq_spark.open(str(tmp_path / "other"))
    assert "MessageStore.create" not in str(raised.value)


def test_a_store_with_its_commitlog_elsewhere(copy_of: Golden, tmp_path: Path) -> None:
    root = copy_of("basic-5.5.0")
    log = tmp_path / "disk2"
    (root / "commitlog").rename(log)
    opened = rmq_spark.open(str(root), commit_log_paths=[str(log)])
    assert opened.messages("Orders", columns=["tags"]).to_table().num_rows > 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": "Oders"}, "no topic is named 'Oders'; did you mean Orders?"),
        ({"columns": ["bdy"]}, "columns: unknown column 'bdy'; did you mean body?"),
        ({"since": "yesterday"}, "since: expected "),
        ({"where": "a ="}, ""),
    ],
)
def test_what_is_refused(store: LogStore, given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        store.messages(**given)  # type: ignore[arg-type] # wrong on purpose
    assert str(caught.value).startswith(message)


def test_reprs_are_short_and_harmless(store: LogStore) -> None:
    queue = store.queue("Orders", 0)
    assert repr(store) == f"<LogStore of {store.broker_name} at {store.path}>"
    assert repr(MessageStore.open(store.path)) == f"<MessageStore of {store.broker_name} at {store.path}>"
    assert repr(queue) == f"<Queue Orders-0 of {store.broker_name}: offsets 0 to {queue.max_offset:,}>"
    assert repr(store.messages("Orders")) == (
        f"<Messages of Orders in {store.broker_name}: iterate, head(), to_table()>"
    )
    card = store.messages("Orders", columns=["body", "keys"])._repr_html_()
    assert "<b>" not in card
    assert "<th>keys</th><th>body</th>" in card  # the wide column is the last


def test_a_cluster(golden: Golden) -> None:
    root = golden("cluster-5.5.0")
    cluster = rmq_spark.open(str(root))
    assert isinstance(cluster, LogCluster)
    names = [store.broker_name for store in cluster.stores]
    assert len(set(names)) == len(names) > 1
    assert repr(cluster) == f"<LogCluster at {root}: {', '.join(names)}>"
    topic = next(name for name in cluster.topics() if not is_system_topic(name))
    table = cluster.messages(topic, columns=[*COLUMNS, "brokerName"]).to_table()
    parts = [
        store.messages(topic, columns=COLUMNS).to_table()
        for store in cluster.stores
        if topic in store.topics()
    ]
    assert table.num_rows == sum(part.num_rows for part in parts) > 0
    assert set(cluster.view("queues")["brokerName"].to_pylist()) == set(names)
    assert len(cluster.queues()) == sum(len(store.queues()) for store in cluster.stores)
    assert cluster.store(names[0]).path == cluster.stores[0].path
    with pytest.raises(OptionError, match="no broker is named"):
        cluster.store("nobody")
    with pytest.raises(OptionError, match="no topic is named 'Nothing'"):
        cluster.messages("Nothing")


def test_two_copies_of_a_broker_are_refused(golden: Golden, tmp_path: Path) -> None:
    source = golden("basic-5.5.0")
    for name in ("master", "backup"):
        shutil.copytree(source, tmp_path / "both" / name)
    with pytest.raises(OptionError, match="both belong to broker"):
        rmq_spark.open(str(tmp_path / "both"))


def test_a_directory_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        rmq_spark.open(str(tmp_path))
