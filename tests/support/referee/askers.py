"""The callers of the product: each asks one store what it holds. Those that write do so in a copy."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from glob import glob
from itertools import islice, pairwise, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format import MessageStore
from store_format.bookkeeping.ledger import FILLER_TOPIC
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import CommitResult, commit
from store_format.commit.options import CommitOptions
from store_format.commit.session import stage_messages
from store_format.names import is_system_topic
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.referee.answers import Answer, asked, rmqlog
from tests.support.referee.truth import Fate, QueueKey, Row, Stored, Truth, digest
from tests.support.staged import columns_of

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_BLANK = (1 << 31) - 1  # the size in an entry before a queue's first message (ConsumeQueue.fillPreBlank)
_PLACE = ("topic", "queueId", "queueOffset", "body")
_CONF = ["--broker-conf", "FILE"]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Counter[Row]:
    """The rows of batches, and how often each is there."""
    found: Counter[Row] = Counter()
    for batch in batches:
        columns = [batch[name].to_pylist() for name in _PLACE]
        found.update(
            (topic, queue_id, offset, digest(body))
            for topic, queue_id, offset, body in zip(*columns, strict=True)
        )
    return found


# ---- who reads --------------------------------------------------------------------------------------------


def batch_read(root: Path, truth: Truth, *, skips: bool = False) -> Answer:
    """What Spark's batch read does: the plan, and the work of all its tasks."""

    def ask(answer: Answer) -> Answer:
        given = {"path": str(root), "includeSystemTopics": "true"}
        if skips:
            given |= {"failOnDataLoss": "false", "mode": "DROPMALFORMED"}
        options = parse_read_options(given)
        scan = Scan(fields_from_options(options), options)
        batches = (batch for split in plan(options, cores=2).splits for batch in scan.read(split))
        return replace(answer, rows=rows_of(batches))

    name = "a batch read with failOnDataLoss=false" if skips else "a batch read"
    return asked(Answer(name, truth, skips=skips), root, ask)


def log_scan(root: Path, truth: Truth) -> Answer:
    """`MessageStore.scan`, which returns the messages of the commitlog, also those that are in no queue."""

    def ask(answer: Answer) -> Answer:
        return replace(answer, rows=rows_of(MessageStore.open(str(root)).scan(_PLACE)))

    return asked(Answer("scan", truth), root, ask)


def export(root: Path, truth: Truth, *, skips: bool = False) -> Answer:
    """`rmqlog export`."""
    run = rmqlog(
        root, "export", root, "-", "--format", "jsonl", "--all", "--columns", ",".join(_PLACE),
        *(["--skip-damage"] if skips else []),
    )  # fmt: skip
    answer = Answer("export --skip-damage" if skips else "export", truth, skips=skips)
    return replace(run.onto(answer), rows=_json_rows(run.out))


def _json_rows(lines: str) -> Counter[Row]:
    rows = map(json.loads, lines.splitlines())
    return Counter(
        (row["topic"], row["queueId"], row["queueOffset"], digest(base64.b64decode(row["body"])))
        for row in rows
    )


def find(root: Path, truth: Truth, key: str) -> Answer:
    """`rmqlog find` of a key."""
    run = rmqlog(root, "find", root, key, "--output", "jsonl", "--columns", ",".join(_PLACE))
    return replace(run.onto(Answer(f"find {key}", truth, key=key)), rows=_json_rows(run.out))


# ---- who counts -------------------------------------------------------------------------------------------


def verify(root: Path, truth: Truth) -> Answer:
    """`rmqlog verify`."""
    run = rmqlog(root, "verify", root, "--output", "json")
    answer = run.onto(Answer("verify", truth), 3)
    if not run.out:
        return answer
    (found,) = json.loads(run.out)
    return replace(
        answer,
        counts={name: found[name] for name in ("readable", "unread", "lostEntries", "logEnd")},
        text="\n".join(
            [
                found["verdict"],
                *(f"{problem['severity']}: {problem['advice']}" for problem in found["problems"]),
            ]
        ).replace(str(root), "STORE"),
        advice=found["next"],
    )


