"""What golden pop-5.5.0 has in flight, against what its messages say, and with damaged or missing files."""

from __future__ import annotations

import base64
import json
import logging
import pathlib
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.metadata.read import BrokerConf, config_path
from store_format.metadata.timer import TimerCheck
from store_format.names import REVIVE_PREFIX, UNIQ_KEY, normal_topic
from store_format.opened.store import Opened
from store_format.pop.broker_in_flight import (
    BrokerAck,
    BrokerCheckPoint,
    BrokerInFlight,
    merge_key,
    parse_record,
    read_broker_in_flight,
)
from store_format.read.store import Store
from tests.support import goldens
from tests.support.popped import popped_and_open
from tests.test_oracle import VECTORS

QueueOffset = tuple[str, int, int]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(goldens.unpack("pop-5.5.0", tmp_path))


def _messages(found: list[BrokerInFlight]) -> dict[QueueOffset, int]:
    return {
        (one.record.topic, one.queue_id, offset): one.visible_at for one in found for offset in one.unacked
    }


def test_the_golden_store_has_in_flight_what_its_consumers_left_open(root: str) -> None:
    found = read_broker_in_flight(Store.open(root))
    assert _messages(found) == popped_and_open()
    assert len(_messages(found)) == 12
    (first, *_) = found
    assert (first.group, first.topic, first.flag, first.queue_id) == ("CG_pop", "PopWork", 0, 1)
    assert (first.revive_topic, first.revive_queue_id) == ("rmq_sys_REVIVE_LOG_GoldenCluster", 1)


def test_every_popped_message_is_acknowledged_revived_or_in_flight(root: str) -> None:
    rows = goldens.expected_rows("pop-5.5.0")
    popped = goldens.expected("pop-5.5.0")["consumerOffset"]["offsetTable"]["PopWork@CG_pop"]
    acks = [row["body"] for row in rows if row["properties"].get("TAGS") == "ack"]
    bodies = [json.loads(base64.b64decode(body)) for body in acks]
    acked = {(body["t"], body["q"], body["ao"]) for body in bodies}
    revived = {row["properties"][UNIQ_KEY] for row in rows if row["topic"].startswith("%RETRY%")}
    open_now = _messages(read_broker_in_flight(Store.open(root)))
    for row in rows:
        if row["topic"] == "PopWork":
            key = ("PopWork", row["queueId"], row["queueOffset"])
            is_over = key in acked or row["properties"][UNIQ_KEY] in revived
            if row["queueOffset"] < popped[str(row["queueId"])]:
                assert is_over or key in open_now
            else:
                assert not is_over
                assert key not in open_now


