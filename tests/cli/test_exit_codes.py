"""How a run ends: one table of exit codes; an empty answer says so; a bug says what to report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_spark.cli.commands import overview
from rmq_spark.cli.exit_codes import EXIT_CODES
from rmq_spark.cli.main import COMMANDS
from tests.support.cli_runs import ROOT, Runner
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.writes import held

STORE = "basic-5.5.0"

# Commands that answer a question -> arguments for which the answer is empty. The others act, check or report.
EMPTY: dict[str, tuple[object, ...]] = {
    "info": ("--view", "deadLetters"),
    "ls": ("-q", 99),
    "du": ("-t", "None*"),
    "head": ("-t", "Orders", "--until", 1000),
    "tail": ("-t", "Orders", "--until", 1000),
    "get": ("7F0000010A1B18B4AAC20000000A0001",),
    "find": ("none-has-this-key",),
    "trace": ("7F0000010A1B18B4AAC20000000A0001",),
    "export": ("-", "--format", "csv", "--until", 1000),
    "lag": ("-t", "Metrics", "-g", "CG_some"),
    "groups": ("-g", "None*"),
    "offsets": ("-t", "None*"),
    "dlq": (),
    "delay": ("-t", "None*"),
    "half": (),
}
OTHERS = {
    "retention",
    "metrics",
    "diff",
    "check",
    "verify",
    "dump",
    "recover",
    "report",
    "topic",
    "group",
    "services",
    "clean",
    "doctor",
    "completion",
}


def test_each_command_can_be_empty_or_not() -> None:
    assert set(EMPTY) | OTHERS == set(COMMANDS)


@pytest.mark.parametrize("verb", EMPTY)
def test_an_empty_answer_says_so(rmqlog: Runner, golden: Golden, verb: str) -> None:
    done = rmqlog(verb, golden(STORE), *EMPTY[verb])
    assert done.code == 1, done.err
    assert done.out.count("\n") <= 1  # export to CSV writes the heading
    assert done.err.splitlines()[-1].startswith(("rmqlog: no ", "rmqlog: the "))


def test_the_codes(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    store = golden(STORE)
    damaged = Path(shutil.copytree(store, tmp_path / "damaged"))
    overwrite(damaged / "commitlog" / "00000000000000262144", 39043, b"X")
    in_use = Path(shutil.copytree(store, tmp_path / "in-use"))
    runs: dict[int, tuple[object, ...]] = {
        0: ("ls", store),
        1: ("ls", tmp_path / "nowhere"),
        2: ("ls", store, "--tz", "Mars"),
        3: ("verify", damaged),
        4: ("export", damaged, tmp_path / "a.csv", "--skip-damage"),
        5: ("export", store, tmp_path / "nowhere" / "a.csv"),
        6: ("offsets", in_use, "CG_some", "--to-latest", "--apply"),
    }
    with held(in_use):
        found = {code: rmqlog(*words) for code, words in runs.items()}
    assert {code: done.code for code, done in found.items()} == {code: code for code in runs}
    assert set(runs) | {70, 130} == {code for code, *_ in EXIT_CODES}
    assert {code for code, done in found.items() if not done.err} == {3}
    assert "offsets, not checked" in found[0].err


def test_a_bug_says_what_to_report(rmqlog: Runner, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQLOG_DEBUG", raising=False)
    monkeypatch.setattr(overview, "_LS_TOPICS", ("brokerName", "no\x1bwhere"))
    done = rmqlog("ls", golden(STORE))
    assert (done.code, done.out) == (70, "")
    what, report = done.err.splitlines()
    assert what.startswith("rmqlog: this is a bug of rmqlog: KeyError: ")
    assert "\x1b" not in what
    path, _, line = what.rpartition("(")[2].removesuffix(")").partition(", line ")
    assert (ROOT / path).is_file()
    assert int(line) > 0
    asked = "rmqlog: please report the command, the line above, and the output of rmqlog doctor"
    assert report.startswith(asked)
    monkeypatch.setenv("RMQLOG_DEBUG", "1")
    with pytest.raises(KeyError):
        rmqlog("ls", golden(STORE))


def test_help_and_page_have_the_table(rmqlog: Runner) -> None:
    flat = " ".join(rmqlog("--help").out.split())
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for code, words, about in EXIT_CODES:
        assert f"{code} {words}" in flat
        assert f"| {code} | {words} | {about} |" in page
    faq = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    assert "### `this is a bug of rmqlog: …`, exit code 70" in faq
    assert "### `no … match`, exit code 1" in faq
    assert len({code for code, *_ in EXIT_CODES}) == len(EXIT_CODES) == 9
