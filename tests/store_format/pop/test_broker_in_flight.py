"""What golden pop-5.5.0 has in flight, against what its messages say, and with damaged or missing files."""

from __future__ import annotations

import base64
import json
import logging
import pathlib
import shutil

import pytest

from store_format.errors import UnsupportedFormatError
from store_format.metadata.read import BrokerConf, config_path
from store_format.metadata.timer import read_timer_check
from store_format.names import UNIQ_KEY
from store_format.opened.store import Opened
from store_format.pop.broker_in_flight import BrokerInFlight, read_broker_in_flight
from store_format.read.store import Store
from tests.support import goldens
from tests.support.popped import popped_and_open

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
    check = read_timer_check(str(path))
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