def info(root: Path, truth: Truth) -> Answer:
    """`rmqlog info`."""
    run = rmqlog(root, "info", root)
    answer = run.onto(Answer("info", truth))
    lines = dict(line.split(None, 1) for line in run.out.splitlines() if len(line.split(None, 1)) == 2)
    if answer.refusal or answer.bug:
        return answer
    messages = int(lines["messages"].split()[0].replace(",", ""))
    return replace(answer, counts={"messages": messages}, text=lines["verdict:"], advice=lines["next:"])


def ls(root: Path, truth: Truth) -> Answer:
    """`rmqlog ls`: the sum of its topics."""
    run = rmqlog(root, "ls", root, "--all", "--output", "jsonl")
    rows = [json.loads(line) for line in run.out.splitlines()]
    return replace(run.onto(Answer("ls", truth)), counts={"messages": sum(row["messages"] for row in rows)})


def lag(root: Path, truth: Truth) -> Answer:
    """`rmqlog lag`: the unread messages of each group and queue."""
    run = rmqlog(root, "lag", root, "--queues", "--output", "jsonl")
    rows = [json.loads(line) for line in run.out.splitlines()]
    counts = {f"{row['group']} {row['topic']}-{row['queueId']}": row["lagMessages"] for row in rows}
    return replace(run.onto(Answer("lag", truth)), counts=counts)


# ---- who changes a copy -----------------------------------------------------------------------------------


def write(
    root: Path,
    truth: Truth,
    place: Path,
    queues: Sequence[QueueKey] = (),
    settings: StoreSettings | None = None,
) -> list[Answer]:
    """A write of six messages to each of some queues of a copy, and what is read from it afterwards."""
    with _copied(root, place) as copy:
        after = truth.copy()
        messages = _new_messages(queues or _busy_queues(truth))
        answer, result = written(copy, truth, messages, settings=settings)
        if result is None:
            return [answer]
        after.appended(copy, messages, result)
        look(copy, after)
        later = [batch_read(copy, after), verify(copy, after)]
        return [answer, *(replace(each, asker=f"{each.asker} after a write") for each in later)]


def written(
    root: Path,
    truth: Truth,
    messages: Sequence[Message],
    *,
    settings: StoreSettings | None = None,
    sync: bool = False,
    now_ms: int = 1_700_000_300_000,
) -> tuple[Answer, CommitResult | None]:
    """A write to the store itself: what is to be said of it, and its result unless it refused."""
    before = _valid_entries(root, truth)
    has_queues = any((root / "consumequeue").glob("*/*/*"))
    done: list[CommitResult] = []

    def ask(answer: Answer) -> Answer:
        topics = {message.topic: 4 for message in messages}
        options = CommitOptions(clock=lambda: now_ms, new_topics=topics, sync=sync, settings=settings)
        staged = stage_messages(str(root), columns_of(messages), options)
        done.append(commit(str(root), [staged], options=options))
        starts = {queue: start for queue, (start, _) in done[0].queues.items()}
        now = entries_of(root)
        overwritten = sum(now.get(place) != entry for place, entry in before.items())
        # without any queue file it is not only the queues that it appends to that it has to look at
        left = sum(
            (each.queue in starts or not has_queues) and not _is_shown_by_the_log_alone(each, now)
            for each in wrong_entries(root, truth)
        )
        cut = sum(each.physical_offset >= done[0].start for each in truth.lost)
        counts = {"overwritten": overwritten, "unserved": _unserved(root, truth), "left": left, "cut": cut}
        return replace(answer, starts=starts, counts=counts)

    answer = asked(Answer("a write", truth), root, ask)
    return answer, done[0] if done else None


def _busy_queues(truth: Truth) -> list[QueueKey]:
    """The queues with the most messages, and those of which the fate of a message is not known."""
    others = {each.topic for each in truth.messages if not each.is_plain}
    kept = [each for each in truth.of(Fate.KEPT) if each.topic not in others and "%" not in each.topic]
    counts = Counter(each.queue for each in kept if not is_system_topic(each.topic))
    unknown = [each.queue for each in truth.of(Fate.UNKNOWN)]
    return list(dict.fromkeys([*[queue for queue, _ in counts.most_common(3)], *unknown[:1]])) or [("New", 0)]


