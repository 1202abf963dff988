"""trace(): the life of messages that were retried, given up, delayed, or sent in transactions, in stores that
brokers wrote.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store_format.display.columns import schema_of
from store_format.display.rows import iso_utc
from store_format.message.encode import MessageColumns
from store_format.store import MessageStore
from store_format.views.consume_time import trace_events
from store_format.views.trace import TRACE_COLUMNS
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.popped import popped_and_open


def life(root: Path, message_id: str) -> list[dict[str, Any]]:
    table = MessageStore.open(str(root)).trace(message_id)
    assert table.schema == schema_of(TRACE_COLUMNS)
    rows: list[dict[str, Any]] = table.to_pylist()
    times = [row["time"] for row in rows if row["time"] is not None]
    assert times == sorted(times)
    assert [row["time"] is None for row in rows] == sorted(row["time"] is None for row in rows)
    return rows


def _short(rows: list[dict[str, Any]]) -> list[tuple[str, str | None, str | None]]:
    return [(row["what"], row["topic"], row["group"]) for row in rows]


def _copies(name: str) -> dict[str, list[dict[str, Any]]]:
    """The broker's rows by UNIQ_KEY, in the order of the log; light queues show others' messages."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(goldens.expected_rows(name), key=lambda row: int(row["physicalOffset"])):
        if "UNIQ_KEY" in row["properties"] and not row["topic"].startswith("%LMQ%"):
            found.setdefault(row["properties"]["UNIQ_KEY"], []).append(row)
    return found


def _id_at(name: str, *place: str | int) -> str:
    rows = goldens.expected_rows(name)
    (row,) = [row for row in rows if (row["topic"], row["queueId"], row["queueOffset"]) == place]
    return str(row["msgId"])


FAILED = "7F00000129765FFD2B2768793B790026"
RETRIED = [
    ("born", "Jobs", None),
    ("stored", "Jobs", None),
    ("waits for retry 1", "SCHEDULE_TOPIC_XXXX", "CG_fail"),
    ("dead letter", "%DLQ%CG_direct", "CG_direct"),
    ("retry 1", "%RETRY%CG_fail", "CG_fail"),
    ("dead letter", "%DLQ%CG_fail", "CG_fail"),
    ("passed", "Jobs", "CG_direct"),
    ("passed", "Jobs", "CG_fail"),
    ("passed", "%RETRY%CG_fail", "CG_fail"),
]


def test_retries_and_dead_letters_of_two_groups(golden: Golden) -> None:
    rows = life(golden("retry-dlq-5.5.0"), FAILED)
    assert _short(rows) == RETRIED
    assert "level 3 for %RETRY%CG_fail, due 2026-11-21T06:53:07.312Z" in rows[2]["detail"]
    assert rows[-1]["detail"] == "committed offset 20"


def test_an_offset_id_leads_to_the_same_life(golden: Golden) -> None:
    root = golden("retry-dlq-5.5.0")
    for copy in _copies("retry-dlq-5.5.0")[FAILED]:
        assert life(root, copy["msgId"]) == life(root, FAILED)
    assert life(root, copy["msgId"].lower()) == life(root, FAILED)


