"""What every verb and its help show in a terminal of 80 columns and in a pipe: recorded, and no word is cut.

`RMQLOG_RECORD_SCREENS=1 pytest tests/cli/test_verb_screens.py` records the screens again; look at them before
you commit them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rmq_spark.cli.commands.doctor import Check, print_checks
from rmq_spark.cli.main import COMMANDS
from rmq_spark.cli.output import Output
from store_format.display.text import width
from tests.support.cli_runs import without_disk
from tests.support.file_edits import harm
from tests.support.fixtures import Golden
from tests.support.text_terminal import STORE, seen, short_path

SCREENS = Path(__file__).parent / "screens" / "verbs"
COLUMNS = 80
NOW = ("--now", "2026-11-22T04:00:00Z")
OTHER = "/data/other"  # another store in recorded screens: OTHER_STORE
OTHER_STORE = "basic-4.9.7"

# verb -> [(store, harms, other arguments)]
RUNS: dict[str, list[tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "info": [("basic-5.5.0", (), ()), ("basic-5.5.0", (), ("--view", "checkpoint"))],
    "ls": [("basic-5.5.0", (), ()), ("basic-5.5.0", (), ("-l", "-t", "Orders"))],
    "du": [("basic-5.5.0", (), ())],
    "head": [("basic-5.5.0", (), ("-n", "3")), ("retry-dlq-5.5.0", (), ("--tag", "TagA", "-n", "3"))],
    "tail": [("basic-5.5.0", (), ("-n", "3")), ("basic-5.5.0", (), ("-t", "Oders"))],
    "get": [("basic-5.5.0", (), ("Orders/2@last",)), ("basic-5.5.0", (), ("nobody",))],
    "find": [
        ("basic-5.5.0", (), ("id-2003",)),
        ("basic-5.5.0", (), ("id-2003", "id-2004")),
        ("basic-5.5.0", (), ("id-20",)),
    ],
    "trace": [("retry-dlq-5.5.0", (), ("7F00000129765FFD2B2768793AFE0009",))],
    "export": [
        ("basic-5.5.0", (), ("-", "--format", "csv", "-t", "Orders", "-n", "2", "--columns", "offset"))
    ],
    "diff": [("basic-5.5.0", (), (OTHER, "-n", "3")), ("basic-5.5.0", (), (STORE, "-a"))],
    "lag": [("cleaned-5.5.0", (), NOW), ("pop-5.5.0", (), (*NOW, "--in-flight"))],
    "retention": [("cleaned-5.5.0", (), NOW)],
    "groups": [("basic-5.5.0", (), NOW)],
    "offsets": [
        ("basic-5.5.0", (), ("CG_some", "-t", "Orders")),
        ("basic-5.5.0", (), ("CG_some", "-t", "Orders", "--to-latest")),
    ],
    "dlq": [
        ("retry-dlq-5.5.0", (), ()),
        ("retry-dlq-5.5.0", (), ("-g", "CG_fail", "--resend")),
        ("retry-dlq-5.5.0", (), ("-g", "CG_fail", "--key", "id-9", "--with-body")),
    ],
    "delay": [("delay-tx-5.5.0", (), (*NOW, "-n", "5"))],
    "half": [("delay-tx-5.5.0", (), (*NOW, "-n", "5"))],
    "metrics": [],  # a page of the moment; tests/cli/test_metrics_commands.py
    "check": [("cleaned-5.5.0", (), (*NOW, "--max-lag", "100:500", "--max-loss-in", "24h"))],
    "verify": [
        ("crash-torn-5.5.0", (), ()),
        ("basic-5.5.0", ("remove commitlog",), ()),
        ("delay-tx-5.5.0", ("remove config/topics.json", "remove config/topics.json.bak"), ()),
    ],
    "report": [
        ("crash-torn-5.5.0", (), NOW),
        ("basic-5.5.0", ("remove consumequeue/Orders/1",), (*NOW, "-o", "report.pdf")),
    ],
    "dump": [("basic-5.5.0", (), ("Orders/2@0",)), ("basic-5.5.0", (), ("100",))],
    "recover": [
        ("crash-torn-5.5.0", (), ()),
        ("basic-5.5.0", ("remove index",), ()),
    ],
    "topic": [
        ("basic-5.5.0", (), ("Orders",)),
        ("basic-5.5.0", (), ("Payments", "--create", "--message-type", "FIFO")),
        ("pop-5.5.0", (), ("PopWork", "--delete")),
    ],
    "group": [
        ("basic-5.5.0", (), ("CG_some", "--retry-max-times", "3", "--no-consume")),
        ("retry-dlq-5.5.0", (), ("CG_fail", "--delete", "--remove-offset")),
    ],
    "services": [("basic-5.5.0", (), ("--once", "--only", "flush"))],
    "clean": [("cleaned-5.5.0", (), ("--file-reserved-time", "1", "--unread"))],
    "doctor": [],  # says what is installed here
    "completion": [("", (), ("zsh",))],
}


def test_every_verb_is_here() -> None:
    assert list(RUNS) == list(COMMANDS)
    recorded = {path.stem for path in SCREENS.glob("*.txt")}
    assert recorded == {*COMMANDS, "rmqlog"}


def _shown(columns: int | None, *words: str) -> str:
    code, text = seen(columns, *words)
    text = re.sub(r"\([\d.]+ \w+ on the disk\)", "(… on the disk)", text)  # this file system's blocks
    return without_disk(f"exit {code}\n{text}")


def _is_cut(line: str) -> bool:
    """Whether a terminal cuts the line in the middle of a word that a blank could have kept whole."""
    return width(line) > COLUMNS and " " in line.strip()


def _remarks(text: str) -> list[str]:
    """The sentences on stderr, each in one line."""
    return [" ".join(lines.split()) for lines in re.findall(r"^rmqlog: .*(?:\n {8}.*)*", text, re.MULTILINE)]


def _letters(text: str) -> list[str]:
    """The words without punctuation. click also breaks a line behind a hyphen."""
    return [re.sub(r"\W", "", word) for word in re.sub(r"(?<=\w-)\s+(?=\w)", "", text).split()]


@pytest.mark.parametrize("verb", RUNS)
def test_a_verb_cuts_no_word(verb: str, golden: Golden, copy_of: Golden) -> None:
    parts = []
    for store, harms, more in RUNS[verb]:
        path = (copy_of if harms else golden)(store) if store else Path("/")
        for each in harms:
            harm(path, each)
        with short_path(path) as short, short_path(golden(OTHER_STORE), OTHER) as other:
            given = [{STORE: short, OTHER: other}.get(word, word) for word in more]
            words = [verb, *([short] if store else []), *given]
            screens = {columns: _shown(columns, *words) for columns in (COLUMNS, None)}
        named = " ".join((verb, *([STORE] if store else []), *more))
        for columns, text in screens.items():
            place = f"{columns} columns" if columns else "piped"
            parts.append(f"== {place}: rmqlog {named}\n{text.replace(short, STORE)}")
        if verb not in ("completion", "check"):  # a script, and one line for a monitor
            assert [line for line in screens[COLUMNS].splitlines() if _is_cut(line)] == []
        narrow, piped = (_remarks(text) for text in screens.values())
        assert narrow == piped
    _check(verb, parts)


@pytest.mark.parametrize("verb", [*COMMANDS, ""])
def test_a_help_cuts_no_word(verb: str) -> None:
    words = [*([verb] if verb else []), "--help"]
    screens = {
        place: _shown(columns, *words) for place, columns in (("80 columns", COLUMNS), ("piped", None))
    }
    for text in screens.values():
        assert [line for line in text.splitlines() if _is_cut(line)] == []
    whole = {*_letters(_shown(400, *words))}
    for text in screens.values():
        assert [word for word in _letters(text) if word not in whole] == []
    _check(
        verb or "rmqlog",
        [f"== {place}: rmqlog {' '.join(words)}\n{text}" for place, text in screens.items()],
        "help",
    )


def _check(name: str, parts: list[str], kind: str = "answer") -> None:
    """Compares the parts of a kind with the recorded file, which has the answers and the help of a verb."""
    recorded = SCREENS / f"{name}.txt"
    marks = {"answer": "==== answers\n", "help": "==== help\n"}
    old = recorded.read_text(encoding="utf-8") if recorded.exists() else "".join(marks.values())
    answers, _, help_ = old.removeprefix(marks["answer"]).partition(marks["help"])
    new = "\n".join(parts) + "\n" * bool(parts)
    if os.environ.get("RMQLOG_RECORD_SCREENS"):
        answers, help_ = (new, help_) if kind == "answer" else (answers, new)
        recorded.parent.mkdir(exist_ok=True)
        recorded.write_text(f"{marks['answer']}{answers}{marks['help']}{help_}", encoding="utf-8")
    assert new == (answers if kind == "answer" else help_)


@pytest.mark.parametrize("columns", [COLUMNS, None])
def test_doctor_cuts_no_word(capsys: pytest.CaptureFixture[str], columns: int | None) -> None:
    """Its answers depend on what is installed."""
    long = "a path /usr/lib/python3/site-packages and some words that say what was found there, in a sentence"
    checks = [Check("Spark's Python", "fails", long, long), Check("java", "ok", "17")]
    print_checks(Output("table", terminal_columns=columns), checks)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines) > len(checks)) == (columns is not None)
    assert " ".join(lines).split() == f"fails Spark's Python {long}. {long} ok java 17".split()
    assert columns is None or max(map(width, lines)) <= columns
