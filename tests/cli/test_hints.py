"""Hints of errors: each command that a hint names is one that the user meant, and that works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmq_spark import seen_names
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"


@pytest.mark.parametrize(
    "words",
    [
        ("head", "--topic", "Orders", "--queue", 2, "--offset", 100, "-n", 1),
        ("tail", "--topic", "Orders", "--queue", 2, "-n", 1),
        ("get", "Orders/2@100"),
        ("get", "Orders/2@last"),
        ("find", "id-2003"),
        ("trace", "--key", "id-2003"),
    ],
)
def test_what_a_hint_advises_works(rmqlog: Runner, golden: Golden, words: tuple[object, ...]) -> None:
    """answers.txt has the hints."""
    done = rmqlog(words[0], golden(STORE), *words[1:], "-o", "jsonl")
    assert (done.code, bool(done.out)) == (0, True)


def test_each_of_several_addresses_has_a_command(rmqlog: Runner, golden: Golden) -> None:
    store, places = golden(STORE), ("Orders/2@100", "Orders/1@3")
    said = rmqlog.fails(2, "trace", store, *places)
    for place in places:
        assert f"rmqlog trace {store} {place};" in said
        assert rmqlog("trace", store, place).code == 0


def test_a_queue_without_messages_is_a_queue(rmqlog: Runner, copy_of: Golden) -> None:
    store = copy_of(STORE)
    topics = store / "config/topics.json"
    every = json.loads(topics.read_text())
    every["topicConfigTable"]["Orders"]["writeQueueNums"] = 10
    topics.write_text(json.dumps(every))
    assert "no message matches" in rmqlog.fails(1, "find", store, "-t", "Orders", "-q", 9)
    assert rmqlog.fails(1, "find", store, "-t", "Orders", "-q", 10).startswith("Orders has no queue 10; ")
    assert rmqlog("find", store, "-t", "Orders", "-q", 0, "-q", 9).code == 0


@pytest.mark.parametrize("place", ["x.parquet", "config/x.jsonl", "new/x.csv"])
def test_export_does_not_write_into_a_store(
    rmqlog: Runner, golden: Golden, tmp_path: Path, place: str
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(STORE), store, ignore=shutil.ignore_patterns("timerwheel"))
    (store / "new").mkdir()
    linked = tmp_path / "link"
    linked.symlink_to(store)
    for source in (store, golden(STORE)):
        for out in (store / place, linked / place):
            said = rmqlog.fails(2, "export", source, out, "--topic", "Orders", "--force")
            assert f"{out} is inside the store {store}; give a place outside" in said
    assert not (store / place).exists()
    assert rmqlog("export", store, tmp_path / "x.jsonl", "--topic", "Orders").code == 0


def test_export_into_an_own_directory_of_the_log_is_refused(
    rmqlog: Runner, golden: Golden, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(STORE), store, ignore=shutil.ignore_patterns("timerwheel"))
    (store / "commitlog").rename(tmp_path / "log")
    said = rmqlog.fails(2, "export", store, tmp_path / "log/x.jsonl", "--commitlog", tmp_path / "log")
    assert "is inside the store" in said


# ---- a search that finds nothing, or not everything --------------------------------------------------------

RETRIED = "retry-dlq-5.5.0"


def _places(rmqlog: Runner, *words: object) -> list[list[object]]:
    lines = rmqlog(*words, "-o", "jsonl", "--columns", "topic,queueId,queueOffset").out.splitlines()
    return [list(json.loads(line).values()) for line in lines]


_KEY, _TAGS, _WHERE = ("--key", "k"), ("--tag", "TagA || Aa"), ("--where", "UNIQ_KEY IS NOT NULL")


@pytest.mark.parametrize(
    ("verb", "search"),
    [
        ("find", _TAGS),  # find looks keys up in all topics
        ("find", _WHERE),
        ("head", _KEY),
        ("head", _WHERE),
        ("tail", _TAGS),
        ("export", _TAGS),
    ],
)
def test_matches_in_system_topics_are_counted(
    rmqlog: Runner, golden: Golden, verb: str, search: tuple[str, str]
) -> None:
    more = ("-", "--format", "jsonl") if verb == "export" else ("-o", "jsonl")
    many = () if verb in ("export", "find") else ("-n", 1000)
    mine = rmqlog(verb, golden(RETRIED), *more, *search, *many)
    every = rmqlog(verb, golden(RETRIED), *more, *search, *many, "-a")
    hidden = every.out.count("\n") - mine.out.count("\n")
    assert hidden > 0
    assert f"rmqlog: {hidden} more in system topics: -a\n" in mine.err
    assert "system topics" not in every.err
    named = rmqlog(verb, golden(RETRIED), *more, *search, *many, "-t", "Jobs")
    assert "system topics" not in named.err


def test_a_search_that_its_limit_ended_says_so(rmqlog: Runner, golden: Golden) -> None:
    """What system topics have would look like the rest of the matches."""
    asked = ("find", golden(RETRIED), "--body", "order", "-o", "jsonl")
    count = rmqlog(*asked).out.count("\n")
    for limit in (1, count):
        done = rmqlog(*asked, "-n", limit)
        assert done.out.count("\n") == limit
        assert done.err.endswith("rmqlog: limit reached, more messages may match\n")
        assert "in system topics" not in done.err
    assert "limit reached" not in rmqlog(*asked, "-n", count + 1).err


@pytest.mark.parametrize(
    "words",
    [("find", ""), ("find", "id-9", ""), ("find", "-k", ""), ("find", "-k", "", "-k", "id-9"),
     ("export", "-", "--format", "csv", "-k", ""), ("export", "-", "--format", "csv", "-k", "id-9", "-k", ""),
     ("head", "-k", ""), ("trace", "-k", "")],
)  # fmt: skip
def test_an_empty_key_is_an_error(rmqlog: Runner, golden: Golden, words: tuple[str, ...]) -> None:
    said = rmqlog.fails(2, words[0], golden(RETRIED), *words[1:])
    assert "the key is empty; give a word of KEYS or a UNIQ_KEY" in said


@pytest.mark.parametrize("option", ["--since", "--until"])
@pytest.mark.parametrize("clock", ["06:53", "06:53:07"])
def test_an_unquoted_time_of_day_is_no_key(rmqlog: Runner, golden: Golden, option: str, clock: str) -> None:
    asked = ("find", golden(RETRIED), "-t", "Jobs", "id-9", option)
    said = rmqlog.fails(2, *asked, "2026-11-21", clock)
    assert f"{clock} is taken as a key; quote the time: {option} '2026-11-21 {clock}'" in said
    assert "is taken as a key" not in rmqlog(*asked, f"2026-11-21 {clock}").err
    assert "is taken as a key" not in rmqlog(*asked, "2026-11-21T00:00", clock).err


@pytest.mark.parametrize("more", [(), ("-i",), ("-E",), ("--body", "order")])
def test_an_empty_text_of_a_body_is_an_error(rmqlog: Runner, golden: Golden, more: tuple[str, ...]) -> None:
    assert "--body: the text is empty" in rmqlog.fails(2, "find", golden(RETRIED), "--body", "", *more)


@pytest.mark.parametrize("words", [("id-9",), ("-k", "id-9", "-k", "id-10")])
def test_a_search_for_keys_that_its_limit_cut_says_so(
    rmqlog: Runner, golden: Golden, words: tuple[str, ...]
) -> None:
    asked = ("find", golden(RETRIED), *words, "-o", "jsonl")
    count = rmqlog(*asked).out.count("\n")
    done = rmqlog(*asked, "-n", count - 1)
    assert done.out.count("\n") == count - 1 > 0
    assert "rmqlog: limit reached, more messages may match\n" in done.err
    assert "limit reached" not in rmqlog(*asked, "-n", count).err


def test_a_body_search_counts_them_too(rmqlog: Runner, golden: Golden) -> None:
    for more in ((), ("-i",), ("-E",), ("-E", "-i")):
        mine = rmqlog("find", golden(RETRIED), "--body", "order", *more, "-o", "jsonl")
        every = rmqlog("find", golden(RETRIED), "--body", "order", *more, "-o", "jsonl", "-a")
        hidden = every.out.count("\n") - mine.out.count("\n")
        assert f"rmqlog: {hidden} more in system topics: -a\n" in mine.err


def test_a_hint_reads_few_messages(rmqlog: Runner, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more would have to be read, the hint says what it knows."""
    monkeypatch.setattr(seen_names, "LOOKED_AT_MAX", 200)
    said = rmqlog("find", golden(STORE), "id-", "-t", "Orders").err
    assert "; keys are whole and case-sensitive: " in said
    assert " of the newest 200 messages begin" in said
    said = rmqlog("find", golden(STORE), "-t", "Orders", "--where", "tags = 'x'").err
    assert "; none of the newest 200 messages has a property tags, did you mean TAGS?" in said
    monkeypatch.setattr(seen_names, "LOOKED_AT_MAX", 3)
    said = rmqlog("head", golden(RETRIED), "--tag", "TagA").err
    assert said == "rmqlog: system topics were not searched; to search them, too: -a\n"