def _new_messages(queues: Iterable[QueueKey]) -> list[Message]:
    return [
        Message(
            topic.encode(),
            f"new {number} of {topic}-{queue_id}".encode(),
            oracle.encode_properties({"KEYS": f"new-{number}"}),
            queue_id,
            born_timestamp=1_700_000_300_000,
        )
        for topic, queue_id in queues
        for number in range(6)
    ]


_Place = tuple[str, int, int]
_LOST = int.from_bytes(b"\0rmqlost")  # the tags code of such an entry
DAMAGED_BYTES = "bytes of messages that were given up are damaged"


def entries_of(root: Path, *, lost: bool = True) -> dict[_Place, tuple[int, int]]:
    """(topic, queue id, queue offset) -> (physical offset, size) of each entry that is one. Without `lost`
    not those that a recovery writes for lost messages.
    """
    found = {}
    for name in sorted(glob("*/*/*", root_dir=root / "consumequeue")):
        topic, queue_id, start = name.split("/")
        data = (root / "consumequeue" / name).read_bytes()
        units = np.frombuffer(data, ENTRY, len(data) // ENTRY.itemsize).tolist()
        for offset, (physical_offset, size, tags_code) in enumerate(units, int(start) // ENTRY.itemsize):
            if size not in (0, _BLANK) and (lost or tags_code != _LOST):
                found[topic, int(queue_id), offset] = (physical_offset, size)
    return found


def _valid_entries(root: Path, truth: Truth) -> dict[_Place, tuple[int, int]]:
    """The entries that lead to the message that was given their place."""
    right = {each.place: (each.physical_offset, each.size) for each in truth.of(Fate.KEPT)}
    return {place: entry for place, entry in entries_of(root).items() if right.get(place) == entry}


def look(root: Path, truth: Truth, *, is_cut: bool = False) -> None:
    """Notes what a full check finds: wrong entries, and messages that are lost. Lost messages at the end of
    the log are given up once a recovery has cleared their bytes; with `is_cut`, it says that it has cut
    the queues of those whose files are missing. So are those of which `.rmqlog/given-up.json` says it, and
    which have no entry any more: a broker gives their places to other messages.
    """
    truth.give_up(_is_cleared(root, truth, is_cut))
    noted, entries = given_up_places(root), entries_of(root)
    truth.give_up(
        lambda each: each.place in noted and entries.get(each.place, (-1, 0))[0] != each.physical_offset
    )
    wrong = wrong_entries(root, truth)
    lost, unknown = truth.lost, truth.of(Fate.UNKNOWN)
    truth.differences = [
        *([f"{len(wrong)} entries of whole messages are missing or wrong"] if wrong else []),
        *([f"{len(lost)} messages are lost"] if lost else []),
        *([f"{len(unknown)} messages may belong to a deleted topic"] if unknown else []),
        *([DAMAGED_BYTES] if _has_damaged_bytes(root, truth) else []),
        *(f"{queue} of expired messages is lost" for queue in _lost_expired_queues(root, truth)),
        *(f"{directory} lacks a file" for directory in _queues_with_gaps(root)),
    ]
    truth.unnamed = frozenset(each.row for each in lost if each.place not in entries)
    index = b"".join(path.read_bytes() for path in (root / "index").glob("*"))
    truth.unindexed = frozenset(
        each.row for each in lost if index and each.physical_offset.to_bytes(8) not in index
    )


def _lost_expired_queues(root: Path, truth: Truth) -> list[QueueKey]:
    """The queues without a directory whose messages are all expired, and which a group has read."""
    read = {(topic, queue_id) for (_, topic, queue_id), at in truth.committed.items() if at}
    expired = {each.queue for each in truth.of(Fate.EXPIRED)} & truth.next_offsets.keys() & read
    expired -= {each.queue for each in truth.messages if truth.fates[each] is not Fate.EXPIRED}
    return [queue for queue in sorted(expired) if not (root / f"consumequeue/{queue[0]}/{queue[1]}").exists()]


def _queues_with_gaps(root: Path) -> list[Path]:
    """The directories of queues that lack a file between others; its messages may all be expired."""
    found = []
    for directory in sorted((root / "consumequeue").glob("*/*")):
        files = [(int(path.name), path.stat().st_size) for path in sorted(directory.iterdir())]
        if any(start + size != following for (start, size), (following, _) in pairwise(files)):
            found.append(directory.relative_to(root))
    return found


def _has_damaged_bytes(root: Path, truth: Truth) -> bool:
    """Whether the log still has damaged bytes of messages that were given up: only a salvage fills them."""
    path = root / ".rmqlog/given-up.json"
    fillers = json.loads(path.read_text())["fillers"] if path.exists() else []
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir() if path.is_file()}
    others = [
        (each.physical_offset, each.physical_stop) for each in truth.of(Fate.KEPT, Fate.DELETED, Fate.UNKNOWN)
    ]

    def is_there(each: Stored) -> bool:
        start = max((start for start in files if start <= each.physical_offset), default=0)
        data = files.get(start, b"")[each.physical_offset - start :][: each.size]
        covered = (low <= each.physical_offset < high for low, high in (*fillers, *others))
        return any(data) and not any(covered)

    return any(map(is_there, truth.of(Fate.GIVEN_UP)))


def given_up_places(root: Path) -> set[_Place]:
    """The places in queues of which a recovery has noted that their messages are lost."""
    path = root / ".rmqlog/given-up.json"
    notes = json.loads(path.read_text())["messages"] if path.exists() else []
    return {(topic, queue_id, at) for topic, queue_id, low, high in notes for at in range(low, high)}


def wrong_notes(root: Path, truth: Truth) -> list[str]:
    """A sentence about whole messages that a recovery has noted as lost. Nobody takes a note back: a broker
    has given the places that have an entry to other messages, also where queues have lost entries since.
    """
    noted = set() if wrong_entries(root, truth) else given_up_places(root) - entries_of(root).keys()
    wrong = [each for each in truth.of(Fate.KEPT) if each.place in noted]
    return [f"given-up.json has {len(wrong)} whole messages, the first {wrong[0].place}"] if wrong else []


def _is_cleared(root: Path, truth: Truth, is_cut: bool) -> Callable[[Stored], bool]:
    """Whether a lost message is behind all whole ones, and a recovery has cleared its bytes."""
    last = max((each.physical_offset for each in truth.of(Fate.KEPT, Fate.DELETED, Fate.UNKNOWN)), default=-1)
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir() if path.is_file()}

    def is_cleared(each: Stored) -> bool:
        start = max((start for start in files if start <= each.physical_offset), default=0)
        data = files.get(start, b"")[each.physical_offset - start :][: each.size]
        was_there = truth.fates[each] is Fate.DAMAGED  # else its file was lost
        return each.physical_offset > last and not any(data) and (bool(data) or was_there or is_cut)

    return is_cleared