def test_files_of_the_timer_can_be_lost(root: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = _messages(read_broker_in_flight(Store.open(root)))
    pathlib.Path(root, "timerwheel").unlink()  # the slots are in the log
    assert _messages(read_broker_in_flight(Store.open(root))) == expected
    pathlib.Path(root, "timerwheel").write_bytes(b"\1" * 100)
    with caplog.at_level(logging.WARNING):
        assert _messages(read_broker_in_flight(Store.open(root))) == expected
    assert "the whole timer topic" in caplog.text
    pathlib.Path(root, "timerwheel").unlink()
    pathlib.Path(config_path(Opened(root), "timercheck")).unlink()  # the timer has delivered nothing
    every = _messages(read_broker_in_flight(Store.open(root)))
    assert every.items() >= expected.items()
    assert len(every) > len(expected)


def test_messages_that_the_timer_has_not_read_count(root: str) -> None:
    """A crash right after the pops: neither timercheck nor the wheel know of the records."""
    expected = _messages(read_broker_in_flight(Store.open(root)))
    path = pathlib.Path(config_path(Opened(root), "timercheck"))
    check = TimerCheck.read(Opened(root))
    assert check is not None
    data = bytearray(path.read_bytes())
    data[8:16], data[16:24] = bytes(8), bytes(8)  # no unit is flushed, no message is read
    path.write_bytes(data)
    pathlib.Path(root, "timerwheel").unlink()
    shutil.rmtree(f"{root}/timerlog")
    found = _messages(read_broker_in_flight(Store.open(root)))
    assert found.items() >= expected.items()


def test_records_that_the_revive_group_has_not_processed_count(root: str) -> None:
    """As after a crash right after the delivery: the broker would revive these messages again."""
    before = _messages(read_broker_in_flight(Store.open(root)))
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        path = pathlib.Path(config_path(Opened(root), name))
        path.write_text(path.read_text().replace("4:8", "4:6"))
    after = _messages(read_broker_in_flight(Store.open(root)))
    # the check points at 7 and 8 of revive queue 4, which are processed but for the offset
    assert {key[2] for key in after.keys() - before.keys()} == {4, 8}


def test_a_damaged_record_is_skipped_with_a_warning(root: str, caplog: pytest.LogCaptureFixture) -> None:
    log = pathlib.Path(root, "commitlog/00000000000000000000")
    data = log.read_bytes()
    place = data.index(b'"pt":1795244347772,"q":1,"reviveTime"')
    assert data.count(b'"pt":1795244347772,"q":1,"reviveTime"') == 1
    log.write_bytes(data[:place] + b"x" + data[place + 1 :])
    with caplog.at_level(logging.WARNING):
        found = _messages(read_broker_in_flight(Store.open(root)))
    assert popped_and_open().keys() - found.keys() == {("PopWork", 1, 5), ("PopWork", 1, 8)}
    assert "skipped" in caplog.text


def test_state_in_rocksdb_is_refused(root: str) -> None:
    store = Store.open(root)
    enabled = BrokerConf.of({"popConsumerKVServiceEnable": "true"}, "broker.conf")
    with pytest.raises(UnsupportedFormatError, match="popConsumerKVServiceEnable=true"):
        read_broker_in_flight(store, enabled)
    pathlib.Path(root, "kvStore").mkdir()
    assert read_broker_in_flight(store)  # popConsumerKVServiceInit without a database
    pathlib.Path(root, "kvStore/CURRENT").touch()
    with pytest.raises(UnsupportedFormatError, match="kvStore/CURRENT"):
        read_broker_in_flight(store)
    assert read_broker_in_flight(store, BrokerConf.of({"popConsumerKVServiceEnable": "false"}, ""))
    settings = {"popConsumerKVServiceEnable": "false", "timerRocksDBEnable": "true"}
    with pytest.raises(UnsupportedFormatError, match="timerRocksDBEnable"):
        read_broker_in_flight(store, BrokerConf.of(settings, ""))


def test_a_store_without_pop_has_nothing_in_flight(tmp_path: pathlib.Path) -> None:
    assert read_broker_in_flight(Store.open(str(goldens.unpack("delay-tx-5.5.0", tmp_path)))) == []


# ---- check points and acks of a broker ---------------------------------------------------------------------


_CK_54, _ACK, _BATCH = (text.encode() for text in VECTORS["pop_json"].values())
_CK = {"c": "g", "t": "T", "q": 2, "so": 100, "n": 3, "pt": 1000, "it": 500, "bn": "a"}


def _ck(**changed: object) -> bytes:
    return json.dumps(_CK | changed).encode()


def test_bodies_of_the_golden_store_come_out_as_the_broker_wrote_them() -> None:
    kinds = []
    for row in goldens.expected_rows("pop-5.5.0"):
        properties = row["properties"]
        if row["topic"].startswith(REVIVE_PREFIX) or properties.get("REAL_TOPIC", "").startswith(
            REVIVE_PREFIX
        ):
            body = base64.b64decode(row["body"])
            record = parse_record(properties["TAGS"], body, "a message")
            assert record.to_json() == body
            assert record.unique_key == properties["UNIQ_KEY"]
            assert merge_key(record, "")[-1] == "broker-a"
            if isinstance(record, BrokerCheckPoint):
                assert record.visible_at - 1000 == int(properties["TIMER_DELIVER_MS"])
                assert record.visible_at == json.loads(body)["reviveTime"]
            kinds.append(type(record))
    assert (kinds.count(BrokerCheckPoint), kinds.count(BrokerAck)) == (46, 89)


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("ck", _CK_54),
        ("ck", _CK_54.replace(b'"so"', b'"rp":"3","so"').replace(b',"t"', b',"sp":true,"t"')),
        ("ck", _CK_54.replace(b'"bm":0', b'"bm":-2147483648')),
        ("ck", _CK_54.replace(b'"d":[0,1],', b"")),
        ("ck", _CK_54.replace(b'"bn":"broker-a",', b"")),
        ("ck", _CK_54.replace(b"broker-a", '"\\n队列'.encode().replace(b'"', b'\\"', 1))),
        ("ack", _ACK),
        ("bAck", _BATCH),
        ("bAck", _BATCH.replace(b'"ao":0', b'"ao":-1').replace(b'"c"', b'"bn":"b","c"')),
    ],
)
def test_forms_of_older_brokers_come_out_as_they_were(tag: str, body: bytes) -> None:
    assert parse_record(tag, body, "a message").to_json() == body


