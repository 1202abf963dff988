"""What a diagnosis comes to: one sentence, and the next step."""

from __future__ import annotations

from enum import StrEnum

from store_format.diagnose.files import INDEX_ADVICE
from store_format.diagnose.problems import Diagnosis
from store_format.read.served_elsewhere import DLEDGER

_REFUSES = "broker refuses to start on this store"  # words of the advice for files that a broker checks
# advice about what a recovery leaves as it is
_BY_HAND = (
    "A broker refuses to start on this store",
    "After a crash a broker rescans the log",
    "Consumers cannot find the topic",
    "Links below the store's root",
    "Messages of this batch are lost",
    "Move ",
    "Neither the file nor its .bak",
    "Nothing can be written",
    "A power loss came before",
    "Raise readQueueNums",
    "Readers and writers ask",
)
_NOT_ALL = "; a broker may serve others, from files that are not read"
_NOT_CHECKED = (
    "not checked: a DLedger store (enableDLegerCommitLog=true); its messages are in dledger-*/, which is not "
    "read"
)


class NextStep(StrEnum):
    """What somebody who has read the sentence does next."""

    NOTHING = "nothing"
    RECOVER = "recover"  # look at what a recovery of the store changes
    SALVAGE = "salvage"  # look at a recovered copy, which keeps what is whole
    AGAIN = "again"  # check again when nobody writes


def verdict(diagnosis: Diagnosis) -> tuple[str, NextStep]:
    """The sentence and the next step. A recovery refuses every DLedger store."""
    if not diagnosis.is_checked:
        return _NOT_CHECKED, NextStep.NOTHING
    if diagnosis.lost_log is not None:
        known = diagnosis.lost_log.known
        return f"the commitlog is missing: no message can be read or checked, but {known}", NextStep.AGAIN
    sentence, step = _sentence(diagnosis)
    can_recover = not any(problem.found == DLEDGER for problem in diagnosis)
    return sentence, step if can_recover or step is NextStep.AGAIN else NextStep.NOTHING


def _sentence(diagnosis: Diagnosis) -> tuple[str, NextStep]:
    summary = diagnosis.summary
    damages, warnings = diagnosis.of("damage"), diagnosis.of("warning")
    if not summary.files and not damages:
        return "empty: the commitlog has no files", NextStep.NOTHING
    whole, notes = f"{summary.readable:,} {_messages(summary.readable)} readable", _notes(diagnosis)
    if damages:
        places = f"{len(damages):,} place{'s' * (len(damages) != 1)}"
        gone = summary.damage_bytes + summary.missing_bytes + summary.unplaced_bytes
        lost = "the commitlog has no damaged byte"  # damage of queues and index files costs no message
        if summary.lost_entries:
            lost = f"{summary.lost_entries:,} {_messages(summary.lost_entries)} lost"
        elif gone:
            lost = f"messages in {gone:,} damaged or missing bytes are lost"
        is_salvage = bool(gone or summary.lost_entries or summary.cut_messages)
        step = NextStep.SALVAGE if is_salvage else _recovery(diagnosis)
        if diagnosis.lacks_last_files:
            lost += ", with the last commitlog files: copy those back if you have them"
        if diagnosis.refusal is not None:
            file = diagnosis.refusal.file
            lost += f"; all other commands refuse the store until {file} is restored, or moved out of a copy"
            step = NextStep.AGAIN
        return f"damaged in {places}: {whole}, {lost}{notes}{_start(diagnosis)}", step
    if summary.cut_messages:
        return f"damaged before its end: {whole}{notes}{_start(diagnosis)}", NextStep.SALVAGE
    whole += (_NOT_ALL if diagnosis.has_more else ", none lost") + notes
    if summary.state == "live":
        return f"in use, and sound so far: {whole}", NextStep.AGAIN
    if summary.state == "crashed":
        start = _start(diagnosis) or "; a broker start will cut nothing"
        return f"sound after a crash: {whole}{start}", NextStep.RECOVER
    if warnings:
        count = f"{len(warnings):,} warning{'s' * (len(warnings) != 1)}"
        return f"sound, with {count}: {whole}{_start(diagnosis)}", _recovery(diagnosis)
    return f"sound: {whole}; nothing has to be done", NextStep.NOTHING


def _recovery(diagnosis: Diagnosis) -> NextStep:
    """A recovery, unless everything that is wrong is to be put right by hand."""
    for problem in (*diagnosis.of("damage"), *diagnosis.of("warning")):
        is_bak = ".bak is used instead" in problem.advice
        if not is_bak and (problem.advice == INDEX_ADVICE or not problem.advice.startswith(_BY_HAND)):
            return NextStep.RECOVER
    return NextStep.NOTHING


def _messages(count: int) -> str:
    return "message" if count == 1 else "messages"


def _notes(diagnosis: Diagnosis) -> str:
    """What the log does not have any more, although nothing is wrong with it."""
    begin, given_up = diagnosis.log_begin, diagnosis.given_up
    notes = f"; an earlier recovery gave up {given_up}" if given_up else ""
    if begin:
        notes += f"; the log begins at {begin}: earlier messages were deleted (by retention or by hand)"
    return notes


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
