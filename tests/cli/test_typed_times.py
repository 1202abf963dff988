"""A time that a person types is in `--tz`, else in the machine's zone; each command says the instant."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from rmq_spark.cli.cells import zone_of
from rmq_spark.cli.typed_times import instant_text
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"
ORDERS = sorted(
    row["storeTimestamp"]
    for row in goldens.expected_rows(STORE)
    if (row["topic"], row["queueId"]) == ("Orders", 1)
)
ZONES = ("Asia/Shanghai", "Europe/Berlin", "America/New_York")


@pytest.fixture
def machine_in() -> Iterator[Callable[[str], None]]:
    """Sets the zone of this process, as TZ of a shell does."""
    before = os.environ.get("TZ")

    def set_zone(name: str) -> None:
        os.environ["TZ"] = name
        time.tzset()

    yield set_zone
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


def _clock(moment_ms: int, zone: str) -> str:
    """The moment as a clock of the zone shows it, in milliseconds and without the zone."""
    return zone_of(zone, to_terminal=True).full(
        datetime.fromtimestamp(moment_ms / 1000, zone_of("UTC", to_terminal=True).place).isoformat()
    )[:23]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("by_option", [False, True])
def test_a_group_moves_to_the_time_of_the_users_clock(
    rmqlog: Runner,
    copy_of: Golden,
    machine_in: Callable[[str], None],
    zone: str,
    by_option: bool,
) -> None:
    """The machine's zone counts, and `--tz` before it, also where the output is no terminal."""
    store = copy_of(STORE)
    machine_in("Pacific/Auckland" if by_option else zone)
    chosen = ("--tz", zone) if by_option else ()
    moment = ORDERS[40]
    asked = (
        "offsets",
        store,
        "CG_some",
        "-t",
        "Orders",
        "--to-time",
        _clock(moment, zone),
        *chosen,
        "-o",
        "json",
    )
    plan = rmqlog(*asked)
    assert f"--to-time is {_clock(moment, zone).replace('T', ' ')} UTC" in plan.err
    assert f" ({moment})\n" in plan.err
    rows = {row["queueId"]: row["targetOffset"] for row in rmqlog.rows(*asked[:-2])}
    assert rows[1] == ORDERS.index(moment)


def test_all_verbs_read_a_time_in_the_machines_zone(
    rmqlog: Runner, golden: Golden, machine_in: Callable[[str], None]
) -> None:
    machine_in("Asia/Shanghai")
    since = _clock(ORDERS[40], "Asia/Shanghai")
    wanted = rmqlog("head", golden(STORE), "-t", "Orders", "-q", 1, "--since", ORDERS[40], "-o", "json").out
    for zone, text in ((), since), (("--tz", "UTC"), _clock(ORDERS[40], "UTC")):
        found = rmqlog("head", golden(STORE), "-t", "Orders", "-q", 1, "--since", text, "-o", "json", *zone)
        assert found.out == wanted
        assert f" ({ORDERS[40]})\n" in found.err
    exported = rmqlog("export", golden(STORE), "-", "--format", "jsonl", "--until", since)
    assert f"--until is {since.replace('T', ' ')} UTC+08:00 ({ORDERS[40]})\n" in exported.err
    now = rmqlog("lag", golden(STORE), "--now", "2026-11-26 18:00")
    assert "rmqlog: --now is 2026-11-26 18:00 UTC+08:00 (1795687200000)\n" in now.err


def test_an_offset_is_not_moved_by_a_time_without_a_zone_in_a_script(rmqlog: Runner, golden: Golden) -> None:
    asked = ("offsets", golden(STORE), "CG_some", "--to-time", "2026-11-26 18:00", "--apply")
    said = rmqlog.fails(2, *asked)
    assert "has no time zone, and the output is no terminal: add --tz ZONE" in said
    assert "as in 2026-11-26T18:00+08:00" in said  # the typed time
    other = rmqlog.fails(2, *asked[:4], "2026-11-30", "--apply")
    assert "as in 2026-11-30T00:00+08:00" in other


@pytest.mark.parametrize("by_machine", [False, True])
@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (
            "2026-03-29T02:30",
            "does not show this time: type 2026-03-29T02:30:00+02:00 or 2026-03-29T02:30:00+01:00",
        ),
        (
            "2026-10-25T02:30",
            "shows this time twice: type 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00",
        ),
    ],
)
def test_a_time_that_the_clock_shows_not_once_is_refused(
    rmqlog: Runner, golden: Golden, machine_in: Callable[[str], None], by_machine: bool, clock: str, said: str
) -> None:
    """Clocks of Berlin go from 02:00 to 03:00 in March, and from 03:00 to 02:00 in October."""
    machine_in("Europe/Berlin" if by_machine else "Asia/Shanghai")
    zone = () if by_machine else ("--tz", "Europe/Berlin")
    assert said in rmqlog.fails(2, "head", golden(STORE), "--since", clock, *zone)
    typed = said.rsplit(" ", 1)[1]
    assert "--since is" in rmqlog("head", golden(STORE), "--since", typed, *zone).err


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (1_795_687_200_000, "2026-11-26 18:00 UTC+08:00 (1795687200000)"),
        (1_795_687_201_000, "2026-11-26 18:00:01 UTC+08:00 (1795687201000)"),
        (1_795_687_200_007, "2026-11-26 18:00:00.007 UTC+08:00 (1795687200007)"),
        ((1 << 63) - 1, "9223372036854775807 ms since 1970"),
    ],
)
def test_an_instant_is_said_in_its_zone_and_in_ms(moment: int, text: str) -> None:
    shanghai = zone_of("Asia/Shanghai", to_terminal=True)
    assert instant_text(moment, shanghai) == text


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_json_and_csv_have_the_zone_that_is_given(
    rmqlog: Runner, golden: Golden, machine_in: Callable[[str], None], form: str
) -> None:
    machine_in("America/New_York")
    asked = (
        "head",
        golden(STORE),
        "-t",
        "Orders",
        "-q",
        1,
        "-n",
        1,
        "--columns",
        "storeTimestamp",
        "-o",
        form,
    )
    shanghai = f"{_clock(ORDERS[0], 'Asia/Shanghai')}+08:00"
    assert shanghai in rmqlog(*asked, "--tz", "Asia/Shanghai").out
    in_utc = f"{_clock(ORDERS[0], 'UTC')}Z"
    assert in_utc in rmqlog(*asked).out
    assert in_utc in rmqlog(*asked, "--tz", "UTC").out
    if form != "json":
        out = ("export", golden(STORE), "-", "--format", form, "-t", "Orders", "-q", 1, "-n", 1)
        assert shanghai in rmqlog(*out, "--tz", "Asia/Shanghai").out
        assert in_utc in rmqlog(*out).out


def test_days_are_said_to_be_in_utc(rmqlog: Runner, golden: Golden) -> None:
    assert "the days are in UTC" in rmqlog("du", golden(STORE), "--by", "day", "--tz", "Asia/Shanghai").err
    assert "the days" not in rmqlog("du", golden(STORE)).err
