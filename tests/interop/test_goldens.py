"""A real broker on copies of golden stores: what it serves, what it writes behind it, and what we read of
both.

One broker start serves many tests: each store's session runs once, and the tests look at what it recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import StoreState
from store_format.store import MessageStore
from tests.interop.harness import Client, Opened, RocketMQ
from tests.interop.once import made_once
from tests.interop.programs import Line
from tests.interop.rows import as_client, by_place, data_files, ours
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden

VERSIONS = {"basic-5.5.0": "5.5.0", "basic-4.9.7": "4.9.7"}
USER_TOPICS = ("Audit", "Metrics", "Orders")
GROUP, GROUP_TOPIC = "CG_some", "Orders"
SENT = 20
KEYS_ASKED_MIN = 25
DELIVERY_SECONDS_MAX = 30


@dataclass(frozen=True)
class Answers:
    """What the client got for one message: by its first key, by its UNIQ_KEY, by its physical offset."""

    message: Line
    by_key: list[Line]
    by_unique_key: list[Line]
    by_physical_offset: Line


@dataclass(frozen=True)
class Session:
    """A golden store with a broker on it, from its start to its end."""

    name: str
    store: Path
    opened: Opened  # by DefaultMessageStore before the broker, and whether that changed a file
    changed: bool
    served: list[Line]  # by the broker, all topics, before anything was sent
    answers: list[Answers]
    by_time: list[int]  # one for each of the golden's offsetsByTime
    state: StoreState
    sent: list[Line]  # as acknowledged
    served_after: list[Line]
    group_offsets: list[dict[tuple[str, int], int]]  # before and after the push consumer
    consumed: list[Line]
    opened_after: Opened
    changed_after: bool


# CI has a session of 5.5.0 in test_written.py
@pytest.fixture(scope="module", params=["basic-4.9.7", pytest.param("basic-5.5.0", marks=pytest.mark.whole)])
def session(
    request: pytest.FixtureRequest,
    rocketmq: Callable[[str], RocketMQ],
    copy_of: Golden,
    shared_directory: Path,
) -> Session:
    name = request.param
    return made_once(
        shared_directory / f"golden-{name}", lambda: _session(name, rocketmq(VERSIONS[name]), copy_of(name))
    )


def _session(name: str, java: RocketMQ, store: Path) -> Session:
    config = goldens.config(name)
    opened, changed = _opened(java, store, config)
    with java.broker(store, config) as broker:
        client = broker.client()
        # Long before the group consumes: whoever asks is a member of it for a while, and would be given
        # queues.
        before = client.group_offsets(GROUP, GROUP_TOPIC)
        served = client.messages()
        answers = _answers(client, served)
        by_time = [_offset_at(client, probe) for probe in goldens.expected(name)["offsetsByTime"]]
        state = MessageStore.open(str(store)).state
        sent = client.send("Orders", SENT // 2, seed=1) + client.send(
            "Fresh", SENT - SENT // 2, seed=2, shards=3
        )
        _wait_for(client, len(goldens.expected_rows(name)) + _undelivered(name) + SENT)
        served_after = client.messages()
        waiting = [
            (line["queueId"], line["queueOffset"])
            for line in served_after
            if line["queueOffset"] >= before.get((line["topic"], line["queueId"]), 1 << 62)
        ]
        consumed = client.push_consume(GROUP, GROUP_TOPIC, waiting)
        after = client.group_offsets(GROUP, GROUP_TOPIC)
    opened_after, changed_after = _opened(java, store, config)
    return Session(
        name, store, opened, changed, served, answers, by_time, state, sent, served_after, [before, after],
        consumed, opened_after, changed_after,
    )  # fmt: skip


def _opened(java: RocketMQ, store: Path, config: dict[str, str]) -> tuple[Opened, bool]:
    before = data_files(store)
    opened = java.open_store(store, config)
    return opened, data_files(store) != before


def _answers(client: Client, served: list[Line]) -> list[Answers]:
    chosen = [line for line in served if line["topic"] in USER_TOPICS and "KEYS" in line["properties"]]
    answers = []
    for line in chosen[:: max(1, len(chosen) // KEYS_ASKED_MIN)]:
        topic, properties = line["topic"], line["properties"]
        by_key = client.by_key(topic, properties["KEYS"].split(" ")[0])
        by_unique_key = client.by_unique_key(topic, properties["UNIQ_KEY"])
        answers.append(
            Answers(line, by_key, by_unique_key, client.by_physical_offset(topic, line["physicalOffset"]))
        )
    return answers


def _offset_at(client: Client, probe: Line) -> int:
    boundary = "-" if probe["boundary"] == "V4" else probe["boundary"]
    return client.offset_at(probe["topic"], probe["queueId"], probe["timestamp"], boundary)


def _undelivered(name: str) -> int:
    """Delayed messages that were not due when the golden broker stopped; this one delivers them soon after
    its start.
    """
    delayed = sum(row["topic"] == "SCHEDULE_TOPIC_XXXX" for row in goldens.expected_rows(name))
    return int(delayed - sum(goldens.expected(name)["delayOffset"]["offsetTable"].values()))


def _wait_for(client: Client, count: int) -> None:
    end = time.monotonic() + DELIVERY_SECONDS_MAX
    while (found := sum(stop - start for start, stop in client.ends().values())) < count:
        assert time.monotonic() < end, f"{found} messages after {DELIVERY_SECONDS_MAX} seconds, not {count}"
        time.sleep(0.2)
    assert found == count


def _old(name: str, lines: list[Line]) -> list[Line]:
    """Those of the golden store itself."""
    return [
        line for line in lines if line["physicalOffset"] < goldens.expected(name)["commitLog"]["maxOffset"]
    ]


def test_the_store_classes_find_every_golden_row_and_change_nothing(session: Session) -> None:
    assert by_place(session.opened.messages) == goldens.expected_rows(session.name)
    assert sum(queue["rows"] for queue in session.opened.queues) == len(session.opened.messages)
    assert session.opened.commit_log == tuple(goldens.expected(session.name)["commitLog"].values())
    assert not session.changed


def test_the_broker_serves_every_golden_row_of_every_topic(session: Session) -> None:
    assert as_client(_old(session.name, session.served)) == as_client(goldens.expected_rows(session.name))


def test_a_key_an_id_and_a_physical_offset_lead_to_the_message(session: Session) -> None:
    assert len(session.answers) >= KEYS_ASKED_MIN
    for answers in session.answers:
        assert answers.message in answers.by_key
        assert answers.by_unique_key == [answers.message]
        assert answers.by_physical_offset == answers.message


def test_offsets_by_time_over_the_network_are_the_store_s(session: Session) -> None:
    """4.9 chooses the consume queue file by its mtime, which is the copy's: only queues of one file say the
    same again.
    """
    probes = goldens.expected(session.name)["offsetsByTime"]
    told = [
        (probe, offset)
        for probe, offset in zip(probes, session.by_time, strict=True)
        if not _by_mtime(session.store, probe)
    ]
    assert [offset for _, offset in told] == [probe["offset"] for probe, _ in told]
    assert len(told) > 20


def _by_mtime(store: Path, probe: Line) -> bool:
    return (
        probe["boundary"] == "V4"
        and len(list((store / "consumequeue" / probe["topic"] / str(probe["queueId"])).iterdir())) > 1
    )


def test_a_store_with_a_broker_on_it_is_live_and_clean_after_its_stop(session: Session) -> None:
    assert session.state is StoreState.LIVE
    assert MessageStore.open(str(session.store)).state is StoreState.CLEAN


def test_we_read_old_and_new_messages_as_the_client_does(session: Session) -> None:
    rows = ours(session.store)
    assert as_client(rows) == as_client(session.served_after)
    assert as_client(_old(session.name, rows)) == as_client(goldens.expected_rows(session.name))


def test_we_read_what_the_producer_sent(session: Session) -> None:
    assert len(session.sent) == SENT
    place = {
        (line["topic"], line["queueId"], line["queueOffset"]): line
        for line in ours(session.store, {"Orders", "Fresh"})
    }
    for sent in session.sent:
        row = place[sent["topic"], sent["queueId"], sent["queueOffset"]]
        assert sent["status"] == "SEND_OK"
        assert [row[name] for name in ("flag", "body", "msgId")] == [
            sent[name] for name in ("flag", "body", "msgId")
        ]
        assert (
            row["properties"].items()
            >= {name: value for name, value in sent["properties"].items() if name != "WAIT"}.items()
        )
    assert any(row.get("rawBody") for row in place.values() if row["physicalOffset"] >= _first_sent(session))


def _first_sent(session: Session) -> int:
    return int(goldens.expected(session.name)["commitLog"]["maxOffset"])


def test_we_read_what_the_store_classes_read_and_they_change_nothing(session: Session) -> None:
    """Every field, what a client does not learn too: tags codes and stored bodies."""
    assert ours(session.store) == by_place(session.opened_after.messages)
    assert not session.changed_after


def test_a_push_consumer_goes_on_from_the_group_s_offsets(session: Session) -> None:
    before, after = session.group_offsets
    table = goldens.expected(session.name)["consumerOffset"]["offsetTable"][f"{GROUP_TOPIC}@{GROUP}"]
    assert before == {(GROUP_TOPIC, int(queue)): offset for queue, offset in table.items()}
    wanted = [line for line in session.served_after if line["topic"] == GROUP_TOPIC]
    wanted = [line for line in wanted if line["queueOffset"] >= before[GROUP_TOPIC, line["queueId"]]]
    # the others are %RETRY%CG_some's
    own = [line for line in session.consumed if "RETRY_TOPIC" not in line["properties"]]
    assert as_client(own) == as_client(wanted)
    assert after == {
        key: stop for key, (_, stop) in _ends(session.served_after).items() if key[0] == GROUP_TOPIC
    }


def _ends(lines: list[Line]) -> dict[tuple[str, int], tuple[int, int]]:
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for line in lines:
        key = line["topic"], line["queueId"]
        start, stop = ends.get(key, (line["queueOffset"], 0))
        ends[key] = min(start, line["queueOffset"]), max(stop, line["queueOffset"] + 1)
    return ends


@pytest.mark.parametrize("name", [pytest.param("crash-5.5.0", marks=pytest.mark.whole), "crash-torn-5.5.0"])
def test_we_read_of_a_crashed_store_what_the_broker_serves_after_its_recovery(
    name: str, rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    store = copy_of(name)
    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    before, end = ours(store), MessageStore.open(str(store)).snapshot().log_end
    with rocketmq("5.5.0").broker(store, goldens.config(name)) as broker:
        client = broker.client()
        served = client.messages()
        sent = client.send("Orders", SENT, seed=3)
    assert as_client(before) == as_client(line for line in served if line["physicalOffset"] < end)
    after = ours(store)
    assert [line for line in after if line["physicalOffset"] < end] == before
    assert {line["msgId"] for line in sent} <= {
        line["msgId"] for line in after if line["physicalOffset"] >= end
    }


def test_recovery_of_a_crashed_store_is_seen_in_its_files(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    """The comparison of files that shows "nothing changed" elsewhere does see what the golden's own recovery
    did.
    """
    store = copy_of("crash-5.5.0")
    before = data_files(store)
    rocketmq("5.5.0").open_store(store, goldens.config("crash-5.5.0"))
    after = data_files(store)
    wanted = [
        change["file"]
        for change in goldens.expected("crash-5.5.0")["filesChangedByRecovery"]
        if change["change"] == "deleted"
    ]
    assert [name for name in before if name not in after] == [name for name in wanted if name in before] != []
    assert [name for name, digest in after.items() if before.get(name, digest) != digest] == []


def test_a_broker_cuts_behind_damage_and_what_it_has_cut_stays_hidden(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    """A broker loses what we read behind the damage. Killed after a few messages, it leaves the rest of that
    behind its new end.
    """
    name = "crash-5.5.0"
    store, config, java = copy_of(name), goldens.config(name), rocketmq("5.5.0")
    rows = sorted(goldens.expected_rows(name), key=lambda row: int(row["physicalOffset"]))
    damaged = rows[30]["physicalOffset"]
    overwrite(store / "commitlog" / "00000000000000000000", damaged + 95, b"\xff\xff")
    store_before = MessageStore.open(str(store))
    assert store_before.snapshot().log_end == goldens.expected(name)["commitLog"]["maxOffset"]
    with java.broker(store, config) as broker:
        client = broker.client()
        served = client.messages()
        assert sorted(line["physicalOffset"] for line in served) == [
            row["physicalOffset"] for row in rows[:30]
        ]
        client.send("Orders", SENT, seed=4)
        served = client.messages()
        broker.kill()
    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    found = ours(store, {line["topic"] for line in served})
    assert as_client(found) == as_client(served)
    assert any(
        "An earlier recovery" in problem.advice for problem in MessageStore.open(str(store)).diagnose()
    )