def test_no_hint_for_a_key_that_is_near_to_none(rmqlog: Runner, golden: Golden) -> None:
    for word in ("none-has-this-key", "*", "id-2003x"):
        assert rmqlog.fails(1, "find", golden(STORE), word) == "no message matches"


# ---- several keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [STORE, "batchcq-5.5.0", "cluster-5.5.0"])
def test_several_keys_are_the_messages_of_each(rmqlog: Runner, golden: Golden, store: str) -> None:
    lines = rmqlog("find", golden(store), "-t", "*", "-o", "jsonl", "--columns", "keys").out.splitlines()
    keys = {key for line in lines for key in json.loads(line)["keys"] or ()}
    chosen = sorted(keys)[:: max(len(keys) // 4, 1)][:4]
    assert len(chosen) == 4
    each = {tuple(place) for key in chosen for place in _places(rmqlog, "find", golden(store), key)}
    for words in (chosen, [word for key in chosen for word in ("--key", key)]):
        found = _places(rmqlog, "find", golden(store), *words)
        assert {tuple(place) for place in found} == each
        assert store.startswith("cluster") or len(found) == len(each)
    exported = rmqlog(
        "export", golden(store), "-", "-a", "--format", "csv", "--columns", "topic,queueId,queueOffset",
        *(word for key in chosen for word in ("--key", key)),
    )  # fmt: skip
    assert {tuple(line.split(",")) for line in exported.out.splitlines()[1:]} == {
        tuple(map(str, place)) for place in each
    }


@pytest.mark.parametrize("keys", [("id-9",), ("k", "id-9")])
def test_export_and_find_search_keys_in_the_same_topics(
    rmqlog: Runner, golden: Golden, keys: tuple[str, ...]
) -> None:
    given = [word for key in keys for word in ("--key", key)]
    columns = ("--columns", "topic,queueId,queueOffset")
    for topic in ((), ("-t", "Jobs"), ("-t", "Jobs", "-t", "%DLQ%*")):
        exported = rmqlog("export", golden(RETRIED), "-", "--format", "jsonl", *given, *topic, *columns)
        found = rmqlog("find", golden(RETRIED), "-o", "jsonl", *given, *topic, *columns)
        assert sorted(exported.out.splitlines()) == sorted(found.out.splitlines()) != []
        assert "system topics" not in exported.err
    with_all = rmqlog("export", golden(RETRIED), "-", "--format", "jsonl", *given, "-a", *columns)
    assert with_all.out.count("%DLQ%") > 0


# ---- options that are given twice --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "head --key id-1 --key id-2",
            "--key is given twice; rmqlog find, trace and export take several keys",
        ),
        ("find --since -1h --since -2d", "--since is given twice; rmqlog find takes one"),
        ("tail -n 1 --limit 2", "--limit is given twice; rmqlog tail takes one"),
        ("lag -t Orders -t Audit", "--topic is given twice; rmqlog lag takes one"),
        ("ls -o csv -o json", "--output is given twice; rmqlog ls takes one"),
    ],
)
def test_an_option_that_takes_one_value_is_given_once(
    rmqlog: Runner, golden: Golden, words: str, said: str
) -> None:
    verb, *more = words.split()
    assert rmqlog.fails(2, verb, golden(STORE), *more) == f"{said}; see rmqlog {verb} --help"


