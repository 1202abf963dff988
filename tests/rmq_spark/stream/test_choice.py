"""A stream's checkpoint and the options of its next run, which choose other topics, or name wrong ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.stream_offset import StreamOffset
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.errors import OptionError, StoreError
from tests.rmq_spark.stream.test_group_positions import Clock, Query
from tests.rmq_spark.stream.test_positions import Stream, expected
from tests.support.reads import read
from tests.support.staged import append, deleted_topic, make_store, numbered


@pytest.fixture
def root(root: Path) -> Path:
    """Topics Audit and Orders, four queues of one message each."""
    append(root, numbered("Audit", 0, 4) + numbered("Orders", 0, 4))
    return root


def drained(stream: Stream) -> list[Any]:
    seen: list[Any] = []
    while (places := stream.step()) is not None:
        seen += places
    return sorted(seen)


@pytest.mark.parametrize(
    ("all_of", "one_of"),
    [
        ({"subscribe": "Audit,Orders"}, {"subscribe": "Audit"}),
        ({"subscribePattern": "Audit|Orders"}, {"subscribePattern": "Aud.*"}),
        ({"assign": '{"Audit":[0,1,2,3],"Orders":[0,1,2,3]}'}, {"assign": '{"Audit":[0,1,2,3]}'}),
    ],
)
def test_a_topic_left_out_for_one_run_goes_on_where_it_was(
    root: Path, all_of: dict[str, Any], one_of: dict[str, Any]
) -> None:
    stream = Stream(root, **all_of)
    assert len(drained(stream)) == 8
    append(root, numbered("Audit", 4, 4) + numbered("Orders", 4, 4))
    stream.restart(**one_of)
    assert drained(stream) == expected("Audit", *[(1, 2)] * 4)
    assert stream.start().keys() == {"Audit", "Orders", "$at"}
    assert stream.positions.report() == {"Audit": {"broker-a": dict.fromkeys("0123", 2)}}
    append(root, numbered("Audit", 8, 4) + numbered("Orders", 8, 4))
    stream.restart(**all_of)
    assert drained(stream) == sorted(expected("Audit", *[(2, 3)] * 4) + expected("Orders", *[(1, 3)] * 4))
    assert stream.step() is None


def test_a_limit_counts_only_the_queues_that_are_read(root: Path) -> None:
    stream = Stream(root, subscribe="Audit,Orders", maxOffsetsPerTrigger=2)
    assert len(stream.step() or ()) == 2
    stream.restart(subscribe="Audit")
    while (places := stream.step()) is not None:
        assert {topic for topic, _, _ in places} == {"Audit"}
    stream.restart(subscribe="Audit,Orders")
    seen = [place for batch in range(len(stream.log)) for place in stream.replay(batch)] + drained(stream)
    assert sorted(seen) == sorted(expected("Audit", *[(0, 1)] * 4) + expected("Orders", *[(0, 1)] * 4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "Ordres"}, "no store has a topic 'Ordres'; did you mean Orders?"),
        ({"subscribe": "Audit,Ordres"}, "no store has a topic 'Ordres'; did you mean Orders?"),
        ({"assign": '{"Orders":[9]}'},
         "assign: no store has the queue Orders/*/9; the queues are Orders/broker-a/0"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_an_error_at_a_restart_too(root: Path, options: dict[str, str], said: str) -> None:
    stream = Stream(root, subscribe="Orders,Audit")
    drained(stream)
    stream.restart(**{"subscribe": None} | options)
    with pytest.raises(OptionError) as caught:
        stream.step()
    assert str(caught.value).startswith(said)
    stream.restart(**dict.fromkeys(options) | {"subscribe": "Orders,Audit"})
    assert stream.step() is None
    append(root, numbered("Orders", 4, 1))
    assert stream.step() == [("Orders", 0, 1)]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_pattern_that_matches_nothing_is_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture, has_checkpoint: bool
) -> None:
    options: dict[str, Any] = {} if has_checkpoint else {"subscribePattern": "Ordr.*"}
    stream = Stream(root, **options)
    if has_checkpoint:
        drained(stream)
        stream.restart(subscribePattern="Ordr.*")
    assert stream.step() is None
    said = (
        "subscribePattern Ordr.* matches no topic; a pattern is for the whole name, as Ord.* is for Orders; "
        "the topics are Audit, Orders. "
    )
    assert caplog.messages == [f"{said}The stream waits for a topic that matches"]
    append(root, numbered("Ordr1", 0, 1))
    assert stream.step() == [("Ordr1", 0, 0)]


def test_a_topic_that_is_neither_chosen_nor_there_is_dropped_with_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(root, subscribe="Audit,Orders")
    drained(stream)
    deleted_topic(root, "Orders")
    stream.restart(subscribe="Audit")
    assert stream.step() == []
    assert stream.start().keys() == {"Audit", "$at"}
    assert stream.step() is None
    assert caplog.messages == [
        "topic Orders of broker-a was deleted: its positions are removed from the checkpoint"
    ]


def test_files_of_rocksdb_are_no_sign_that_a_topic_was_deleted(
    golden: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(golden("rocksdb-5.5.0"), subscribePattern=".*")
    everything = drained(stream)
    assert {topic for topic, _, _ in everything} > {"Audit"}
    stream.restart(subscribePattern="Audit")
    assert drained(stream) == []
    assert not [record.message for record in caplog.records if "was deleted" in record.message]
    stream.restart(subscribePattern=".*")
    assert drained(stream) == []


@pytest.mark.parametrize("is_scanned", [False, True])
def test_a_batch_planned_before_the_choice_changed_is_read_as_planned(root: Path, is_scanned: bool) -> None:
    if is_scanned:
        shutil.rmtree(root / "consumequeue")
    stream = Stream(root, subscribe="Audit,Orders")
    seen = stream.step()
    assert len(seen or ()) == 8
    stream.restart(subscribe="Audit")
    assert stream.replay(0) == seen
    assert stream.step() is None
    assert StreamOffset.from_json(stream.start()).positions.keys() == {
        (topic, "broker-a", queue) for topic in ("Audit", "Orders") for queue in range(4)
    }


# ---- a store whose broker has not started yet --------------------------------------------------------------


@pytest.mark.parametrize("in_group", [False, True])
def test_a_stream_started_before_topics_json_has_the_right_broker_name(
    tmp_path: Path, golden: Any, in_group: bool
) -> None:
    source, root = golden("basic-5.5.0"), tmp_path / "fresh"
    for folder in ("commitlog", "consumequeue", "config"):
        (root / folder).mkdir(parents=True)
    stream = Query(root, tmp_path, Clock(), "one") if in_group else Stream(root)
    assert stream.step() is None
    (root / "consumequeue" / "Orders" / "0").mkdir(parents=True)
    assert stream.step() is None
    shutil.copytree(source, root, dirs_exist_ok=True)
    assert len(stream.step() or []) > 1000
    assert stream.log[-1][1]["Orders"].keys() == {MessageStore.open(str(source)).broker_name}
    if not in_group:
        stream.restart()
    assert stream.step() is None


def test_a_store_without_config_has_the_name_of_its_directory(tmp_path: Path, golden: Any) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden("basic-5.5.0"), root, ignore=lambda *_: {"config"})
    stream = Stream(root)
    assert len(stream.step() or []) > 1000
    assert stream.start()["Orders"].keys() == {"copy"}


# ---- queues that have no message yet -----------------------------------------------------------------------


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """Topic T of four queues, two of which have a message; topic Empty of four without any."""
    root = make_store(tmp_path / "sparse")
    append(root, numbered("T", 0, 2, queues=4), options=CommitOptions(new_topics={"T": 4}))
    text = (root / "config" / "topics.json").read_text()
    empty = json.loads(text)
    empty["topicConfigTable"]["Empty"] = empty["topicConfigTable"]["T"] | {"topicName": "Empty"}
    (root / "config" / "topics.json").write_text(json.dumps(empty))
    assert sorted(path.name for path in (root / "consumequeue" / "T").iterdir()) == ["0", "1"]
    return root


ALL_QUEUES = '{"T":{"0":%s,"1":%s,"2":%s,"3":%s}}'


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": ALL_QUEUES % (0, 0, 0, 0)},
        {"startingOffsets": ALL_QUEUES % (-2, -2, -2, -2)},
        {"startingOffsets": '{"T":{"broker-a":{"0":0,"1":0,"2":0,"3":0}}}'},
        {"assign": '{"T":[0,1,2,3]}'},
        {"assign": '{"T":[0,1,2,3]}', "startingOffsets": ALL_QUEUES % (0, 0, 0, 0)},
        {"subscribe": "T,Empty"},
    ],
)
def test_a_configured_queue_without_a_message_may_be_named(sparse: Path, options: dict[str, Any]) -> None:
    stream = Stream(sparse, **options)
    assert read(sparse, **options).places() == stream.step() == [("T", 0, 0), ("T", 1, 0)]
    stream.restart()
    append(sparse, numbered("T", 2, 2))
    assert stream.step() == [("T", 2, 0), ("T", 3, 0)]


def test_latest_of_a_queue_without_a_message_waits_for_its_first(sparse: Path) -> None:
    stream = Stream(sparse, startingOffsets=ALL_QUEUES % (-1, -1, -1, -1))
    assert stream.step() is None
    append(sparse, numbered("T", 0, 4))
    assert stream.step() == [("T", 0, 1), ("T", 1, 1), ("T", 2, 0), ("T", 3, 0)]
    empty = Stream(sparse, subscribe="Empty")
    assert empty.step() is None
    append(sparse, numbered("Empty", 0, 1))
    assert empty.step() == [("Empty", 0, 0)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": '{"T":{"4":0}}'}, "startingOffsets: T/*/4 is not one of the queues read"),
        ({"startingOffsets": '{"T":{"other":{"3":0}}}'},
         "startingOffsets: T/other/3 is not one of the queues read"),
        ({"assign": '{"T":[4]}'}, "assign: no store has the queue T/*/4"),
        ({"startingOffsets": '{"T":{"3":5}}'},
         "T/*/3: startingOffsets 5 is not in the queue, which holds 0 to 0; correct it"),
        ({"subscribe": "T", "startingOffsets": '{"Empty":{"0":0}}'},
         "startingOffsets: Empty/*/0 is not one of the queues read"),
    ],
)  # fmt: skip
def test_other_queues_and_offsets_are_refused(sparse: Path, options: dict[str, Any], said: str) -> None:
    for call in (
        lambda: read(sparse, **options).splits,
        lambda: Stream(sparse, **options).step(),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert str(caught.value).startswith(said)


def test_the_end_offset_of_a_batch_starts_another_query(root: Path) -> None:
    """As `query.lastProgress` shows it, with the keys that only its own query needs."""
    stream = Stream(root)
    stream.step()
    end = stream.log[0][1] | {"$reset": 3}
    assert "$from" in end
    append(root, numbered("Orders", 4, 2))
    assert Stream(root, startingOffsets=json.dumps(end)).step() == [("Orders", 0, 1), ("Orders", 1, 1)]
    assert len(read(root, endingOffsets=json.dumps(end)).places()) == 8