def wrong_entries(root: Path, truth: Truth) -> list[Stored]:
    """The whole messages of which the entry of the consume queue is missing or leads elsewhere."""
    entries = entries_of(root)
    others = {each.topic for each in truth.messages if not each.is_plain}
    return [
        each
        for each in truth.of(Fate.KEPT)
        if each.topic not in others and entries.get(each.place) != (each.physical_offset, each.size)
    ]


def _is_shown_by_the_log_alone(message: Stored, entries: dict[_Place, tuple[int, int]]) -> bool:
    """Whether a wrong entry fits between those around it: `recover` compares the queue with the whole log,
    and a write does not (docs/write.md).
    """
    topic, queue_id, offset = message.place
    there, after = entries.get(message.place), entries.get((topic, queue_id, offset + 1))
    before = entries.get((topic, queue_id, offset - 1), (0, 0))
    return there is not None and after is not None and sum(before) <= there[0] and sum(there) <= after[0]


def _unserved(root: Path, truth: Truth) -> int:
    """How many messages are in queues that topics.json does not have, so that no consumer reads them."""
    topics = json.loads((root / "config/topics.json").read_text())["topicConfigTable"]
    return sum(
        each.topic in topics and each.queue_id >= topics[each.topic]["readQueueNums"]
        for each in truth.of(Fate.KEPT)
        if each.is_plain
    )