@pytest.mark.parametrize("verb", ["find", "head", "tail", "export"])
def test_several_topics_are_the_messages_of_each(rmqlog: Runner, golden: Golden, verb: str) -> None:
    more = ("-", "--format", "jsonl") if verb == "export" else ("-o", "jsonl")
    words = (verb, golden(RETRIED), *more, "--columns", "topic,queueId,queueOffset", "-n", 9999)
    each = [rmqlog(*words, "-t", topic).out.splitlines() for topic in ("Jobs", "%DLQ%CG_fail")]
    assert all(each)
    both = rmqlog(*words, "-t", "Jobs", "-t", "%DLQ%CG_fail").out.splitlines()
    assert sorted(both) == sorted(each[0] + each[1])
    said = rmqlog("head", golden(RETRIED), "-t", "Jobs", "-t", "Stepps", "--tag", "none").err
    assert "no topic is named 'Stepps'; did you mean Steps?" in said


def test_several_topics_of_views(rmqlog: Runner, golden: Golden) -> None:
    names = [row["topic"] for row in rmqlog.rows("ls", golden(STORE), "-t", "Orders", "-t", "Aud*")]
    assert names == ["Audit", "Orders"]
    kept = rmqlog.rows("dlq", golden(RETRIED), "-t", "Jobs", "-t", "Steps")
    alone = [rmqlog.rows("dlq", golden(RETRIED), "-t", topic) for topic in ("Jobs", "Steps")]
    assert len(kept) == sum(map(len, alone)) > 0
    said = rmqlog.fails(2, "dlq", golden(RETRIED), "-t", "Jobs", "-t", "Steps", "-g", "CG_fail", "--resend")
    assert said.startswith("--resend takes one --topic")


