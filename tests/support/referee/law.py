"""The law, which docs/architecture.md has among its invariants: what a real broker serves of a store decides
what the product may say of it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmq_spark.cli.exit_codes import USAGE
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.session import stage_messages
from store_format.layouts import OFFSET_MAX
from store_format.metadata.read import BrokerConf
from tests.interop.referee import Pulled, QueueKey, Verdict, body_of
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.referee.answers import Answer, asked, rmqlog
from tests.support.referee.truth import Truth
from tests.support.staged import columns_of, settings_from

Place = tuple[str, int, int]  # topic, queue id, queue offset
Body = tuple[int, int]  # CRC and length
_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "body", "storedTopic", "sysFlag")
_OF_EVERY_BROKER = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
_OFFSETS_MAX = 4096
_INNER_BATCH = 0x80  # MessageSysFlag.INNER_BATCH_FLAG


@dataclass(frozen=True)
class Case:
    """A store, and what is known of it without looking."""

    root: Path
    name: str  # its kind
    conf: Mapping[str, str] = field(default_factory=dict)
    told: tuple[str, ...] = ()  # what happened to it
    is_damaged: bool = False
    may_ask: bool = False  # nothing on disk shows whether a topic was deleted or its queues were lost
    must_ask: bool = False
    logs: tuple[str, ...] = ()  # directories of the commitlog, if it has several
    # The bodies of a commit that was killed: readers have all of them or none (docs/write.md).
    pending: frozenset[Body] = frozenset()
    rerun: Callable[[Path], object] | None = None  # commits them with their key again
    delivery: Mapping[str, int] = field(default_factory=dict)  # UNIQ_KEY -> tags code of delayed messages


@dataclass(frozen=True)
class Breach:
    """What the product does against the law."""

    law: int
    kind: str  # a few words, the same for all breaches of this kind
    text: str

    def __str__(self) -> str:
        return f"law {self.law}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Rows:
    """What a batch read gave: the messages at each place, and what it said."""

    at: Mapping[Place, list[tuple[int, Body]]]  # physical offset and body
    batches: frozenset[Place]
    refusal: str
    bug: str
    warnings: tuple[str, ...]

    @property
    def asks(self) -> bool:
        return "unfiledQueues" in " ".join([self.refusal, *self.warnings])

    @property
    def is_silent(self) -> bool:
        return not self.refusal and not self.warnings


def read(case: Case, root: Path, *, skips: bool, unfiled: str = "") -> Rows:
    """A batch read as Spark does it. A question about queues without files is answered by `unfiled`."""
    given = {"path": str(root), "includeSystemTopics": "true"}
    if skips:
        given |= {"failOnDataLoss": "false", "mode": "DROPMALFORMED"}
    if unfiled:
        given["unfiledQueues"] = unfiled
    if case.logs:
        given["storePathCommitLog"] = ",".join(_logs(case, root))
    found: dict[Place, list[tuple[int, Body]]] = {}
    batches = set[Place]()

    def ask(answer: Answer) -> Answer:
        options = parse_read_options(given | {"columns": ",".join(_COLUMNS)})
        scan = Scan(fields_from_options(options), options)
        for split in plan(options, cores=2).splits:
            for batch in scan.read(split):
                columns = [batch[name].to_pylist() for name in _COLUMNS]
                for topic, queue_id, at, physical, body, _, sys_flag in zip(*columns, strict=True):
                    found.setdefault((topic, queue_id, at), []).append((physical, body_of(body)))
                    if sys_flag & _INNER_BATCH:
                        batches.add((topic, queue_id, at))
        return answer

    answer = asked(Answer("read", Truth()), root, ask)
    return Rows(found, frozenset(batches), answer.refusal, answer.bug, answer.warnings)


@dataclass(frozen=True)
class Verified:
    code: int
    verdict: str
    readable: int
    lost: int
    problems: tuple[str, ...]
    next: str
    failure: str
    start: str = ""  # whether a broker may start

    @property
    def says_none_lost(self) -> bool:
        return "none lost" in self.verdict


def verify(case: Case, root: Path) -> Verified:
    run = rmqlog(root, "verify", root, "--output", "json", *_log_words(case, root))
    if not run.out.strip():
        return Verified(run.code, "", 0, 0, (), "", run.err.strip())
    (found,) = json.loads(run.out)
    problems = tuple(
        f"{each['severity']}: expected {each['expected']}: {each['advice']}" for each in found["problems"]
    )
    readable, lost = (int(found.get(name) or 0) for name in ("readable", "lostEntries"))
    start = f"{found['mayStart']}: {found['startCause']}"
    return Verified(run.code, found["verdict"], readable, lost, problems, found["next"] or "", "", start)


def _logs(case: Case, root: Path) -> list[str]:
    return [log.replace(str(case.root), str(root)) for log in case.logs]


def _log_words(case: Case, root: Path) -> list[str]:
    return [word for log in _logs(case, root) for word in ("--commitlog", log)]


# ---- laws 1, 2 and 4: the store as it is ------------------------------------------------------------------


def breaches(case: Case, verdict: Verdict) -> tuple[Rows, list[Breach]]:
    """What a read that skips damage gives, and what the product says of a store against what a broker serves
    of it (`Verdict` of tests.interop.referee).
    """
    strict, loose = read(case, case.root, skips=False), read(case, case.root, skips=True)
    asks = strict.asks or loose.asks
    if asks:
        strict = read(case, case.root, skips=False, unfiled="read")
        loose = read(case, case.root, skips=True, unfiled="read")
    # a process warns once of each state of a file
    loose = replace(loose, warnings=(*loose.warnings, *strict.warnings))
    said = verify(case, case.root)
    found = [
        *_first_law(case, verdict, "a read", strict),
        *_first_law(case, verdict, "a read with DROPMALFORMED", loose),
        *_second_law(verdict, "a read", strict, asks, _named_cut(case, said)),
        *_second_law(verdict, "a read with DROPMALFORMED", loose, asks, _named_cut(case, said)),
        *_fourth_law(case, verdict, strict, loose, said, asks),
        *_sixth_law(case, verdict, loose, said, asks),
    ]
    if asks and not case.may_ask and not case.is_damaged:
        found.append(Breach(1, "a read asks about a store without damage", ""))
    # without a question it gives what a broker that recovers makes queues of
    if case.must_ask and not case.is_damaged and not asks and loose.at.keys() != verdict.messages.keys():
        found.append(Breach(1, "a read does not ask whether a topic was deleted", said.verdict))
    return loose, found


def _same(rows: Sequence[tuple[int, Body]], served: Pulled, *, is_batch: bool) -> bool:
    return len(rows) == 1 and rows[0][0] == served.physical_offset and (is_batch or rows[0][1] == served.body)


def _first_law(case: Case, verdict: Verdict, asker: str, rows: Rows) -> Iterator[Breach]:
    if rows.bug:
        yield Breach(1, f"{asker} ends with an internal error", rows.bug[:200])
        return
    if rows.refusal:
        damage = case.is_damaged or _hands_out_damage(verdict)
        if not damage and verdict.messages:
            yield Breach(1, f"{asker} refuses a store without damage", rows.refusal[:300])
        return
    missing, other = [], []
    bodies = {body for there in rows.at.values() for _, body in there}
    pending = case.pending if not case.pending & bodies else frozenset()
    if pending < case.pending and not case.pending <= bodies and rows.is_silent:
        part = f"{len(case.pending & bodies)} of {len(case.pending)} messages"
        yield Breach(1, f"{asker} silently gives a part of a commit", part)
    for place, each in verdict.client.items():
        if each.body in pending:
            continue
        there = rows.at.get(place, [])
        if not there and not each.is_whole and not rows.is_silent:
            continue  # damage that is counted
        if not there:
            missing.append(place)
        elif not _same(there, each, is_batch=place in rows.batches) and (
            rows.is_silent or not _is_refiled(case.root, place, there, each)
        ):
            other.append(f"{shown(place)} gives {there}, a broker {each.physical_offset}")
    how = "silently" if rows.is_silent else "with a warning"
    if missing:
        yield Breach(1, f"{asker} {how} lacks served messages", shown_all(missing, rows))
    if other:
        yield Breach(1, f"{asker} {how} gives another message", f"{len(other)}: {other[0]}")
    gaps = [
        (*queue, at)
        for queue, served in verdict.client_queues.items()
        for at, each in served.pulled.items()
        if not each.is_served
        and (*queue, at) not in rows.at
        and at not in served.expired
        and not _is_beside(queue, each, rows)
    ]
    if gaps and rows.is_silent and not pending:
        yield Breach(1, f"{asker} silently leaves out what a broker hands out damaged", shown_all(gaps, rows))


def _is_beside(queue: QueueKey, handed: Pulled, rows: Rows) -> bool:
    """Whether a broker hands out a whole record before or behind all that a read gives of a queue, and the
    place that the record claims has a message: a second one with offset 0 is filed behind the others
    (ConsumeQueue.putMessagePositionInfo), and the entry of an expired message may lead to any record.
    """
    mine = [at for topic, queue_id, at in rows.at if (topic, queue_id) == queue]
    return handed.crc and handed.own in mine and not min(mine) < handed.at < max(mine)


def _is_refiled(root: Path, place: Place, there: Sequence[tuple[int, Body]], served: Pulled) -> bool:
    """Whether laws 1 and 3 contradict each other at a place of a simple queue: a read gives the message that
    the entry of the place leads to, and a broker that starts gives the place to a later message, `served`.

    ConsumeQueue.recover (5.5.0) reads the last three files of a queue, and ends the queue at the first entry
    of zeros. Then the broker files the messages that follow the last one of all queues, over the entries
    behind the zeros. `test_a_right_entry_behind_zeros_is_overwritten` in tests/interop/test_two_messages.py
    has the entries before and after.
    """
    topic, queue_id, at = place
    entries = {
        (int(file.name) + byte) // 20: file.read_bytes()[byte : byte + 20]
        for file in sorted((root / "consumequeue" / topic / str(queue_id)).glob("[0-9]" * 20))[-3:]
        if file.is_file()
        for byte in range(0, file.stat().st_size, 20)
    }
    return (
        len(there) == 1
        and there[0][0] < served.physical_offset
        and entries.get(at, b"")[:8] == there[0][0].to_bytes(8)
        and any(before < at and not any(entry) for before, entry in entries.items())
    )


def _hands_out_damage(verdict: Verdict) -> bool:
    return bool(verdict.failure) or any(
        not each.is_served and at not in served.expired
        for served in verdict.queues.values()
        for at, each in served.pulled.items()
    )


def _named_cut(case: Case, said: Verified) -> int:
    """The physical offset from which on `verify` names the messages that a broker's start cuts. A read of a
    store that was stopped in order does not walk the log (docs/howto-recover.md).
    """
    found = re.search(r"a broker start will cut [0-9,]+ bytes at ([0-9]+), with ", said.verdict)
    return OFFSET_MAX if found is None or (case.root / "abort").exists() else int(found[1])


def _second_law(verdict: Verdict, asker: str, rows: Rows, asks: bool, cut: int) -> Iterator[Breach]:
    twice = [place for place, there in rows.at.items() if len(there) > 1]
    if twice:
        yield Breach(2, f"{asker} gives a place twice", shown_all(twice, rows))
    if verdict.failure or asks or not rows.is_silent:
        return
    beyond = [
        place
        for place, there in rows.at.items()
        if place not in verdict.messages and place not in rows.batches and there[0][0] < cut
    ]
    if beyond:
        yield Breach(2, f"{asker} silently gives what a broker does not serve", shown_all(beyond, rows))


def _fourth_law(
    case: Case, verdict: Verdict, strict: Rows, loose: Rows, said: Verified, asks: bool
) -> Iterator[Breach]:
    if said.failure:
        yield Breach(4, "verify checks nothing", f"exit {said.code}: {said.failure[:200]}")
        return
    sound = said.verdict.startswith("sound") and said.code == 0
    if sound and strict.refusal and not strict.asks:
        yield Breach(
            4,
            "verify says sound, a read with default options refuses",
            f"{said.verdict!r}: {strict.refusal[:160]}",
        )
    missing = [
        place
        for place, each in verdict.client.items()
        if place not in loose.at and each.body not in case.pending
    ]
    if said.says_none_lost and missing:
        yield Breach(
            4,
            "verify says none lost, and a read lacks served messages",
            f"{said.verdict!r}: {shown_all(missing, loose)}",
        )
    bodies = {body for there in loose.at.values() for _, body in there}
    is_hidden = bool(case.pending) and not case.pending & bodies  # they claim the offsets that a broker gives
    gaps = [] if is_hidden else list(_unclaimed(verdict, loose))
    if said.says_none_lost and gaps and not strict.asks and not loose.refusal:
        yield Breach(
            4,
            "verify says none lost, and an offset has no message",
            f"{said.verdict!r}: {shown_all(gaps, loose)}",
        )
    # a message is in several light queues, and an inner batch has several messages
    units = {(there[0][0], place[2] if place in loose.batches else 0) for place, there in loose.at.items()}
    if not asks and not loose.refusal and not strict.refusal and said.readable != len(units):
        how = "silently " if strict.is_silent else ""
        more = "more" if said.readable < len(units) else "less"
        words = f"a read {how}returns {more} than verify counts as readable"
        yield Breach(4, words, f"{len(units)} and {said.readable}: {said.verdict!r}")
    # verify also fails for messages in queues behind readQueueNums, which no client asks for
    is_all_served = strict.at.keys() <= verdict.client.keys() and not _hands_out_damage(verdict)
    if not case.is_damaged and not case.may_ask and is_all_served and said.code:
        yield Breach(
            4,
            "verify finds damage in a store without damage",
            f"exit {said.code} {said.verdict!r} {list(said.problems)[:2]}",
        )
    unserved = [
        place for place in strict.at if place not in verdict.client and place[0] not in _OF_EVERY_BROKER
    ]
    if sound and unserved and not strict.refusal and "warning" not in said.verdict:
        yield Breach(
            4,
            "verify says sound, and no client of a broker gets what a read gives",
            shown_all(unserved, strict),
        )
    if "--cut-after-damage" in said.next and verdict.messages:
        yield Breach(3, "the next command takes served messages away", said.next)


def _sixth_law(case: Case, verdict: Verdict, loose: Rows, said: Verified, asks: bool) -> Iterator[Breach]:
    """A broker may start if it serves each message that a read gives. If a read asks, this is not known."""
    if said.failure or loose.refusal:
        return
    may_lack_light = any("ran without enableLmq" in each for each in said.problems)
    lacking = [
        place
        for place, there in loose.at.items()
        if not _is_handed_out(verdict, place, there) and not (may_lack_light and place[0].startswith("%LMQ%"))
    ]
    may = not verdict.failure and not lacking
    if said.start.startswith("yes") and not may:
        yield Breach(
            6,
            "a broker may start, and does not serve what a read gives",
            f"{verdict.failure[:100]} {shown_all(lacking, loose)}; {said.verdict!r}",
        )
    if said.start.startswith("unknown") and not asks and not (case.root / "abort").exists():
        yield Breach(6, "it is not known whether a broker may start, and a read does not ask", said.start)
    # A filter by tag misses a message whose entry has another tags code; a wrong entry gives another message.
    is_wrong = _hands_out_damage(verdict) or " no read returns " in said.verdict
    is_wrong |= "with the last commitlog files" in said.verdict  # which may come back
    is_wrong |= any(
        re.search("tagsCode|Do not start a broker|before a broker starts|, a broker does not: ", p)
        for p in said.problems
    )
    if said.start.startswith("no") and may and not is_wrong:
        yield Breach(6, "a broker may not start, and serves all", f"{said.start!r}; {said.verdict!r}")


def _is_handed_out(verdict: Verdict, place: Place, there: Sequence[tuple[int, Body]]) -> bool:
    """Whether clients get what a read gives; of topics that no client reads, the broker itself."""
    served = (verdict.messages if place[0] in _OF_EVERY_BROKER else verdict.client).get(place)
    return served is not None and served.is_whole and any(served.physical_offset == at for at, _ in there)


def _unclaimed(verdict: Verdict, rows: Rows) -> Iterator[Place]:
    """The offsets between a broker's ends of a queue at which a read returns no message.

    A message with offset 0 that a read returns is not lost where a broker files it once more when it starts.
    Nor is one `_is_beside` the others, or a place that a broker counts in a blank file behind them.
    """
    for queue, served in verdict.client_queues.items():
        twice = {physical_offset for physical_offset, _ in rows.at.get((*queue, 0), ())}
        stop = max((at for *name, at in rows.at if tuple(name) == queue), default=-1)
        for at in range(served.min_offset, min(served.max_offset, served.min_offset + _OFFSETS_MAX)):
            each = served.pulled.get(at)
            is_none = each is not None and (
                (at and each.physical_offset in twice)
                or _is_beside(queue, each, rows)
                or (not each.size and at > stop)
            )
            if (*queue, at) not in rows.at and at not in served.expired and not is_none:
                yield (*queue, at)


# ---- law 3: after the product has changed a copy ----------------------------------------------------------

NOTHING = "nothing to do"
BUG = "this is a bug of rmqlog"
LEGS = ("recover", "write", "services", "next", "salvage")
_RUN_AGAIN = "the killed commit ran again"


def changed(case: Case, copy: Path, leg: str, conf: Path) -> tuple[str, str]:
    """Lets the product change a copy, or make it; returns what it said, and the refusal."""
    if leg == "write":
        write = _written if case.rerun is None else _run_again
        answer = asked(Answer("a write", Truth()), copy, lambda answer: write(case, copy, answer))
        return answer.text, answer.refusal or (answer.bug and f"{BUG}: {answer.bug}")
    words = _words(case, copy, leg, conf)
    if not words:
        return "", NOTHING
    run = rmqlog(copy, *words)
    if run.code == USAGE and leg in ("recover", "salvage"):  # it asks for what the store does not show
        run = rmqlog(copy, *words, "--broker-conf", conf)
    # damage may be the reason that no copy was made
    is_done = run.code in (0, 1, 3) and copy.exists()
    return run.out + run.err, "" if is_done else run.err.strip()[-300:]


def tree(root: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _words(case: Case, copy: Path, leg: str, conf: Path) -> list[str]:
    logs = _log_words(case, copy)
    if leg == "salvage":
        source = [str(case.root), *_log_words(case, case.root)]
        return ["recover", *source, "--into", str(copy), "--salvage", "--apply"]
    if leg == "recover":
        return ["recover", str(copy), "--apply", *logs]
    if leg == "services":
        return ["services", str(copy), "--apply", "--once", "--broker-conf", str(conf), *logs]
    words = shlex.split(verify(case, copy).next.replace("STORE", str(copy)))[1:]
    if words[:1] not in (["recover"], ["append"], ["write"]) or "--into" in words:
        return []
    return [*(str(conf) if word == "FILE" else word for word in words), "--apply"]


def _written(case: Case, copy: Path, answer: Answer) -> Answer:
    queues = [("A", 0), ("New", 0)]
    messages = [
        Message(
            topic.encode(), f"new {number} of {topic}".encode(), oracle.encode_properties({"KEYS": "new"}),
            queue_id, born_timestamp=1_700_000_300_000,
        )
        for topic, queue_id in queues
        for number in range(3)
    ]  # fmt: skip
    options = CommitOptions(
        clock=lambda: 1_700_000_300_000, new_topics={"A": 2, "New": 1}, sync=False,
        log_directories=tuple(_logs(case, copy)), settings=settings_from(case.conf),
        conf=BrokerConf.of(dict(case.conf), "broker.conf"),
    )  # fmt: skip
    commit(str(copy), [stage_messages(str(copy), columns_of(messages), options)], options=options)
    return replace(answer, text="written")


def _run_again(case: Case, copy: Path, answer: Answer) -> Answer:
    assert case.rerun is not None
    case.rerun(copy)
    return replace(answer, text=_RUN_AGAIN)


def third_law(
    case: Case, leg: str, before: Verdict, after: Verdict, rows: Rows, rows_after: Rows, text: str
) -> Iterator[Breach]:
    """`before` and `after` are what a broker serves of the store and of the changed copy; `rows` what a read
    gave.
    """
    gone = [
        place
        for place, each in before.client.items()
        if not _is_there(after, place, each)
        and not (place in after.messages and _is_refiled(case.root, place, rows.at.get(place, ()), each))
    ]
    late = [
        place
        for place, each in after.messages.items()
        if place[0] == "SCHEDULE_TOPIC_XXXX"
        and case.delivery.get(each.uniq_key, each.entry[1]) != each.entry[1]
    ]
    if late:
        yield Breach(
            3,
            f"{leg} changes the time of delivery",
            f"{len(late)}, the first {shown(late[0])}; {last_line(text)}",
        )
    if text == _RUN_AGAIN:
        counts = Counter(each.body for each in after.messages.values() if each.body in case.pending)
        if set(counts.values()) != {1} or len(counts) < len(case.pending):
            words = f"{sum(counts.values())} messages with {len(counts)} of {len(case.pending)} bodies"
            yield Breach(3, "a commit that runs again is not there once", words)
    if after.failure and before.client:
        yield Breach(3, f"{leg}: a broker does not start any more", after.failure[:200])
    elif gone:
        yield Breach(
            3,
            f"{leg} takes served messages away",
            f"{len(gone)}, the first {shown(gone[0])}; {last_line(text)}",
        )
    if rows_after.refusal and not rows.refusal:
        yield Breach(3, f"{leg}: a read refuses afterwards", rows_after.refusal[:200])
        return
    hidden = [place for place in rows.at if place not in rows_after.at]
    if hidden and not rows_after.refusal:
        yield Breach(
            3,
            f"{leg} takes messages away that a read gave",
            f"{len(hidden)}, the first {shown(hidden[0])}; {last_line(text)}",
        )


def _is_there(after: Verdict, place: Place, each: Pulled) -> bool:
    there = after.messages.get(place)
    return there is not None and there.body == each.body


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def shown(place: Place) -> str:
    return f"{place[0]}-{place[1]} {place[2]}"


def shown_all(places: Sequence[Place], rows: Rows) -> str:
    counts = Counter((topic, queue_id) for topic, queue_id, _ in places)
    first = ", ".join(shown(place) for place in sorted(places)[:4])
    said = f"; {rows.warnings[0][:160]}" if rows.warnings else ""
    return f"{len(places)} in {len(counts)} queues: {first}{said}"
