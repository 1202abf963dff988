"""How many messages can be read, and how many are lost: `verify`, `export --skip-damage`, a batch read in
mode DROPMALFORMED and the preview of `recover` give one answer, for every kind of damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError, StoreError
from tests.support import goldens
from tests.support.damages import MISPLACED, OF_THE_LOG, OTHERS, Damaged
from tests.support.fixtures import Golden
from tests.support.referee.answers import rmqlog

_GOLDENS = ("cleaned-5.5.0", "basic-5.5.0")
_SAMPLE = (
    "exchange_two_files",
    "exchange_two_queues",
    "rename_a_queue",
    "old_entries_behind_the_log",
    "junk_with_a_number",
)


def _cases() -> Iterator[object]:
    for damage in (*MISPLACED, *OF_THE_LOG, *OTHERS):
        for name in _GOLDENS:
            is_sample = damage in _SAMPLE and name == _GOLDENS[0]
            marks = [] if is_sample else [pytest.mark.whole]
            yield pytest.param(name, damage, marks=marks, id=f"{name}-{damage}")


def _batch(root: Path, caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """(rows, messages that the warnings count as left out) of a batch read."""
    caplog.clear()
    values = {"path": str(root), "subscribePattern": ".*", "includeSystemTopics": "true", "columns": "topic"}
    options = parse_read_options(values | {"mode": "DROPMALFORMED", "failOnDataLoss": "false"})
    scan = Scan(fields_from_options(options), options)
    rows = sum(batch.num_rows for split in plan(options, cores=1).splits for batch in scan.read(split))
    counts = re.findall(r"this task left out (\d+) malformed and (\d+) lost", caplog.text)
    return rows, sum(int(count) for pair in counts for count in pair)


def _export(root: Path, out: Path) -> tuple[int, int]:
    said = rmqlog(root, "export", str(root), str(out), "--skip-damage", "-a", "--columns", "topic").err
    rows = re.search(r"([\d,]+) messages?, ", said)
    left = re.search(r"([\d,]+) damaged messages? ", said)
    assert rows, said
    return int(rows[1].replace(",", "")), int(left[1].replace(",", "")) if left else 0


def _preview(root: Path, into: Path, conf: str | None = None) -> tuple[int, int, int]:
    """(messages of the copy, messages that it lacks, messages whose numbers it restores)."""
    rows = recover(str(root), into=str(into), salvage=True, broker_conf=conf).table().to_pylist()
    counts = {row["action"]: row["entries"] or 0 for row in rows if row["part"] == "commitlog"}
    unopened = counts.get("left", 0)
    return counts["end"] - unopened, counts.get("lost", 0) + unopened, counts.get("restore", 0)


@pytest.mark.parametrize(("name", "damage"), list(_cases()))
def test_all_name_the_same_numbers(
    copy_of: Golden,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: str,
) -> None:
    root = copy_of(name)
    Damaged(root).do(damage)
    found = diagnose(str(root))
    summary = found.summary
    answer = summary.readable, summary.lost_entries + summary.lost_in_crash + summary.unopened
    if found.refusal is not None or found.lost_log is not None:  # the verdict says so
        with pytest.raises(StoreError):
            _batch(root, caplog)
        with pytest.raises(StoreError):
            _preview(root, tmp_path / "new")
        return
    assert _batch(root, caplog) == answer
    assert _export(root, tmp_path / "out.jsonl") == answer
    conf, new = str(tmp_path / "broker.conf"), tmp_path / "new"
    Path(conf).write_text("".join(f"{key}={value}\n" for key, value in goldens.config(name).items()))
    if damage == "link_a_queue":  # the preview names the link, and the reader leaves the queue out
        with pytest.raises(CorruptStoreError, match="symbolic link"):
            _preview(root, new, conf)
        return
    whole, lost_count, restored = _preview(root, new, conf)
    rebuilt = summary.readable + summary.unread + restored  # their entries are lost, or show their numbers
    assert (whole, lost_count) == (rebuilt, answer[1] - restored)
    assert not new.exists()
    recover(str(root), into=str(new), salvage=True, broker_conf=conf).apply()  # as the preview says
    after = diagnose(str(new))
    assert after.summary.readable == rebuilt
    lost = f"{lost_count:,} message{'s' * (lost_count != 1)}"
    assert after.given_up == lost if lost_count else "message" not in after.given_up


def test_damaged_padding_costs_no_message(copy_of: Golden) -> None:
    root = copy_of("cleaned-5.5.0")
    Damaged(root).do("cut_one_byte_of_a_middle_file")
    found = diagnose(str(root))
    summary = found.summary
    assert summary.damage_bytes + summary.missing_bytes == summary.padding_damage_bytes > 0
    assert "1,003 messages readable, none lost" in found.verdict


def test_info_and_ls_say_that_they_count_offsets(golden: Golden) -> None:
    root = golden("cleaned-5.5.0")
    said = [rmqlog(root, verb, str(root)) for verb in ("info", "ls")]
    assert all("offsets, not checked" in run.out + run.err for run in said)
    assert all("rmqlog verify " in run.out + run.err for run in said)