def test_several_texts_and_conditions_must_all_be_met(rmqlog: Runner, golden: Golden) -> None:
    def found(*words: str) -> set[str]:
        done = rmqlog("find", golden(RETRIED), "-a", "-o", "jsonl", *words, "--columns", "physicalOffset")
        return set(done.out.splitlines())

    for more in ((), ("-i",), ("-E",)):
        one, other = found("--body", "order", *more), found("--body", "ledger", *more)
        assert one - other
        assert found("--body", "order", "--body", "ledger", *more) == one & other != set()
    one, other = found("--where", "TAGS = 'TagA'"), found("--where", "region = 'eu-1'")
    assert one - other
    assert found("--where", "TAGS = 'TagA'", "--where", "region = 'eu-1'") == one & other != set()


# ---- words in a wrong place --------------------------------------------------------------------------------


def test_words_that_are_near_to_what_was_meant(
    rmqlog: Runner, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RMQLOG_STORE", raising=False)
    for words, said in (
        ("tail STORE Orders/2", "write --topic Orders --queue 2"),
        ("tail STORE Orders/2@last", "write --topic Orders --queue 2 -n 1"),
        ("ls STORE -t Orders/2", "a queue is --topic Orders --queue 2"),
        ("find STORE -t Orders,Audit", "several topics are -t Orders -t Audit"),
        ("export STORE out.csv id-1 id-2", "write -k id-1 -k id-2"),
        ("tail STORE -p 2", "no option -p; a partition is a queue in RocketMQ: -q, --queue"),
        ("head STORE --partition 2", "no option --partition; a partition is a queue"),
        ("head STORE --offset -5", "an offset is 0 or more; rmqlog tail -n 5 shows the last messages"),
        ("head STORE --body amount", "rmqlog find --body amount searches in bodies"),
        ("get STORE Orders/2", "expected a message id, or TOPIC/QUEUE@OFFSET such as Orders/2@last"),
        ("get STORE Orders@last", "expected a message id, or TOPIC/QUEUE@OFFSET such as Orders/2@last"),
        ("get STORE Orders:2:5600", "expected a message id, or TOPIC/QUEUE@OFFSET such as Orders/2@last"),
        ("find id-2003", "STORE is missing before 'id-2003': give the store directory, or set RMQLOG_STORE"),
        ("trace id-2003", "STORE is missing before 'id-2003'"),
    ):
        done = rmqlog(*(str(golden(STORE)) if word == "STORE" else word for word in words.split()))
        assert done.code in (1, 2)
        assert said in done.err, words
    assert "give --body twice for two texts" in rmqlog.fails(
        2, "find", golden(STORE), "-E", "--body", "(?=a)b"
    )


def test_a_near_key_or_tag_is_named(rmqlog: Runner, golden: Golden) -> None:
    path = golden(STORE)
    said = rmqlog("find", path, "id-").err
    command = f"rmqlog find {path} -a --where \"KEYS CONTAINS 'id-'\""
    assert " keys begin with id-: id-" in said
    assert f", …; for all of them: {command}\n" in said
    shown = rmqlog("find", path, "-a", "--where", "KEYS CONTAINS 'id-'", "-o", "jsonl", "--columns", "keys")
    assert "id-2003" in shown.out
    assert "1 key contains 2003: id-2003" in rmqlog("find", path, "2003").err
    assert "tags are case-sensitive, did you mean TagA?" in rmqlog("find", path, "--tag", "taga").err
    assert "several tags are --tag 'TagA || TagB'" in rmqlog("find", path, "--tag", "TagA,TagB").err
    assert "several tags are --tag 'TagA || TagB'" in rmqlog("find", path, "--tag", "TagA|TagB").err
    assert "; the tags are " in rmqlog("find", path, "--tag", "none-has-this").err
    done = rmqlog("find", path, "id-2003", "ID-2001")
    assert done.code == 0
    assert "rmqlog: ID-2001: keys are case-sensitive, did you mean id-2001?\n" in done.err
    said = rmqlog.fails(1, "dlq", golden(RETRIED), "--key", "ID-9")
    assert said == "no dead letters match; keys are case-sensitive, did you mean id-9?"


def test_a_key_of_another_topic(rmqlog: Runner, golden: Golden) -> None:
    path = golden(RETRIED)
    said = rmqlog.fails(1, "find", path, "--topic", "Steps", "--key", "grp-2")
    others = "%DLQ%CG_direct (1), %DLQ%CG_fail (1), %RETRY%CG_fail (1), Jobs (3), SCHEDULE_TOPIC_XXXX (1)"
    assert said == f"no message matches; other topics have it: {others}"
    assert "other topics" not in rmqlog.fails(1, "find", path, "--topic", "Steps", "--key", "nowhere")
