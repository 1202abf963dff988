"""The benchmarks in their smallest form: that they run and tell the truth about what they read, not how
fast.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bars import BARS, Bar, judge
from benchmarks.compare import _comparable, pieces
from benchmarks.fill import BROKER_NAME, Filling, fill
from benchmarks.old_commit import cases_of
from benchmarks.processes import cpu_seconds
from benchmarks.report import write_block
from benchmarks.rounds import Rates, interleave
from benchmarks.sides import Spent, Version
from store_format import MessageStore
from store_format.layouts import MAGIC_BLANK
from tests.support.stored_rows import rows_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent

# Message units of about 300 bytes: 20 KiB files make the log end several of them with a BLANK.
_SMALL = Filling(messages=500, body_size=100, topics=3, queues_per_topic=2, commit_log_file_size=20 << 10)


def test_a_filled_store_is_what_was_asked_for(tmp_path: Path) -> None:
    fill(tmp_path / "store", _SMALL)
    store = MessageStore.open(str(tmp_path / "store"))
    assert (store.broker_name, store.state.value) == (BROKER_NAME, "clean")
    assert {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues()} == {
        (topic, queue): 84 if place < 2 else 83
        for place, (topic, queue) in enumerate((t, q) for t in _SMALL.topic_names for q in (0, 1))
    }
    rows = rows_in(store)
    assert Counter(len(row["body"]) for row in rows) == {100: 500}
    assert {tuple(sorted(name for name, _ in row["properties"])) for row in rows} == {
        ("KEYS", "TAGS", "UNIQ_KEY", "region", "traceId")
    }
    assert len({row["msgId"] for row in rows}) == 500
    # the walk meets the BLANK units and ends in the last file's zeros
    assert sum(batch.num_rows for batch in store.scan()) == 500


def test_filled_files_have_their_full_size_and_end_in_a_blank(tmp_path: Path) -> None:
    fill(tmp_path / "store", _SMALL)
    files = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert len(files) > 5
    assert {file.stat().st_size for file in files} == {20 << 10}
    assert all(MAGIC_BLANK.to_bytes(4, "big") in file.read_bytes()[-400:] for file in files[:-1])
    assert {
        file.stat().st_size for file in (tmp_path / "store" / "consumequeue").rglob("0*0") if file.is_file()
    } == {6_000_000}


def test_a_store_is_filled_the_same_way_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fill(tmp_path / name, _SMALL)
    for one in (tmp_path / "one" / "commitlog").iterdir():
        assert one.read_bytes() == (tmp_path / "two" / "commitlog" / one.name).read_bytes()


def test_ratios_are_taken_within_a_round() -> None:
    ceiling, mine = Rates("ceiling", 100, (1.0, 10.0, 2.0)), Rates("mine", 100, (2.0, 12.5, 4.0))
    assert mine.ratio(ceiling).median == 0.5
    assert mine.ratio(ceiling).minimum == 0.5
    assert mine.rate().median == 25.0
    busy = Rates("busy", 100, (1.0, 1.0), (4.0, 2.0))
    assert busy.cpu_ratio(Rates("ceiling", 50, (1.0, 1.0), (1.0, 1.0))).median == 0.75


def test_a_case_that_loses_rows_is_an_error() -> None:
    rows = iter([10, 9])
    with pytest.raises(ValueError, match="case: 9 rows, and 10 before"):
        interleave({"case": lambda: next(rows)}, 1)


def test_cpu_time_of_processes_below_is_counted_also_when_they_have_ended() -> None:
    before = cpu_seconds()
    parent = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(20_000_000))']); "
        "print('done', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        spent = cpu_seconds() - before
        child.communicate("\n")
    assert spent >= 0.1


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="to write between"):
        write_block(page, "figures")


@pytest.mark.whole  # most of a minute of Spark; CI runs two cases in test_two_versions_are_compared
def test_the_benchmarks_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\nold\n<!-- /measured -->\nafter\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--smallest",
        "--sizes",
        "100,1024",
        "--directory",
        str(tmp_path),
        "--markdown",
        str(page),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- measured -->\n")
    assert text.endswith("<!-- /measured -->\nafter\n")
    assert "old" not in text
    assert done.stdout.strip() in text
    for what in (
        "100 B",
        "1 KiB",
        "default columns, CRC on",
        "count()",
        "Most memory of one Python worker",
        "Planning",
        "Writing without Spark",
        "a cached DataFrame",
        "Commits of ten",
        "catches up in 2 batches",
        "ten messages appended",
        "A micro-batch in which each of",
        "A turn of the services without a due message",
        "until its copy can be read",
        "a consumer that waits in another process",
        "Consumers that wait while nothing comes",
    ):
        assert what in text, what
    # every cell of every table of rates is filled, and no rate is zero messages
    rates = re.findall(r"^\| (?:default columns|body|queueOffset)[^|]*\|(.*)\|$", text, re.MULTILINE)
    assert len(rates) >= 14
    commits = re.findall(r"^\| A?SYNC_FLUSH \|.*\| (\d+) \|$", text, re.MULTILINE)
    assert commits == ["0", "0"]  # files that small commits leave behind
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]  # what was filled is gone


def test_a_bar_is_judged_within_a_round() -> None:
    before, after = Spent(100, [2.0, 4.0, 8.0]), Spent(100, [1.0, 1.0, 4.0])
    rate = Bar("decode", "decode@100", "case", "rate")
    done = judge(rate, {"case": {"before": before, "after": after}})
    assert done.cells == ("decode", "0.00 M/s", "0.00 M/s", "2.00", "no slower", "yes")
    slow = {"case": {"before": after, "after": before}}
    assert not judge(rate, slow).reached
    assert not judge(replace(rate, kind="time"), slow).reached
    ceiling = {"ceiling": {"before": Spent(100, [1.0] * 3), "after": Spent(100, [0.9, 0.8, 3.0])}}
    bar = replace(rate, kind="ceiling", bar=0.8)
    by_ceiling = judge(bar, ceiling | {"case": {"before": before, "after": after}})
    assert (by_ceiling.cells[1][:6], by_ceiling.cells[2][:6], by_ceiling.reached) == (
        "0.25 ×",
        "0.80 ×",
        True,
    )
    assert not judge(replace(bar, bar=0.81), ceiling | {"case": {"after": after}}).reached
    assert judge(replace(rate, kind="within", bar=1.5), {"case": {"after": after}}).reached
    assert judge(rate, {"case": {"after": after}}).cells[-2:] == ("not compared", "yes")


def test_a_part_of_another_form_is_not_compared(tmp_path: Path) -> None:
    forms = cases_of(ROOT)
    assert set(forms) == {piece.part for piece in pieces(1.0, 5)}
    (tmp_path / "benchmarks").mkdir()
    older = Version(tmp_path, Path(sys.executable))
    chosen = pieces(1.0, 5)
    assert _comparable(chosen, older) == chosen  # a commit without the file has the first forms
    (tmp_path / "benchmarks" / "cases.json").write_text(json.dumps(forms | {"read": 0}), encoding="utf-8")
    changed = [piece.key for piece in _comparable(chosen, older) if not piece.older]
    assert changed == ["read@100", "read@1024", "read@16384", "rebuild@1024"]


@pytest.mark.process
def test_two_versions_are_compared(tmp_path: Path) -> None:
    """The smallest run, with this checkout in the place of the older commit."""
    page = tmp_path / "page.md"
    page.write_text("<!-- compared -->old<!-- /compared -->\n", encoding="utf-8")
    (tmp_path / "stores").mkdir()
    arguments = [
        "--smallest",
        "--base",
        ".",
        "--only",
        "encode,search",
        "--directory",
        str(tmp_path / "stores"),
    ]
    arguments += ["--results", str(tmp_path / "results"), "--markdown", str(page)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert re.search(r"^\| encode, 100 B \| [\d.]+ M/s \| [\d.]+ M/s \| [\d.]+ \|", text, re.M)
    assert re.search(r"^\| verify, 1 GiB of 1 KiB messages \|", text, re.M)
    assert {path.name for path in (tmp_path / "results" / "smallest").iterdir()} == {
        "encode@100.json",
        "search@1024.json",
    }
    assert list((tmp_path / "stores").iterdir()) == []  # what was filled is gone


@pytest.mark.interop
@pytest.mark.whole
def test_kafka_and_parquet_are_compared(tmp_path: Path) -> None:
    """The smallest run. The broker ends with it, and nothing is left."""
    page = tmp_path / "page.md"
    page.write_text("<!-- peers -->old<!-- /peers -->\n", encoding="utf-8")
    (tmp_path / "stores").mkdir()
    arguments = ["--smallest", "--directory", str(tmp_path / "stores"), "--markdown", str(page)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^\| (rmqlog|Kafka|Parquet).* \| [\d.]+ \([\d.]+\) \| [\d.]+ \|", text, re.MULTILINE)
    assert Counter(found) == {"rmqlog": 5, "Kafka": 4, "Parquet": 2}
    assert list((tmp_path / "stores").iterdir()) == []
    brokers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]
    assert brokers == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


@pytest.mark.whole
def test_every_bar_is_measured(tmp_path: Path) -> None:
    """The smallest run of all parts, with this checkout in the place of the older commit."""
    arguments = [
        "--smallest",
        "--base",
        ".",
        "--directory",
        str(tmp_path),
        "--results",
        str(tmp_path / "results"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows[2:-1]] == [bar.label for bar in BARS]
    assert rows[-1][0].removeprefix("| ")[:8] == "a worker"