@pytest.mark.process
@pytest.mark.parametrize("name", ["retry-dlq-5.5.0", "delay-tx-5.5.0", "pop-5.5.0"])
def test_every_copy_is_in_the_timeline(golden: Golden, name: str) -> None:
    root = golden(name)
    copies = _copies(name)
    for message_id in sorted(copies)[:: max(1, len(copies) // 40)]:
        rows = [row for row in life(root, message_id) if row["time"] and row["physicalOffset"] is not None]
        found = [row["physicalOffset"] for row in rows if not row["what"].startswith("transaction ")]
        assert found == [copy["physicalOffset"] for copy in copies[message_id]]


def test_a_dead_letter_of_an_orderly_group(golden: Golden) -> None:
    message_id = _one("retry-dlq-5.5.0", "Steps", "%DLQ%CG_orderly")
    assert _short(life(golden("retry-dlq-5.5.0"), message_id)) == [
        ("born", "Steps", None),
        ("stored", "Steps", None),
        ("dead letter", "%DLQ%CG_orderly", "CG_orderly"),
        ("passed", "Steps", "CG_orderly"),
    ]


def test_a_popped_message_names_its_group(golden: Golden) -> None:
    rows = life(golden("pop-5.5.0"), "7F000001554B5FFD2B27687EDFEB0003")
    [retry] = [row for row in rows if row["what"] == "retry 1"]
    assert (retry["topic"], retry["group"]) == ("%RETRY%CG_pop_PopWork", "CG_pop")
    assert retry["detail"] == "popped from PopWork"


def test_a_message_in_flight(golden: Golden) -> None:
    root, (place, visible_at) = golden("pop-5.5.0"), min(popped_and_open().items())
    message_id = _id_at("pop-5.5.0", *place)
    [last] = [row for row in life(root, message_id) if row["time"] is None and row["topic"] == place[0]]
    assert (last["what"], last["group"]) == ("in flight", "CG_pop")
    assert last["detail"].endswith(f"visible from {iso_utc(visible_at)}")


def _one(name: str, *topics: str) -> str:
    """A message whose copies are in these topics."""
    copies = sorted(_copies(name).items())
    return next(key for key, rows in copies if tuple(row["topic"] for row in rows) == topics)


def test_delayed_and_delivered(golden: Golden) -> None:
    root = golden("delay-tx-5.5.0")
    for waiting, topic in (("SCHEDULE_TOPIC_XXXX", "Delay"), ("rmq_sys_wheel_timer", "Timer")):
        rows = life(root, _one("delay-tx-5.5.0", waiting, topic))
        assert [(row["what"], row["topic"]) for row in rows] == [
            ("born", topic),
            ("delayed", waiting),
            ("delivered", topic),
        ]
    assert rows[1]["detail"].startswith("timer for Timer, due 2026-11-21T06:54:")


def test_transactions(golden: Golden) -> None:
    root = golden("delay-tx-5.5.0")
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    _, first, second, third, *rest = life(root, _one("delay-tx-5.5.0", half, "Tx"))
    assert first["detail"] == "for Tx"
    assert second["detail"] == f"half message at {first['physicalOffset']}"
    assert _short([third]) == [("transaction committed", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "PG_tx")]
    assert ("passed", "Tx", "CG_tx") in _short(rest)
    for topics, lived in {
        (half, "Tx"): ["born", "half message", "committed", "transaction committed", "passed"],
        (half,): ["born", "half message", "transaction rolled back"],
        (half, half, "Tx"): [
            *("born", "half message", "half message, check 1", "committed", "transaction committed"),
        ],
    }.items():
        found = [row["what"] for row in life(root, _one("delay-tx-5.5.0", *topics))]
        assert found[: len(lived)] == lived
        assert len(topics) > 1 or found == lived
    undecided = life(root, _one("delay-tx-5.5.0", *[half] * 10))
    assert [row["what"] for row in undecided][-2:] == ["half message, check 9", "transaction pending"]
    assert undecided[-1]["time"] is None


def test_a_group_that_has_not_got_there(golden: Golden) -> None:
    rows = life(golden("basic-5.5.0"), _id_at("basic-5.5.0", "Orders", 3, 58))
    assert {row["group"]: (row["what"], row["detail"]) for row in rows if row["time"] is None} == {
        "CG_some": ("not reached", "committed offset 58"),
        "CG_tags": ("not reached", "committed offset 40"),
    }


def test_an_unknown_id_has_no_life(golden: Golden) -> None:
    assert life(golden("basic-5.5.0"), "7F00000129765FFD2B2768793B790026") == []
    assert life(golden("basic-5.5.0"), "nothing like an id") == []


def test_without_index_and_queues(copy_of: Golden) -> None:
    root = copy_of("retry-dlq-5.5.0")
    for folder in ("index", "consumequeue"):
        shutil.rmtree(root / folder)
    assert _short(life(root, FAILED)) == RETRIED


@pytest.mark.parametrize("is_filed", [True, False])
def test_the_queue_says_when_a_delayed_message_is_due(copy_of: Golden, is_filed: bool) -> None:
    """ScheduleMessageService reads the time in the queue. The broker had longer levels."""
    root = copy_of("retry-dlq-5.5.0")
    [waiting] = [row for row in _copies("retry-dlq-5.5.0")[FAILED] if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
    due = waiting["storeTimestamp"] + 3_610_000
    queue = root / "consumequeue/SCHEDULE_TOPIC_XXXX" / str(waiting["queueId"])
    if is_filed:
        [path] = queue.iterdir()
        overwrite(path, 20 * waiting["queueOffset"] + 12, struct.pack(">q", due))
    else:
        shutil.rmtree(queue)
        (root / ".rmqlog").mkdir()
        (root / ".rmqlog/broker.conf").write_text("messageDelayLevel=1s 5s 3610s")
    store = MessageStore.open(str(root))
    assert f"level 3 for %RETRY%CG_fail, due {iso_utc(due)}" in life(root, FAILED)[2]["detail"]
    for how in ({"message_id": waiting["msgId"]}, {"message_id": FAILED}, {"key": FAILED}):
        rows = store.find(**how, columns=["topic", "tagsCode"]).table.to_pylist()
        assert [row["tagsCode"] for row in rows if row["topic"] == waiting["topic"]] == [due]


# ---- made up -----------------------------------------------------------------------------------------------


def _append(root: Path, topic: str, properties: list[bytes], bodies: list[bytes], **more: Any) -> None:
    columns = MessageColumns(
        topic=topic, body=pa.array(bodies, pa.binary()), properties=pa.array(properties, pa.binary()), **more
    )
    MessageStore.open(str(root)).append(
        columns, store_timestamps=np.full(len(bodies), 1_700_000_001_000, np.int64)
    )


def test_a_message_without_unique_key_is_found_by_its_origin(root: Path) -> None:
    _append(root, "Orders", [b"KEYS\x01k\x02"], [b"first"])
    (batch,) = MessageStore.open(str(root)).scan(["offsetMsgId"])
    origin = batch["offsetMsgId"][0].as_py()
    back = b"ORIGIN_MESSAGE_ID\x01%s\x02RETRY_TOPIC\x01Orders\x02" % origin.encode()
    properties = [back, b"ORIGIN_MESSAGE_ID\x01other\x02"]
    _append(root, "%RETRY%g", properties, [b"first", b"other"], reconsume_times=1)
    assert [what for what, _, _ in _short(life(root, origin))] == ["born", "stored", "retry 1"]


def test_what_clients_traced(root: Path) -> None:
    _append(root, "Orders", [b"UNIQ_KEY\x01ID1\x02"], [b"x"])
    sent = ["Pub", "1700000000500", "DefaultRegion", "P", "Orders", "ID1"]
    sent += ["t", "k", "127.0.0.1:10911", "1", "7", "0", "FF", "true"]
    other = [*sent[:5], "ID2", *sent[6:]]
    began = ["SubBefore", "1700000002000", "null", "C", "R1", "ID1", "0", "k"]
    ended = ["SubAfter", "R1", "ID1", "5", "false", "k", "4", "1700000002005", "C"]
    records = (sent, other, began, ended, ["Pub", "broken"], ["Nonsense"])
    body = "".join("\x01".join(record) + "\x02" for record in records).encode() + b"\xff"
    _append(root, "RMQ_SYS_TRACE_TOPIC", [b"KEYS\x01ID1 ID2\x02UNIQ_KEY\x01T1\x02"], [body])
    _append(root, "Replies", [b"KEYS\x01ID1\x02UNIQ_KEY\x01R1\x02"], [b"y"])
    rows = life(root, "ID1")
    traced = [row for row in rows if row["what"].startswith("traced")]
    assert [(row["what"], row["group"], row["detail"]) for row in traced] == [
        ("traced: sent", "P", "storeHost=127.0.0.1:10911, costTime=7, success=true"),
        ("traced: consumption began", "C", "retryTimes=0"),
        ("traced: consumption ended", "C", "costTime=5, success=false, contextCode=4"),
    ]
    assert [row["detail"] for row in rows if row["what"] == "named as a key"] == ["by the message R1"]
    assert {row["topic"] for row in traced} == {"RMQ_SYS_TRACE_TOPIC"}


@pytest.mark.parametrize(
    "body",
    [b"", b"\x02\x02", b"Pub", b"Pub\x01\x01\x01\x01\x01ID1\x02", b"\xff\xfe\x01ID1", b"Pub\x01" * 1000],
)
def test_trace_records_of_any_bytes(body: bytes) -> None:
    assert [event.time_ms for event in trace_events(body, {"ID1"})] in ([], [None])


def test_a_damaged_copy_is_left_out(copy_of: Golden) -> None:
    root = copy_of("retry-dlq-5.5.0")
    victim = next(row for row in _copies("retry-dlq-5.5.0")[FAILED] if row["topic"] == "%RETRY%CG_fail")
    file = root / "commitlog" / "00000000000000000000"
    data = bytearray(file.read_bytes())
    data[victim["physicalOffset"] + 4] ^= 1
    file.write_bytes(data)
    assert ("retry 1", "%RETRY%CG_fail", "CG_fail") not in _short(life(root, FAILED))
    assert ("dead letter", "%DLQ%CG_fail", "CG_fail") in _short(life(root, FAILED))


def test_a_delay_level_that_is_no_number_is_unknown(root: Path) -> None:
    """A client without this fix appends properties without a separator, and DELAY has two of them."""
    properties = b"DELAY\x013Pinpoint\x010\x02REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02UNIQ_KEY\x01U1\x02"
    _append(root, "SCHEDULE_TOPIC_XXXX", [properties], [b"d"], queue_id=20)
    shutil.rmtree(root / "consumequeue")
    (batch,) = MessageStore.open(str(root)).scan(["tagsCode"])
    assert batch["tagsCode"].to_pylist() == [None]
    assert life(root, "U1")[1]["detail"] == "level 21 for Orders, due at an unknown time"
