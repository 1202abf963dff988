"""diagnose(): each fault put into a copy of a broker-written store comes back alone, with its file and byte;
whole stores have none. harms.txt has the faults, and all that is told of them.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_format.diagnose import diagnose
from store_format.diagnose.broker_start import broker_start
from store_format.diagnose.problems import Diagnosis, Findings, Problem, verdict
from store_format.display.text import shown
from store_format.errors import StoreNotFoundError
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.file_edits import flip, harm, overwrite
from tests.support.fixtures import Golden
from tests.support.transcripts import Transcript
from tests.support.writes import held

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]
CRASHED = ("crash-5.5.0", "crash-torn-5.5.0", "dledger-crash-5.5.0")
FILE_SIZE = 262144  # of a commitlog file in basic-5.5.0
CQ_FILE_SIZE = 2000
HARMS = Transcript(Path(__file__).with_name("harms.txt"))


@pytest.fixture
def copy(copy_of: Golden) -> Path:
    return copy_of("basic-5.5.0")


def _serious(diagnosis: Diagnosis) -> list[tuple[str, str, int]]:
    """(severity, file, byte) of everything that is more than information."""
    return [
        (problem.severity, problem.file, problem.position) for problem in diagnosis.of("damage", "warning")
    ]


def _diagnose(root: Path) -> Diagnosis:
    """Also checks what holds for every store: the sums, and that problems are sentences."""
    diagnosis = diagnose(str(root))
    files = [
        path
        for directory in goldens.log_directories(root)
        for path in directory.glob("[0-9]" * 20)
        if path.is_file() and not path.is_symlink()
    ]
    assert diagnosis.summary.total_bytes == sum(path.stat().st_size for path in files)
    for problem in diagnosis:
        assert problem.expected
        assert problem.found
        assert problem.advice
        assert shown(problem.file) in str(problem)
    return diagnosis


@functools.cache
def _rows(name: str = "basic-5.5.0") -> list[dict[str, Any]]:
    """The messages in the order of the log."""
    return sorted(goldens.expected_rows(name), key=lambda row: int(row["physicalOffset"]))


def _row(index: int = 700) -> dict[str, Any]:
    return _rows()[index]


def _log_place(root: Path, physical_offset: int) -> tuple[Path, int]:
    return (
        root / "commitlog" / f"{physical_offset // FILE_SIZE * FILE_SIZE:020d}",
        physical_offset % FILE_SIZE,
    )


def _cq_place(root: Path, row: dict[str, Any]) -> tuple[Path, int]:
    position = row["queueOffset"] * 20
    directory = root / "consumequeue" / row["topic"] / str(row["queueId"])
    return directory / f"{position // CQ_FILE_SIZE * CQ_FILE_SIZE:020d}", position % CQ_FILE_SIZE


@pytest.mark.parametrize("question", HARMS.questions)
def test_a_harmed_store(copy_of: Golden, question: str) -> None:
    name, harms = question.split(": ")
    root = copy_of(name)
    if harms != "nothing":
        harm(root, harms)
    diagnosis = _diagnose(root)
    text, step = verdict(diagnosis)
    summary = asdict(diagnosis.summary).items()
    numbers = ", ".join(f"{name} {value}" for name, value in summary if value not in (0, None))
    start = f"may a broker start: {broker_start(diagnosis)}"
    told = "\n".join([text, f"next: {step.name}", start, numbers, *map(str, diagnosis)])
    HARMS.check(question, told.replace(f"{root}/", ""))


# ---- whole stores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_a_broker_written_store_is_not_damaged(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    diagnosis = _diagnose(root)
    assert diagnosis.of("damage") == []
    assert diagnosis.summary.units == answers["allCommitLogMessages"]
    assert diagnosis.summary.log_end == answers["commitLog"]["maxOffset"]
    if name not in CRASHED:
        has_topics = (root / "config/topics.json").exists()  # of the broker that writes edges: no
        advice = "" if has_topics else "Consumers cannot find the topic"
        assert all(advice and each.advice.startswith(advice) for each in diagnosis.of("warning"))
        assert diagnosis.summary.damage_bytes == 0


def test_the_method_of_a_store_says_the_same(copy: Path) -> None:
    flip(*_log_place(copy, _row()["physicalOffset"] + 95))
    diagnosis = MessageStore.open(str(copy)).diagnose()
    assert diagnosis == diagnose(str(copy))
    assert len(diagnosis.of("damage")) == 1
    assert diagnosis.summary.damage_bytes == _row()["storeSize"]


def test_diagnosing_changes_nothing(golden: Golden, unchanged: Callable[[Path], Any]) -> None:
    with unchanged(golden("crash-torn-5.5.0")):
        diagnose(str(golden("crash-torn-5.5.0")))


def test_a_topic_whose_name_is_no_utf_8(copy: Path) -> None:
    path = copy / "consumequeue" / "\udcff"
    path.mkdir()
    (found,) = _diagnose(copy)
    assert (found.severity, found.file) == ("info", str(path))


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        diagnose(str(tmp_path / "nothing"))
    with pytest.raises(StoreNotFoundError, match="found nothing"):  # as of a disk that is not mounted
        diagnose(str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    assert list(diagnose(str(tmp_path))) == []  # a store without messages


# ---- while a broker runs -----------------------------------------------------------------------------------


def test_what_a_broker_is_writing_is_no_damage(copy: Path) -> None:
    """A unit begun behind the end, a message whose entry and keys are still to come: all of it means "not
    yet".
    """
    last = _row(-1)
    file, position = _log_place(copy, last["physicalOffset"] + last["storeSize"])
    overwrite(file, position, file.read_bytes()[position - last["storeSize"] : position - 50])
    overwrite(*(_cq_place(copy, last)), bytes(20))
    assert len(_serious(_diagnose(copy))) == 1  # without a broker, the unit is one that a recovery has cut
    with held(copy) as broker:
        diagnosis = _diagnose(copy)
    assert _serious(diagnosis) == []
    assert (diagnosis[0].file, diagnosis[0].position) == (f"{copy}/lock", 0)
    assert f"process {broker} " in diagnosis[0].found


# ---- whatever the bytes ------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("seed", range(6))
def test_any_bytes_end_in_a_list(golden: Golden, tmp_path: Path, seed: int) -> None:
    """Ten stores a seed, each with a few flips, absurd numbers, cuts and lost files: no exception, and the
    sums hold.
    """
    random = np.random.default_rng(seed)
    for number in range(10):
        root = Path(shutil.copytree(golden("basic-4.9.7"), tmp_path / str(number)))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for path in random.choice(np.array(files, object), 4, replace=False):
            position = int(random.integers(path.stat().st_size)) if path.stat().st_size else 0
            match int(random.integers(4)):
                case 0:
                    os.truncate(path, position)
                case 1:
                    path.unlink()
                case 2:
                    overwrite(path, position, b"\x7f\xff\xff\xff")
                case 3 if path.stat().st_size:
                    flip(path, position, 1 << int(random.integers(8)))
        _diagnose(root)


# ---- the list itself ---------------------------------------------------------------------------------------


def test_a_million_problems_of_one_kind_are_a_thousand_and_a_number() -> None:
    findings = Findings()
    for i in range(5000):
        findings.add("damage", "file", i, "a", "b", "advice")
        findings.add("damage", "file", i, "a", "b", "advice")
    problems = findings.problems()
    assert len(problems) == 1001
    assert problems[-1] == Problem("damage", "file", 4999, "a", "b, the last of 8000 more", "advice")


def test_counts_that_a_killed_broker_had_renamed_are_no_warning(golden: Golden, tmp_path: Path) -> None:
    """A broker that goes on loads the .bak without a word; one of 4.9 never writes the file again."""
    root = Path(shutil.copytree(golden("pop-5.5.0"), tmp_path / "store"))
    for name, severity in (("transactionMetrics", "info"), ("consumerOffset.json", "warning")):
        path = root / "config" / name
        path.rename(path.with_name(f"{name}.bak"))
        found = [problem for problem in diagnose(str(root)) if problem.file == str(path)]
        assert [(problem.severity, problem.found) for problem in found] == [(severity, "none")]
        assert f"{name}.bak is used instead" in found[0].advice