def test_acks_have_long_names_too_but_check_points_do_not() -> None:
    long = (
        b'{"ackOffset":-1,"ackOffsetList":[101,103],"startOffset":100,"consumerGroup":"g","topic":"T",'
        b'"queueId":2,"popTime":1000,"brokerName":"a"}'
    )
    assert parse_record("bAck", long, "") == BrokerAck("T", "g", 2, 100, 1000, "a", -1, (101, 103))
    with pytest.raises(CorruptStoreError, match="a name as t, found None"):
        parse_record("ck", _ck(t=None, topic="T"), "the message")


def test_a_position_is_that_in_the_differences_or_the_distance() -> None:
    # PopCheckPoint.indexOfAck
    with_gaps = parse_record("ck", _ck(d=[0, 2, 5]), "")
    without = parse_record("ck", _ck(), "")
    assert isinstance(with_gaps, BrokerCheckPoint)
    assert isinstance(without, BrokerCheckPoint)
    assert [with_gaps.position(offset) for offset in (99, 100, 101, 102, 105, 106)] == [-1, 0, -1, 1, 2, -1]
    assert [without.position(offset) for offset in (99, 100, 102, 103)] == [-1, 0, 2, -1]
    assert with_gaps.with_acks([100, 105, 7]).unacked == (102,)
    assert parse_record("ck", _ck(bm=-1), "").unacked == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("tag", "body", "message"),
    [
        ("Orders", b"{}", "tag ck, ack or bAck, found 'Orders'"),
        (None, b"{}", "tag ck, ack or bAck, found None"),
        ("ck", b"3-17", "store: queue 1 at byte 1"),  # PopBufferMergeService.cancelCkTimer
        ("ck", b'{"t":"T"', "store: queue 1"),
        ("ck", b"[" * 1000, "store: queue 1"),
        ("ack", b"[]", "a JSON object, found list"),
        ("ck", _ck(c=""), "a name as c"),
        ("ck", _ck(c=["g"]), "a text as c"),
        ("ck", _ck(n=33), "a number from 0 to 32 as n, found 33"),
        ("ck", _ck(n=True), "as n, found True"),
        ("ck", _ck(q=-1), "as q, found -1"),
        ("ck", _ck(so=1 << 63), "as so"),
        ("ck", _ck(so=(1 << 63) - 2), "an offset that fits a long as so"),
        ("ck", _ck(it=(1 << 63) - 1), "a time that fits a long as it"),
        ("ck", _ck(d=[0, 1]), "at least 3 rising numbers as d"),
        ("ck", _ck(d=[0, 2, 1]), "rising numbers as d"),
        ("ck", _ck(d=[0, -1, 1]), "a list of numbers from 0"),
        ("ck", _ck(d={"0": 1}), "a list of numbers"),
        ("ck", _ck(sp="false"), "true or false as sp"),
        ("bAck", b'{"t":"T","c":"g","aol":[1.5]}', "a list of numbers"),
        ("ack", b'{"t":"T","c":"g","ao":-1}', "as ao, found -1"),
    ],
)
def test_a_damaged_body_is_an_error_that_names_the_message(tag: str, body: bytes, message: str) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        parse_record(tag, body, "store: queue 1")
    assert message in str(caught.value)
    assert str(caught.value).startswith("store: queue 1 at byte ")


@settings(max_examples=40)
@given(st.sampled_from(["ck", "ack", "bAck"]), st.binary() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*_CK, "d", "bm", "ao", "aol"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_body_is_a_record_or_an_error(tag: str, body: bytes) -> None:
    try:
        record = parse_record(tag, body, "here")
    except CorruptStoreError:
        return
    assert parse_record(tag, record.to_json(), "here").to_json() == record.to_json()


def test_the_topic_of_a_retry_topic_depends_on_the_group() -> None:
    assert normal_topic("%RETRY%a_b_T", "a_b") == ("T", 1)
    assert normal_topic("%RETRY%a_b_T", "a") == ("b_T", 1)
    assert normal_topic("%RETRY%a+T", "a") == ("T", 2)
    assert normal_topic("%RETRY%other_T", "a") == ("%RETRY%other_T", 0)
    assert normal_topic("T", "a") == ("T", 0)


def test_the_examples_of_the_format_s_description_are_records() -> None:
    page = (Path(__file__).parents[3] / "store_format" / "FORMAT.md").read_text(encoding="utf-8")
    lines = [line.split() for line in page.splitlines() if line.split()[:1] in (["ck"], ["ack"], ["bAck"])]
    assert [tag for tag, _ in lines] == ["ck", "ack", "bAck"]
    for tag, body in lines:
        assert parse_record(tag, body.encode(), "").to_json() == body.encode()