def flushed(root: Path, truth: Truth) -> Answer:
    """`MessageStore.flush` of the store itself."""

    def ask(answer: Answer) -> Answer:
        MessageStore.open(str(root)).flush()
        return answer

    return asked(Answer("flush", truth), root, ask)


def flush(root: Path, truth: Truth, place: Path) -> list[Answer]:
    """`MessageStore.flush` of a copy, and what is read from it afterwards."""
    with _copied(root, place) as copy:
        answer = flushed(copy, truth)
        return [answer] if answer.refusal or answer.bug else [answer, *_after("flush", copy, truth)]


def recover_report(root: Path, truth: Truth, place: Path) -> list[Answer]:
    """What `rmqlog recover` shows to people."""
    run = rmqlog(root, "recover", root)
    return [replace(run.onto(Answer("the report of recover", truth), 3), text=run.out + run.err)]


def recover(
    root: Path, truth: Truth, place: Path, settings: StoreSettings | None = None, advised: str = ""
) -> list[Answer]:
    """`rmqlog recover`: what it shows, and what it says and what is read of a copy that it changes.

    If `advised`, the command that `verify` names, is this one, it is carried out with the options of the
    advice, and the answer is that of the advice, too.
    """
    words = shlex.split(advised)[1:]
    is_advice = words in (["recover", str(root)], ["recover", str(root), *_CONF])
    given = () if is_advice and len(words) == 2 else ("--broker-conf", _broker_conf(place, settings))
    shown = rmqlog(root, "recover", root, *given)
    named = re.search("^next: +(.*)$", shown.out, re.MULTILINE)
    advice = "" if named is None else named[1]
    answers = [replace(shown.onto(Answer("recover", truth), 3), text=shown.out, advice=advice)]
    with _copied(root, place) as copy:
        done = rmqlog(copy, "recover", copy, "--apply", *given)
        answer = replace(done.onto(Answer("recover --apply", truth), 3), text=done.out + done.err)
        answers += [replace(answer, asker=_name_of(advised, root))] if is_advice else []
        if answer.refusal or answer.bug:
            return [*answers, answer]
        answer = replace(answer, counts={"left": len(wrong_entries(copy, truth))})
        return [*answers, answer, *_after("recover --apply", copy, truth, done.out)]


def salvage(
    root: Path, truth: Truth, place: Path, settings: StoreSettings | None = None, advised: str = ""
) -> list[Answer]:
    """`rmqlog recover --into NEW --salvage`, and what is read from the new store; `advised` as above."""
    is_advice = _is_salvage(advised, root)
    given = () if is_advice else ("--broker-conf", _broker_conf(place, settings))
    with _copied(root, place) as copy:
        new = copy.with_name("salvaged")
        done = rmqlog(copy, "recover", copy, "--into", new, "--salvage", "--apply", *given)
        name = "recover --into NEW --salvage --apply"
        answer = replace(done.onto(Answer(name, truth, skips=True), 3), text=done.out + done.err)
        answers = [answer]
        answers += [replace(answer, asker=_name_of(advised, root), skips=False)] if is_advice else []
        if answer.refusal or answer.bug:
            return answers
        return [*answers, *_after(name, new, truth, done.out)]


def _is_salvage(advised: str, root: Path) -> bool:
    words = shlex.split(advised)
    return words[1:4] + words[5:] == ["recover", str(root), "--into", "--salvage"]


def _name_of(advised: str, root: Path) -> str:
    return f"the advice {advised.replace(str(root), 'STORE')!r}"


def _broker_conf(place: Path, settings: StoreSettings | None) -> Path:
    """The configuration file of the store's broker."""
    conf = place / "broker.conf"
    size = settings.mapped_file_size_consume_queue if settings is not None else 6_000_000
    conf.write_text(f"mappedFileSizeConsumeQueue={size}\n")
    return conf


