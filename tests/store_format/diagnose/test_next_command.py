"""The commands that `verify`, `info`, `recover`, `export` and `find` advise, on every kind of damage of every
store: each runs, each leads further, and none loses a message that could be read before.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rmq_spark.cli.exit_codes import BUG, DAMAGE, OK, PARTIAL
from tests.store_format.diagnose.test_advice import Row, rows
from tests.support import goldens
from tests.support.damages import OF_THE_LOG, OTHERS, Damaged
from tests.support.fixtures import Golden
from tests.support.referee.answers import Run, rmqlog
from tests.support.referee.world import golden_world
from tests.support.staged import settings_from

pytestmark = pytest.mark.slow

_GOLDENS = (
    "basic-5.5.0", "cleaned-5.5.0", "crash-5.5.0", "basic-4.9.7", "crash-torn-5.5.0", "batchcq-5.5.0",
    "delay-tx-5.5.0", "edge-5.5.0", "pop-5.5.0", "propcrc-5.5.0", "retry-dlq-5.5.0",
)  # fmt: skip
_DAMAGES = (*OF_THE_LOG, *OTHERS)
_STEPS_MAX = 5


def _cases() -> Iterator[object]:
    """Each damage once, with another store; all of them with --whole."""
    for i, damage in enumerate(_DAMAGES):
        for j, name in enumerate(_GOLDENS):
            is_sample = (i - j) % len(_GOLDENS) == 0
            marks = () if is_sample else (pytest.mark.whole,)
            yield pytest.param(name, damage, marks=marks, id=f"{name}-{damage}")


@cache
def _rows_of_golden(golden: Golden, name: str) -> set[Row]:
    return rows(golden(name))


def _next_of(run: Run) -> str:
    """The command in the line `next:`."""
    return "".join(re.findall(r"^next: +(.*)$", run.out + run.err, re.MULTILINE)[-1:])


def _run(root: Path, command: str) -> Run:
    return rmqlog(root, *shlex.split(command)[1:])


def _follow(root: Path, first: str, conf: Path) -> Path:
    """Runs each command and the next one that it names; returns the store that is left.

    A command that repeats is the end, if it only checks: something is to be done by hand before.
    """
    done: list[str] = []
    store, command = root, first
    while command:
        command = command.replace("--broker-conf FILE", f"--broker-conf {shlex.quote(str(conf))}")
        words = shlex.split(command)
        if command in done:
            assert words[1] in ("verify", "lag"), f"{done} lead to {command!r} again"
            break
        assert len(done) < _STEPS_MAX, done
        done.append(command)
        run = _run(root, command)
        assert run.code in (OK, PARTIAL, DAMAGE), f"{command}: {run.code}, {run.err}"
        if "--into" in words and "--apply" in words:
            store = Path(words[words.index("--into") + 1])
        command = _next_of(run)
    return store


def _advised(root: Path) -> dict[str, str]:
    """The commands that end with STORE in the sentences of those that read: command -> who says so."""
    askers = {
        "info": rmqlog(root, "info", root),
        "ls": rmqlog(root, "ls", root),
        "export": rmqlog(root, "export", root, root.parent / "out.parquet", "--all"),
        "find": rmqlog(root, "find", root, "no-such-key"),
        "recover": rmqlog(root, "recover", root),
    }
    found: dict[str, str] = {}
    for name, run in askers.items():
        assert run.code != BUG, run.err
        text = run.err + "\n".join(run.warnings)
        for words in re.findall(r"rmqlog (?:recover|verify|export)(?: (?:STORE|NEW|--[a-z-]+))*", text):
            found.setdefault(words, name)
    return found


def _carry_out(root: Path, words: str, conf: Path) -> tuple[Run, Path]:
    """An advised command on a copy of the store, and the store that has its result."""
    copy = Path(shutil.copytree(root, root.parent / "copy", symlinks=True))
    new = root.parent / "new"
    command = words.replace("NEW", str(new)).replace("STORE", str(copy))
    if words.startswith("rmqlog export"):
        command = f"rmqlog export {copy} {root.parent}/advised.parquet --all {words[14:]}"
    elif "STORE" not in words:
        command += f" {copy}"
    if words.startswith("rmqlog recover"):
        command += f" --broker-conf {conf}"  # a sentence asks for it where it is needed
    return _run(copy, command), new if "--into" in words else copy


@pytest.mark.process
@pytest.mark.parametrize(("name", "damage"), list(_cases()))
def test_advised_commands_run_and_lose_nothing(
    golden: Golden, tmp_path: Path, name: str, damage: str
) -> None:
    root, whole = goldens.unpack(name, tmp_path / "store"), _rows_of_golden(golden, name)
    try:
        Damaged(root).do(damage)
    except (IndexError, FileNotFoundError):
        pytest.skip("the store has no such file")
    conf = tmp_path / "broker.conf"
    size = settings_from(goldens.config(name)).mapped_file_size_consume_queue
    conf.write_text(f"mappedFileSizeConsumeQueue={size}\n")
    before = rows(root)
    for asker in ("info", "verify"):
        copy = Path(shutil.copytree(root, tmp_path / asker / "store"))
        run = rmqlog(copy, asker, copy)
        assert run.code in (OK, PARTIAL, DAMAGE) or asker == "info", run.err
        assert run.code != BUG, run.err
        command = _next_of(run)
        after = rows(_follow(copy, command, conf))
        assert before - after == set(), f"after what {asker} advises"
        assert after <= whole | before
        if command.startswith("rmqlog verify"):
            break  # what `verify` advises was followed, too
    for words, asker in _advised(root).items():
        run, left = _carry_out(root, words, conf)
        assert run.code in (OK, PARTIAL, DAMAGE), f"{asker} advises {words!r}: {run.code}, {run.err}"
        if "--cut-after-damage" not in words and "export" not in words:
            assert before - rows(left) == set(), f"{asker} advises {words!r}"
        shutil.rmtree(tmp_path / "copy")
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


_COUNTED = (
    ("basic-5.5.0", "flip_body_in_the_middle"),
    ("basic-5.5.0", "flip_size"),
    ("basic-5.5.0", "lose_middle_file"),
    ("basic-5.5.0", "cut_middle_file_in_half"),
    ("basic-5.5.0", "cut_first_file_within_its_last_properties"),
    ("delay-tx-5.5.0", "cut_last_file_behind_damage"),  # its only file
    ("cleaned-5.5.0", "flip_a_queue_entry"),  # of an expired message
    ("cleaned-5.5.0", "zero_queue_entries"),  # the first of them of expired messages
    ("batchcq-5.5.0", "zero_page"),
    ("batchcq-5.5.0", "flip_a_queue_entry"),  # behind the queue's last one
)


@pytest.mark.parametrize(("name", "damage"), _COUNTED)
def test_verify_info_and_recover_count_the_same_messages(tmp_path: Path, name: str, damage: str) -> None:
    """`info` reads ends of queues, and says so: it names as lost what is gone with files, and nothing as
    readable.
    """
    root = golden_world(name, tmp_path).root
    before = len(rows(root))
    Damaged(root).do(damage)
    said = {name: rmqlog(root, name, root).out.replace(",", "") for name in ("verify", "info", "recover")}
    counts = {
        name: [int(count) for count in re.findall(r"(\d+) messages? (?:readable|lost)", text)]
        for name, text in said.items()
    }
    readable, lost = (*counts["verify"], 0)[:2]
    assert readable == len(rows(root)) == before - lost
    if "refused" not in said["recover"]:
        assert f": {readable} whole messages" in said["recover"]
    if "lost with missing" in said["info"] or not lost:
        assert counts["info"] == counts["verify"][1:]


def test_the_sizes_of_a_lost_index_are_asked_for(tmp_path: Path) -> None:
    world = golden_world("basic-5.5.0", tmp_path)
    Damaged(world.root).do("lose_index")
    assert _next_of(rmqlog(world.root, "verify", world.root)).endswith("--broker-conf FILE")
    run = rmqlog(world.root, "recover", world.root)
    assert "nothing has to be changed; index left as found" in run.out
    assert "maxHashSlotNum and maxIndexNum" in run.err
    assert _next_of(run).endswith("--broker-conf FILE")
    conf = tmp_path / "broker.conf"
    geometry = world.settings.geometry
    conf.write_text(f"maxHashSlotNum={geometry.hash_slot_num}\nmaxIndexNum={geometry.index_num}\n")
    assert rmqlog(world.root, "recover", world.root, "--broker-conf", conf, "--apply").code == OK
    assert "nothing has to be done" in rmqlog(world.root, "verify", world.root).out
