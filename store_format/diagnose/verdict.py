"""What a diagnosis comes to: one sentence, and the next step."""

from __future__ import annotations

from enum import StrEnum

from store_format.diagnose.problems import Diagnosis

_REFUSES = "broker refuses to start on this store"  # words of the advice for files that a broker checks


class NextStep(StrEnum):
    """What somebody who has read the sentence does next."""

    NOTHING = "nothing"
    RECOVER = "recover"  # look at what a recovery of the store changes
    SALVAGE = "salvage"  # look at a recovered copy, which keeps what is whole
    AGAIN = "again"  # check again when nobody writes


def verdict(diagnosis: Diagnosis) -> tuple[str, NextStep]:
    """The sentence and the next step."""
    summary = diagnosis.summary
    damages, warnings = diagnosis.of("damage"), diagnosis.of("warning")
    if not summary.files and not damages:
        return "empty: the commitlog has no files", NextStep.NOTHING
    whole = f"{summary.readable:,} {_messages(summary.readable)} readable"
    if damages:
        places = f"{len(damages):,} place{'s' * (len(damages) != 1)}"
        gone = summary.damage_bytes + summary.missing_bytes + summary.unplaced_bytes
        lost = "the commitlog has no damaged byte"  # damage of queues and index files costs no message
        if summary.lost_entries:
            lost = f"{summary.lost_entries:,} {_messages(summary.lost_entries)} lost"
        elif gone:
            lost = f"messages in {gone:,} damaged or missing bytes are lost"
        is_salvage = bool(gone or summary.lost_entries or summary.cut_messages)
        step = NextStep.SALVAGE if is_salvage else NextStep.RECOVER
        return f"damaged in {places}: {whole}, {lost}{_start(diagnosis)}", step
    if summary.cut_messages:
        return f"damaged before its end: {whole}{_start(diagnosis)}", NextStep.SALVAGE
    if summary.state == "live":
        return f"in use, and sound so far: {whole}, none lost", NextStep.AGAIN
    if summary.state == "crashed":
        start = _start(diagnosis) or "; a broker start will cut nothing"
        return f"sound after a crash: {whole}, none lost{start}", NextStep.RECOVER
    if warnings:
        count = f"{len(warnings):,} warning{'s' * (len(warnings) != 1)}"
        return f"sound, with {count}: {whole}, none lost{_start(diagnosis)}", NextStep.RECOVER
    return f"sound: {whole}, none lost; nothing has to be done", NextStep.NOTHING


def _messages(count: int) -> str:
    return "message" if count == 1 else "messages"


def _start(diagnosis: Diagnosis) -> str:
    """What a broker does that starts on the store, if it is not the usual."""
    summary = diagnosis.summary
    if any(_REFUSES in problem.advice for problem in diagnosis):
        return f"; a {_REFUSES}"
    if summary.cut_offset is None:
        return ""
    what = f"{summary.cut_bytes:,} bytes at {summary.cut_offset}"
    if summary.cut_messages:
        what += f", with {summary.cut_messages:,} whole {_messages(summary.cut_messages)}"
    return f"; a broker start will cut {what}"
