"""Times that a person types: without a zone they are in `--tz`, else in the zone of this machine.

The instant is printed, so that nobody has to guess the zone. `zone_of` decides in which zone times are shown.
"""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime, timedelta

import click

from rmq_spark.cli.cells import Zone, zone_of
from rmq_spark.cli.remarks import remark
from rmq_spark.options.option import Given, timestamp_ms
from store_format.errors import OptionError

_IN_UTC = "2024-05-01T12:00:00Z"  # the example in the error of `timestamp_ms`
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d)?", re.ASCII)
_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\d([ T][\d:.]*)?", re.ASCII | re.IGNORECASE)


def typed_time_ms(option: str, text: str) -> int:
    """The value of an option in ms since the epoch: ISO 8601, ms, or a time back from now such as `-2h`.

    Prints the instant, with its zone and in ms. Raises OptionError for a time that the zone's clock never
    shows, or shows twice.
    """
    zone = zone_of(click.get_current_context().params.get("tz") or "local", to_terminal=True)
    try:
        found = timestamp_ms(Given(option, text, time.time_ns() // 1_000_000), aware=zone.aware)
    except OptionError as error:  # options of Spark have times in UTC
        raise OptionError(str(error).replace(_IN_UTC, "2024-05-01T12:00")) from error
    remark(f"{option} is {instant_text(found, zone)}")
    return found


def refuse_unquoted_time(option: str, text: str) -> None:
    """Raises UsageError if the shell split `2024-05-01 12:00`, so that the time of day became a WORD."""
    words = click.get_current_context().params.get("words") or ()
    clock = next(filter(_CLOCK.fullmatch, words), None)
    if clock is not None and _DAY.fullmatch(text):
        raise click.UsageError(f"{clock} is taken as a key; quote the time: {option} '{text} {clock}'")


def refuse_without_zone(option: str, text: str) -> None:
    """Raises UsageError for a time without a zone, if neither `--tz` nor a terminal shows what it means."""
    if (
        _WITHOUT_ZONE.fullmatch(text.strip())
        and click.get_current_context().params.get("tz") is None
        and not sys.stdout.isatty()
    ):
        day, _, clock = text.strip().upper().replace(" ", "T").partition("T")
        raise click.UsageError(
            f"{option} {text!r} has no time zone, and the output is no terminal: add --tz ZONE, or write the "
            f"zone behind the time, as in {day}T{clock or '00:00'}+08:00"
        )


def instant_text(moment_ms: int, zone: Zone) -> str:
    """An instant in a zone, and in ms since the epoch.

    >>> from datetime import timezone
    >>> instant_text(1_795_687_200_000, Zone(timezone(timedelta(hours=8))))
    '2026-11-26 18:00 UTC+08:00 (1795687200000)'
    """
    try:
        moment = (_EPOCH + timedelta(milliseconds=moment_ms)).astimezone(zone.place)
    except (ValueError, OverflowError, OSError):  # behind the calendar's end
        return f"{moment_ms} ms since 1970"
    detail = "milliseconds" if moment_ms % 1000 else "seconds" if moment_ms % 60_000 else "minutes"
    return f"{moment.replace(tzinfo=None).isoformat(' ', detail)} {zone.label(moment)} ({moment_ms})"
