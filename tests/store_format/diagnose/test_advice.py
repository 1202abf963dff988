"""Every advice that `diagnose` gives, followed on a damaged store: no message that could be read before is
lost by it.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rmq_spark.cli.exit_codes import PARTIAL
from rmq_spark.cli.main import main
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.diagnose import diagnose
from store_format.errors import OptionError, StoreError
from store_format.message.columns import decode_options_of
from store_format.read.log_reader import LogReader
from store_format.read.store import Queue
from store_format.read.tolerance import Tolerance
from tests.support import goldens
from tests.support.doc_pages import Session, blocks, read_page
from tests.support.file_edits import edited_json, flip, harm, overwrite
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered
from tests.support.store_files import write_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3] / "store_format"
STORE = "basic-5.5.0"
CQ_FILE = "consumequeue/Orders/1/00000000000000002000"
COMPACTED = "compaction/compactionLog/Stock/0/00000000000000000000"
LAST_LOG = "commitlog/00000000000000786432"
COLUMNS = ["topic", "queueId", "queueOffset", "physicalOffset", "bodyCRC", "msgId"]

Row = tuple[object, ...]
Step = Callable[[Path, Path], object] | str  # (the store, the undamaged golden), or a text for `harm`


# ---- which advice there is ---------------------------------------------------------------------------------


def _modules() -> list[Path]:
    rooms = (*(ROOT / "diagnose").glob("*.py"), *(ROOT / "survey").glob("*.py"))
    return [*sorted(rooms), ROOT / "commitlog/log.py"]


def _texts(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, names)
        yield from _texts(node.orelse, names)
    else:
        assert isinstance(node, ast.Name | ast.Attribute), f"an advice of another kind: {ast.unparse(node)}"
        for value in names[node.attr if isinstance(node, ast.Attribute) else node.id]:
            yield from _texts(value, names)


def all_advice() -> set[str]:
    """The texts in all calls of `Findings.add` and `add_error`."""
    trees = [ast.parse(path.read_text()) for path in _modules()]
    names: dict[str, list[ast.expr]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and "advice" in target.id.lower():
                names.setdefault(target.id, []).append(node.value)
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("findings.add", "findings.add_error")
            ):
                found.update(_texts(node.args[-1], names))  # what comes behind it is given by name
    return found


# ---- what can be read --------------------------------------------------------------------------------------


def rows(root: Path) -> set[Row]:
    """Every message of every queue that can be read around damage; none of a store that is refused."""
    found: set[Row] = set()
    try:
        store = MessageStore.open(str(root), unfiled_queues="read")
        queues = store.queues()
    except (StoreError, OSError):
        return found
    for queue in queues:
        found |= _rows_of(store, queue)
    return found


def _rows_of(store: MessageStore, queue: Queue) -> set[Row]:
    reader = store.reader(
        decode_options_of(COLUMNS, True), Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    )
    if queue.scanned is None:
        batches = reader.read([queue.piece()])
    else:
        scan = LogReader(reader, [queue.piece()], {(queue.topic, queue.queue_id): queue.scanned})
        batches = scan.read(store.log.min_offset, queue.scanned.physical_stop)
    return {tuple(row.values()) for batch in batches for row in batch.select(COLUMNS).to_pylist()}


# ---- how stores are damaged, and how advice is followed ----------------------------------------------------


@dataclass(frozen=True)
class Case:
    """`harm` makes `diagnose` give the advice; `follow` does what it says, and returns the store to read if
    it is another one.
    """

    advice: str
    harm: Step
    follow: Step
    store: str = STORE


def blank_file(root: Path, _: Path) -> None:
    """A power loss came before the first entry of the file was flushed."""
    last = max((root / CQ_FILE).parent.iterdir())
    size = last.stat().st_size
    (last.parent / f"{int(last.name) + size:020d}").write_bytes(bytes(size))


def without_blank_file(root: Path, _: Path) -> None:
    max((root / CQ_FILE).parent.iterdir()).unlink()


def damaged_head(root: Path, _: Path) -> None:
    overwrite(root / "dledger-n0/data" / f"{65536:020d}", 24, b"\xff")  # of the first entry, its own place


def restored(place: str) -> Step:
    def follow(root: Path, whole: Path) -> None:
        path = root / place
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.copytree(whole / place, path) if (whole / place).is_dir() else shutil.copy(whole / place, path)

    return follow


def moved_out(*places: str) -> Step:
    def follow(root: Path, _: Path) -> None:
        for place in places:
            (root / place).rename(root.parent / f"moved-{place.replace('/', '-')}")

    return follow


def copied(root: Path, _: Path) -> Path:
    return Path(shutil.copytree(root, root.parent / "copy"))


def carry_out(step: Step, root: Path, whole: Path) -> object:
    if not isinstance(step, str):
        return step(root, whole)
    harm(root, step)
    return None


def both(*steps: Step) -> Step:
    def step(root: Path, whole: Path) -> None:
        for each in steps:
            carry_out(each, root, whole)

    return step


def read_around(root: Path, _: Path) -> None:
    """`rows` does, always."""


def linked(root: Path, whole: Path) -> None:
    (root / LAST_LOG).unlink()
    (root / LAST_LOG).symlink_to(whole / LAST_LOG)


def two_logs(root: Path, _: Path) -> None:
    """A file that begins with the second message of another one."""
    data = (root / LAST_LOG).read_bytes()
    size = int.from_bytes(data[:4])
    name = f"{int(Path(LAST_LOG).name) + size:020d}"
    (root / "commitlog" / name).write_bytes(data[size:].ljust(len(data), b"\0"))


def moved_last_log(root: Path, _: Path) -> None:
    sorted((root / "commitlog").iterdir())[-1].rename(root.parent / "moved")


def no_log(root: Path, _: Path) -> None:
    (root / "commitlog").rename(root.parent / "disk")
    (root / "commitlog").mkdir()


def mounted(root: Path, _: Path) -> None:
    (root / "commitlog").rmdir()
    (root.parent / "disk").rename(root / "commitlog")


def recovered(root: Path, _: Path) -> None:
    assert main(["recover", str(root), "--apply"]) == 0
    assert [problem for problem in diagnose(str(root)) if problem.severity == "damage"] == []


def lost_expired_queue(root: Path, _: Path) -> None:
    """A group has read what retention has deleted since, and the queue has no file."""
    path = root / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace('"offsetTable":{', '"offsetTable":{"Orders@G":{"7":60},'))


def linked_topics(root: Path, whole: Path) -> None:
    (root / "config" / "topics.json").unlink()
    (root / "config" / "topics.json").symlink_to(whole / "config" / "topics.json")


def exported(root: Path, _: Path) -> None:
    """What is exported before a broker starts is all that can be read."""
    file = root.parent / "out.parquet"
    assert main(["export", str(root), str(file), "--skip-damage", "-a"]) == PARTIAL
    assert len(pq.read_table(file)) == len(rows(root))


def bad_ledger(root: Path, _: Path) -> None:
    append(root, numbered("Mine", 0, 8))
    (root / ".rmqlog" / "ledger.json").write_text("{")


def overwritten_batch(root: Path, _: Path) -> None:
    result = append(root, numbered("Mine", 0, 8), key=("job", 1))
    overwrite(root / "commitlog" / f"{0:020d}", result.stop - 20, b"\0" * 4)


def ours(root: Path, _: Path) -> None:
    shutil.rmtree(root)
    make_store(root)


def written_to(topic: str, queues: int = 4) -> Step:
    return lambda root, _: append(root, numbered(topic, 10_000, 8, queues=queues), key=("other", 1))


def asked(root: Path, _: Path) -> None:
    """Nothing shows whether the topic was deleted: the answer rebuilds its queues."""
    messages, options = numbered("Orders", 10_000, 8, queues=4), CommitOptions(unfiled_queues="read")
    with pytest.raises(OptionError, match="unfiledQueues=read"):
        append(root, messages)
    append(root, messages, options=options)


def not_flushed(root: Path, _: Path) -> None:
    append(root, numbered("T", 0, 20), options=CommitOptions(sync=False))


def group_ahead(root: Path, _: Path) -> None:
    append(root, numbered("T", 0, 20))
    offsets = {"offsetTable": {"T@G": {"0": 9}}, "dataVersion": {"counter": 1}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))


def flushed(root: Path, _: Path) -> None:
    MessageStore.open(str(root)).flush()


def fewer_queues(root: Path, _: Path) -> None:
    with edited_json(root / "config" / "topics.json") as topics:
        topics["topicConfigTable"]["Orders"]["readQueueNums"] = 2


def fewer_queues_in_bak(root: Path, _: Path) -> None:
    fewer_queues(root, _)
    (root / "config" / "topics.json").replace(root / "config" / "topics.json.bak")


def killed_writer(root: Path, _: Path) -> None:
    append(root, numbered("T", 0, 20))
    command = [sys.executable, "-m", "tests.support.failing_writer", str(root), "20", "20", "2", "kill", "24"]
    subprocess.run(command, cwd=ROOT.parent, check=False, timeout=60)


def not_begun(*members: list[str]) -> Step:
    """The journal of a commit over a cluster, before every store had its journal."""

    def harm(root: Path, _: Path) -> None:
        path = root / ".rmqlog" / "journal.json"
        journal = json.loads(path.read_text()) | {"members": members, "complete": False}
        path.write_text(json.dumps(journal))
        (root / "abort").unlink()

    return harm


def ignored_missing(root: Path, _: Path) -> None:
    append(root, numbered("T", 20_000, 4), options=CommitOptions(ignore_missing_stores=True))


def bad_journal(root: Path, whole: Path) -> None:
    killed_writer(root, whole)
    (root / ".rmqlog" / "journal.json").write_text("{")


def copied_extension(root: Path, whole: Path) -> None:
    tags_code = (whole / CQ_FILE).read_bytes()[12:20]
    write_files(root / "consumequeue_ext/Orders/1", struct.pack(">h8sqh", 20, tags_code, 0, 0), 64)
    assert "consumequeue_ext" not in str(diagnose(str(root)))


def cut_alone(root: Path, _: Path) -> None:
    half = append(root, numbered("T", 0, 20))
    append(root, numbered("T", 20, 20))
    shutil.copytree(root / "commitlog", root.parent / "whole" / "commitlog")
    os.truncate(root / "commitlog" / f"{0:020d}", half.stop)


def put_back(root: Path, _: Path) -> None:
    carry_out(restored("commitlog"), root, root.parent / "whole")


# ---- the cases ---------------------------------------------------------------------------------------------

_QUEUES = "rmqlog recover writes the entries again"
_SIZE = "rmqlog recover writes the queue's files again"
_INDEX = "rmqlog recover rebuilds the index file"
_LOST = "Readers scan the commitlog for this queue"
_DAMAGE = "Messages here are lost; read around them with mode=DROPMALFORMED"
_CUT = "A broker that starts on this store cuts these messages off"
_CHECKPOINT = "Move the checkpoint out of the store; a broker makes a new one"
_FILE = "Nothing can be written before this file is restored or moved out"
_TOPICS = "Put topics.json back from a backup"
_OLD_BAK = "rmqlog recover STORE --apply creates these topics again"
_BREAK_TOPICS = 'replace config/topics.json.bak "Audit" "Gone"; cut config/topics.json 500'
_FIRST_INDEX = "index/20261121065231934"
_LOSE_TOPICS = "remove config/topics.json; remove config/topics.json.bak"
_BAD_TOPICS = "create config/topics.json 1; create config/topics.json.bak 1"
_RENAME_TOPIC = "; ".join(
    f'replace config/{name} "Audit" "Gone"' for name in ("topics.json", "topics.json.bak")
)
_NO_TOPIC = "Consumers cannot find the topic, readers can. Unless it was deleted on purpose"

CASES = {
    "a damaged file of a compacted topic": Case(
        "Restore the queue's directories in compactionCq",
        lambda root, _: flip(root / COMPACTED, 88),
        restored("compaction"),
        "compaction-5.5.0",
    ),
    "files that a round of compaction left": Case(
        "A broker was killed while a round replaced this file",
        f"create {COMPACTED}.delete 4; create {COMPACTED.replace('Log', 'Cq')}.delete 4",
        moved_out(f"{COMPACTED}.delete", f"{COMPACTED.replace('Log', 'Cq')}.delete"),
        "compaction-5.5.0",
    ),
    "a cut queue file": Case(_SIZE, f"cut {CQ_FILE} 1990", recovered),
    "a batch queue": Case(
        _SIZE,
        "cut batchconsumequeue/Inner/0/00000000000000000000 1000",
        recovered,
        "batchcq-5.5.0",
    ),
    "no topics.json": Case(_QUEUES, f"{_LOSE_TOPICS}; remove consumequeue/Orders/2", recovered),
    "a lost topics.json": Case(_TOPICS, _LOSE_TOPICS, restored("config/topics.json")),
    "a lost topics.json, made again": Case(_TOPICS, _LOSE_TOPICS, recovered),
    "a broken topics.json with an old .bak": Case(_OLD_BAK, _BREAK_TOPICS, restored("config/topics.json")),
    "a broken topics.json with an old .bak, recovered": Case(_OLD_BAK, _BREAK_TOPICS, recovered),
    "a damaged database of topics": Case(
        "What the database has counts as lost",
        "cut config/topics/CURRENT 5",
        restored("config/topics"),
        "rocksdb-5.5.0",
    ),
    "a damaged database of queues": Case(
        "Readers scan the commitlog for all queues, and a ",
        "cut consumequeue/CURRENT 5",
        "remove consumequeue",
        "rocksdb-5.5.0",
    ),
    "no database of queues": Case(
        "Readers scan the commitlog for all queues. If the broker",
        "remove consumequeue",
        restored("consumequeue"),
        "rocksdb-5.5.0",
    ),
    "a blank queue file": Case("Delete the blank file", blank_file, without_blank_file),
    "a lost queue": Case(_LOST, "remove consumequeue/Orders/2", written_to("Orders")),
    "a lost topic": Case(_LOST, "remove consumequeue/Audit", written_to("Audit", 1)),
    "a lost queue without messages": Case(
        "Retention has deleted the messages, and the files are lost",
        lost_expired_queue,
        recovered,
        "cleaned-5.5.0",
    ),
    "a topic without queues": Case(
        "Readers and writers ask which of the two happened",
        "remove consumequeue/Orders",
        asked,
        "basic-4.9.7",
    ),
    "a link": Case("Links below the store's root are not followed", linked, restored(LAST_LOG)),
    "strays": Case(
        "Move it out of the store: a broker refuses",
        "create commitlog/notes 4; create consumequeue/Orders/0/notes 4",
        moved_out("commitlog/notes", "consumequeue/Orders/0/notes"),
    ),
    "a directory beside log files": Case(
        "Move it out of the store: a 4.9 broker does not start",
        "mkdir commitlog/old/",
        moved_out("commitlog/old"),
    ),
    "a cut commitlog file": Case(
        "Restore the file: a broker refuses",
        "cut commitlog/00000000000000262144 200000",
        restored("commitlog"),
    ),
    "two logs": Case("Move away the file that does not belong", two_logs, moved_last_log),
    "a file that never was of the log": Case(
        "Move this file out of the store before a broker starts",
        f"create commitlog/{1:020d} 4000",
        moved_out(f"commitlog/{1:020d}"),
    ),
    "a bad index file": Case(_INDEX, f"write {_FIRST_INDEX} 40 00000bb8", recovered),
    "a lost extension": Case(
        "No message is lost: readers take the tags",
        f"write {CQ_FILE} 12 8000000000000000",  # the tags code is in an extension, which is nowhere
        copied_extension,
    ),
    "a damaged message": Case(_DAMAGE, "write commitlog/00000000000000262144 39043 58", read_around),
    "a commitlog file that is gone": Case(
        "Restore the missing file", "remove commitlog/00000000000000262144", restored("commitlog")
    ),
    "a commitlog that is not mounted": Case("Mount the commitlog's disk", no_log, mounted),
    "a directory as commitlog file": Case(
        "Move it out of the store, or put the file back",
        "remove commitlog/00000000000000262144; mkdir commitlog/00000000000000262144",
        restored("commitlog"),
    ),
    "a zeroed start": Case(
        "A broker overwrites it; if the start of the file was zeroed",
        f"zero commitlog/00000000000000524288 200000 62144; zero {LAST_LOG} 0 262144; "
        f"write {LAST_LOG} 5000 {b'no whole message'.hex()}",
        restored("commitlog"),
    ),
    "a cut last file": Case(
        "The file was cut off: restore it",
        both(ours, cut_alone, "remove .rmqlog/store.json"),
        put_back,
    ),
    "a cut only file of ours": Case(
        "Restore the file, or add the zeros that it lacks", both(ours, cut_alone), put_back
    ),
    "a file as directory": Case(
        "Put the directory back",
        "remove consumequeue; create consumequeue 1",
        restored("consumequeue"),
    ),
    "a bad checkpoint": Case(_CHECKPOINT, f"write checkpoint 0 {'ff' * 48}", moved_out("checkpoint")),
    "damage after a crash": Case(
        _CUT, "write commitlog/00000000000000000000 20000 58", exported, "crash-5.5.0"
    ),
    "an index file that is gone": Case(
        "A search finds these messages by a scan", "remove index/20261121065233655", recovered
    ),
    "a ledger after a power loss": Case(
        "The ledger of the last flush counts instead",
        both(ours, not_flushed, "create .rmqlog/ledger.json 0"),
        written_to("T"),
    ),
    "a journal after a power loss": Case(
        "A power loss came before a commit with ASYNC_FLUSH",
        both(ours, not_flushed, "create .rmqlog/journal.json 0"),
        written_to("T"),
    ),
    "a group ahead of its queue": Case(
        "Messages of this queue are lost, or the group was set too far",
        both(ours, group_ahead),
        written_to("T"),
    ),
    "commits that are not flushed": Case("Before a broker starts, call", both(ours, not_flushed), flushed),
    "fewer queues than were written": Case(
        "Raise readQueueNums of", fewer_queues, restored("config/topics.json")
    ),
    "fewer queues in an old .bak": Case("topics.json.bak is from before", fewer_queues_in_bak, recovered),
    "a crash": Case("Readers do the broker's recovery in memory", read_around, copied, "crash-5.5.0"),
    "no configuration": Case(
        "The file counts as lost, and so does", _BAD_TOPICS, restored("config/topics.json")
    ),
    "a linked configuration file": Case(
        "Neither the file nor its .bak can be read", linked_topics, restored("config/topics.json")
    ),
    "no configuration, made again": Case("The file counts as lost, and so does", _BAD_TOPICS, recovered),
    "no group offsets": Case(
        "The file counts as lost, and a broker starts",
        "create config/consumerOffset.json 64; remove config/consumerOffset.json.bak",
        recovered,
    ),
    "lost group offsets": Case(
        "The lag of all groups is unknown",
        "remove config/consumerOffset.json; remove config/consumerOffset.json.bak",
        restored("config/consumerOffset.json"),
    ),
    "a broken file beside its .bak": Case("The .bak counts instead", "cut config/topics.json 500", recovered),
    "an unknown topic": Case(_NO_TOPIC, _RENAME_TOPIC, restored("config/topics.json")),
    "a bad ledger": Case(_FILE, bad_ledger, moved_out(".rmqlog/ledger.json")),
    "a bad journal": Case(_FILE, both(ours, bad_journal), moved_out(".rmqlog/journal.json")),
    "an overwritten batch": Case(
        "Messages of this batch are lost: a broker ran", both(ours, overwritten_batch), written_to("Mine")
    ),
    "a damaged head of a DLedger entry": Case(
        "The message behind this head is whole", damaged_head, restored("dledger-n0/data"), "dledger-5.5.0"
    ),
    "a broken-off commit": Case(
        "The next writer completes this commit", both(ours, killed_writer), written_to("T")
    ),
    "a commit that no store has begun": Case(
        "The next writer drops this commit", both(ours, killed_writer, not_begun()), written_to("T")
    ),
    "a commit of a cluster with a missing store": Case(
        "The next writer refuses, and until then",
        both(ours, killed_writer, not_begun(["gone", "0123456789abcdef"])),
        both(ignored_missing, written_to("T")),
    ),
}

# Nothing to follow: they say what a broker or retention does by itself, or that all is well.
_NOTHING = (
    "A broker refuses to start on this store",
    "A broker whose mappedFileSizeCommitLog is another length refuses to start",
    "A broker that starts on a crashed store deletes such files",
    "A broker that starts on this store cuts the log here",
    "A broker that starts on this store cuts these entries off",
    "A broker that starts on this store writes these entries",
    "After a crash a broker rescans the log",
    "An earlier recovery has cut these messages",
    "Follows from the damage of the commitlog",
    "It is not checked",
    "No command puts this right: rmqlog recover files no message with such a queue offset",
    "No command puts this right: the body has its checksum",
    "No message is lost: a broker that started",
    "Nothing needs to be done",
    "The topic was deleted; retention deletes the messages",
    "Messages that are being written now may look unfinished",
    "*.bak is used instead, as by a broker",
    "Whether a broker starts on the database is not checked",
)


def test_every_advice_is_covered() -> None:
    known = {case.advice for case in CASES.values()} | set(_NOTHING)
    texts = all_advice()
    assert [text for text in sorted(texts) if not text.startswith(tuple(known))] == []
    assert [start for start in sorted(known) if not any(text.startswith(start) for text in texts)] == []
    assert [
        text for text in texts if text.startswith(_NOTHING) and ("elete " in text or "Remove" in text)
    ] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    unpacked: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = goldens.unpack(name, tmp_path_factory.mktemp("whole") / name)
        return unpacked[name]

    return get


@pytest.mark.process
def test_the_steps_of_the_recovery_page_lose_nothing(golden: Golden, tmp_path: Path) -> None:
    """Its commands, one block after the other, on all the stores that are there. One block damages a copy, to
    show damage.
    """
    session = Session(tmp_path, golden, pytest.fail)
    for block in (block for block in blocks(read_page("howto-recover.md")) if block.language == "sh"):
        before = {path: rows(path) for path in tmp_path.iterdir() if (path / "commitlog").is_dir()}
        session.run(block)
        lost = sum(len(known - rows(path)) for path, known in before.items())
        assert lost <= ("dd of=" in block.text), block.text
        assert "rm " not in block.text


@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_following_it_loses_nothing(whole: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    case = CASES[name]
    root = Path(shutil.copytree(whole(case.store), tmp_path / "store"))
    carry_out(case.harm, root, whole(case.store))
    advice = {problem.advice for problem in diagnose(str(root))}
    assert [text for text in advice if text.startswith(case.advice)] != [], advice
    before = rows(root)
    followed = carry_out(case.follow, root, whole(case.store))
    after = rows(followed if isinstance(followed, Path) else root)
    assert before - after == set()
    assert len(after) > 0