def advice(
    root: Path, truth: Truth, place: Path, settings: StoreSettings | None = None, advised: str | None = None
) -> list[Answer]:
    """The command that `verify` names as the next one, carried out on a copy; and what is read afterwards.
    Nothing if it is `advised`, and `recover` or `salvage` above has carried it out.

    `--broker-conf FILE` asks for the configuration file of the store's broker.
    """
    command = verify(root, truth).advice if advised is None else advised
    words = shlex.split(command)
    if words[1:2] != ["recover"]:  # it changes nothing
        return []
    if advised is not None and (
        words[2:] in ([str(root)], [str(root), *_CONF]) or _is_salvage(advised, root)
    ):
        return []
    with _copied(root, place) as copy:
        words = shlex.split(command.replace(str(root), str(copy)))
        if words[-2:] == _CONF:
            words[-1] = str(_broker_conf(place, settings))
        done = rmqlog(copy, *words[1:], "--apply")
        answer = replace(done.onto(Answer(_name_of(command, root), truth), 3), text=done.out + done.err)
        if answer.refusal or answer.bug:
            return [answer]
        result = Path(words[words.index("--into") + 1]) if "--into" in words else copy
        return [answer, *_after("the advice", result, truth, done.out)]


def _after(what: str, root: Path, truth: Truth, report: str = "") -> list[Answer]:
    """The answers about a store that was recovered: all messages that were whole are there, and no queue
    lacks an entry. `report` is the table of the recovery, which says where messages were given up.
    """
    after = truth.copy()
    if " restores the numbers of " in report:
        restore(root, after)
    if re.search(r"\bfills ([\d,]+ )?damaged place", report):
        after.give_up()
    look(root, after, is_cut=re.search(r"\bremoves ([\d,]+ )?entr(y|ies) behind the end", report) is not None)
    after.is_crashed = False
    return [
        replace(answer, asker=f"{answer.asker} after {what}")
        for answer in (batch_read(root, after), verify(root, after))
    ]


def restore(root: Path, truth: Truth) -> None:
    """Notes damaged messages that are whole in a salvaged copy: their entries showed the right numbers."""
    for each in truth.of(Fate.DAMAGED):
        files = [path for path in (root / "commitlog").iterdir() if int(path.name) <= each.physical_offset]
        path = max(files)
        with suppress(oracle.OracleError):
            at = each.physical_offset - int(path.name)
            found = oracle.decode_message(path.read_bytes(), at, int(path.name))
            is_own = (found.topic, found.queue_id, found.queue_offset) == each.place
            if is_own or not (each.is_plain or found.topic == FILLER_TOPIC):
                truth.fates[each] = Fate.KEPT


@contextmanager
def _copied(root: Path, place: Path) -> Iterator[Path]:
    """A copy of the store below `place`, where everything is removed afterwards."""
    directory = Path(tempfile.mkdtemp(dir=place))
    try:
        yield shutil.copytree(root, directory / "store", symlinks=True)
    finally:
        shutil.rmtree(directory)


# ---- all of them ------------------------------------------------------------------------------------------


def ask_all(
    root: Path,
    truth: Truth,
    place: Path,
    *,
    keys: int = 3,
    write_to: Sequence[QueueKey] = (),
    settings: StoreSettings | None = None,
) -> list[Answer]:
    """Asks everybody once; `find` for so many keys. A write chooses the queues `write_to`, or others."""
    verified = verify(root, truth)
    answers = [
        batch_read(root, truth),
        batch_read(root, truth, skips=True),
        log_scan(root, truth),
        export(root, truth),
        export(root, truth, skips=True),
        *(find(root, truth, key) for key in some_keys(truth, keys)),
        verified,
        info(root, truth),
        ls(root, truth),
        lag(root, truth),
    ]
    answers += write(root, truth, place, write_to, settings)
    answers += salvage(root, truth, place, settings, verified.advice)
    answers += recover(root, truth, place, settings, verified.advice)
    answers += advice(root, truth, place, settings, verified.advice)
    return answers


def some_keys(truth: Truth, count: int) -> list[str]:
    """Keys of messages of every fate, the newest message of each fate first."""
    by_fate: dict[Fate, list[str]] = {}
    for each in reversed(truth.messages):
        if each.keys and each.is_plain and each.queue_offset >= 0:
            by_fate.setdefault(truth.fates[each], []).append(each.keys[0])
    rounds = zip_longest(*by_fate.values())
    found = dict.fromkeys(key for keys in islice(rounds, count) for key in keys if key is not None)
    return list(found)[:count]
