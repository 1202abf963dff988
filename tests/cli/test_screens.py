"""What a terminal shows: recorded screens of 80, 100 and 120 columns, colour, and the pager.

`RMQLOG_RECORD_SCREENS=1 pytest tests/cli/test_screens.py` records the screens again; look at them before you
commit them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_spark.cli.reading import TABLE_COLUMNS
from store_format.display.text import width
from tests.support.cli_runs import Runner, without_disk
from tests.support.fixtures import Golden
from tests.support.terminals import ForkedTerminals, without_progress
from tests.support.text_terminal import STORE, short_path
from tests.support.text_terminal import seen as seen_in_text

Screen = Callable[..., tuple[int, str]]
SCREENS = Path(__file__).parent / "screens"
COLUMNS = (80, 100, 120)
NOW = ("--now", "2026-11-22T04:00:00Z")

# name -> (store, verb, other arguments, what identifies the rows and is in all screens)
RUNS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "ls": ("basic-5.5.0", "ls", (), ("Orders", "Metrics")),
    "groups": ("basic-5.5.0", "groups", NOW, ("CG_some", "CG_all", "CG_tags2")),
    "lag": ("cleaned-5.5.0", "lag", NOW, ("CG_some", "CG_tags2", "%RETRY%CG_some", "Orders", "in 2d03h")),
    "lag-queues": ("basic-5.5.0", "lag", (*NOW, "-l", "-g", "CG_some"), ("%RETRY%CG_some", "Orders", "21h")),
    "lag-pop": ("pop-5.5.0", "lag", NOW, ("CG_pop", "%RETRY%CG_pop_PopWork", "51", "in flight")),
    "lag-cluster": ("cluster-5.5.0", "lag", NOW, ("broker-a", "broker-b")),
    "retention": ("cleaned-5.5.0", "retention", NOW, ("CG_some", "CG_tags2", "2026-11-25 04:00", "next:")),
    "retention-queues": ("cleaned-5.5.0", "retention", (*NOW, "-l"), ("CG_some", "Orders", "196608")),
    "trace": (
        "retry-dlq-5.5.0",
        "trace",
        ("7F00000129765FFD2B2768793AFE0009",),
        ("SCHEDULE_TOPIC_XXXX", "%DLQ%CG_fail", "06:52:55", "dead letter", "waits for retry 1"),
    ),
    "tail": ("basic-5.5.0", "tail", ("-t", "Orders", "-n", "5"), ("Orders", "06:52:34")),
    "tail-cluster": ("cluster-5.5.0", "tail", ("-n", "5"), ("broker-a", "broker-b")),
    "info": ("crash-torn-5.5.0", "info", ("--tz", "UTC"), ("crashed", "120777", "next:    rmqlog verify")),
    "verify": ("crash-torn-5.5.0", "verify", (), ("120777", "1 message lost", "next:    rmqlog recover")),
    "verify-sound": ("basic-5.5.0", "verify", (), ("verdict: sound: 2,010 messages",)),
}


@pytest.fixture(scope="module")
def screen() -> Iterator[Screen]:
    """What a terminal shows of a run of `rmqlog`; the runs are forks of one process."""
    with ForkedTerminals() as terminals:
        yield terminals.screen


@pytest.mark.process
@pytest.mark.parametrize("name", RUNS)
def test_the_recorded_screens(name: str, golden: Golden, screen: Screen) -> None:
    store, verb, more, identifying = RUNS[name]
    parts = []
    for columns in COLUMNS:
        with short_path(golden(store)) as path:
            code, seen = screen(columns, verb, path, *more, NO_COLOR="1")
        assert code == 0, seen
        seen = without_progress(seen).replace(path, STORE)
        fitted = [line for line in seen.splitlines() if not line.startswith("next: ")]
        assert verb == "verify" or max(map(width, fitted)) <= columns
        seen = without_disk(seen)
        for word in identifying:
            assert word in seen, (columns, word)
        parts.append(f"== {columns} columns: rmqlog {' '.join((verb, STORE, *more))}\n{seen}")
    recorded = SCREENS / f"{name}.txt"
    if os.environ.get("RMQLOG_RECORD_SCREENS"):
        recorded.parent.mkdir(exist_ok=True)
        recorded.write_text("\n".join(parts), encoding="utf-8")
    assert recorded.read_text(encoding="utf-8") == "\n".join(parts)


@pytest.mark.process
@pytest.mark.parametrize("name", ["lag", "tail", "verify", "info"])
def test_a_text_terminal_shows_what_a_terminal_shows(name: str, golden: Golden, screen: Screen) -> None:
    """The screens of all verbs are those of a text terminal."""
    store, verb, more, _ = RUNS[name]
    code, seen = screen(80, verb, golden(store), *more, NO_COLOR="1")
    assert (code, without_progress(seen)) == seen_in_text(80, verb, golden(store), *more)


@pytest.mark.process
def test_every_id_keeps_its_end_and_stays_different(golden: Golden, screen: Screen) -> None:
    wide = screen(400, "tail", golden("basic-5.5.0"), "-t", "Orders", "-n", "50")[1]
    narrow = screen(100, "tail", golden("basic-5.5.0"), "-t", "Orders", "-n", "50")[1]
    ids = re.findall(r"\b7F[0-9A-F]{30}\b", wide)
    assert len(ids) == 50
    assert re.findall(r"7F00…([0-9A-F]{12})\b", narrow) == [each[-12:] for each in ids]


@pytest.mark.process
def test_file_names_keep_their_offset(golden: Golden, screen: Screen) -> None:
    seen = screen(80, "du", golden("basic-5.5.0"), "--files", NO_COLOR="1")[1]
    assert max(map(width, seen.splitlines())) <= 80
    for name in ("commitlog/…262144", "consumequeue/SCHEDULE_TOPIC_XXXX/2/…0", "consumequeue/Audit/0/…2000"):
        assert f" {name} " in seen


@pytest.mark.process
def test_what_fits_no_table_becomes_records(golden: Golden, screen: Screen) -> None:
    code, seen = screen(
        30, "lag", golden("basic-5.5.0"), *NOW, "-l", "-g", "CG_some", "-t", "Orders", NO_COLOR="1"
    )
    assert code == 0
    first = seen.split("\n\n")[0].splitlines()
    assert "topic            Orders" in first
    assert re.search(r"^lagMs +21h07m$", seen, re.MULTILINE)


@pytest.mark.process
def test_wide_and_columns_keep_all_of_a_table(golden: Golden, screen: Screen) -> None:
    seen = screen(80, "tail", golden("basic-5.5.0"), "-t", "Orders", "-n", "2", "--wide", NO_COLOR="1")[1]
    assert seen.splitlines()[0].split() == list(TABLE_COLUMNS)
    assert re.search(r"2026-11-21T06:52:34\.\d{3}Z", seen)
    asked = ("--columns", "brokerName,topic,perm")
    assert screen(80, "ls", golden("basic-5.5.0"), *asked, NO_COLOR="1")[1].startswith("brokerName  topic")


@pytest.mark.process
def test_a_text_that_was_asked_for_is_cut_only_by_the_terminal(
    rmqlog: Runner, copy_of: Golden, screen: Screen
) -> None:
    path = copy_of("crash-torn-5.5.0")
    asked = ("recover", path.rename(path.with_name("node" * 30)), "--columns", "reason")
    first, *_, last = [row["reason"] for row in rmqlog.rows(*asked)]
    assert 80 < len(first) <= 200 < len(last)
    assert first in rmqlog(*asked).out
    assert f"\n{first[:79]}…\n" in screen(80, *asked, NO_COLOR="1")[1]
    seen = screen(80, *asked, "--wide", NO_COLOR="1")[1]
    assert (first in seen, last in seen) == (True, True)


@pytest.mark.process
def test_times_are_local_on_a_terminal(golden: Golden, screen: Screen) -> None:
    arguments = ("tail", golden("basic-5.5.0"), "-t", "Orders", "-n", "2")
    seen = screen(120, *arguments, NO_COLOR="1", TZ="XST-8")[1]
    assert seen.startswith("times: 2026-11-21 UTC+08:00\n")
    assert re.search(r"^14:52:34\.\d{3} ", seen, re.MULTILINE)
    assert "times: 2026-11-21 UTC\n" in screen(120, *arguments, "--tz", "UTC", TZ="XST-8", NO_COLOR="1")[1]


@pytest.mark.process
def test_loss_is_red_and_lag_is_yellow_on_a_terminal(golden: Golden, screen: Screen) -> None:
    arguments = ("lag", golden("cleaned-5.5.0"), *NOW, "-g", "CG_some")
    seen = screen(120, *arguments)[1]
    assert re.search(r"\x1b\[31m123\x1b\[0m", seen)
    assert "\x1b[33m" in seen
    assert "\x1b" not in screen(120, *arguments, NO_COLOR="1")[1]
    assert "\x1b[31mverdict: CG_some loses" in screen(120, "retention", *arguments[1:])[1]


@pytest.mark.process
def test_long_output_goes_through_the_pager(golden: Golden, screen: Screen) -> None:
    arguments = ("tail", golden("basic-5.5.0"), "-n", "30")
    paged = screen(120, *arguments, lines=20, RMQLOG_PAGER="sed s/^/P:/")[1]
    assert [line[:2] for line in paged.splitlines()].count("P:") == len(paged.splitlines()) > 30
    assert "P:" not in screen(120, *arguments, lines=100, RMQLOG_PAGER="sed s/^/P:/")[1]
    code, seen = screen(120, *arguments, lines=20, RMQLOG_PAGER="head -n 1")  # a reader who leaves early
    assert (code, len(seen.splitlines())) == (0, 1)
