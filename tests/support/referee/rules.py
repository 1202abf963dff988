"""What contradicts: the rules that each answer about a store must obey, and all answers together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from store_format.bookkeeping.ledger import FILLER_TOPIC
from tests.support.referee.answers import Answer
from tests.support.referee.askers import DAMAGED_BYTES
from tests.support.referee.truth import Fate, Row, Stored

_WORDS = {
    Fate.EXPIRED: "that retention has deleted",
    Fate.DELETED: "of a deleted topic",
    Fate.DAMAGED: "that are damaged",
    Fate.LOST: "that are lost",
    Fate.GIVEN_UP: "that a recovery has given up",
    Fate.UNKNOWN: "of which nobody knows whether their topic was deleted",
}


def disagreements(answers: Sequence[Answer]) -> list[str]:
    """A sentence for each contradiction between the answers and the truth, and between two answers."""
    found = [f"{answer.asker}: {text}" for answer in answers for rule in _ALONE for text in rule(answer)]
    found += [text for rule in _TOGETHER for text in rule({answer.asker: answer for answer in answers})]
    return list(dict.fromkeys(found))


# ---- one answer -------------------------------------------------------------------------------------------


def _no_bug(answer: Answer) -> Iterator[str]:
    if answer.bug:
        yield f"ends with {answer.bug}"


def _no_wrong_rows(answer: Answer) -> Iterator[str]:
    """Returns no row that it should not return, and none twice."""
    truth = answer.truth
    if answer.rows is None or _returns_units(answer):
        return
    by_row: dict[Row, Stored] = {each.row: each for each in truth.messages}
    right = set(_right_rows(answer))
    searches = answer.key or answer.asker == "scan"  # the log, also what no queue has
    wrong: Counter[str] = Counter()
    for row, count in answer.rows.items():
        if searches and row[0] == FILLER_TOPIC:
            continue  # a unit that a salvage has put into the place of damaged bytes
        if row not in by_row:
            wrong["that the store was never given"] += count
        elif count + answer.earlier[row] > 1:
            wrong["a second time"] += count + answer.earlier[row] - 1
        elif row not in right and not searches:
            wrong[_WORDS[truth.fates[by_row[row]]]] += count
    for words, count in wrong.items():
        yield f"returns {count} messages {words}"


def _returns_units(answer: Answer) -> bool:
    """Whether the answer has units of light queues and inner batches, which are other rows."""
    return answer.asker == "scan" and not all(each.is_plain for each in answer.truth.messages)


def _right_rows(answer: Answer) -> list[Row]:
    kept = answer.truth.of(Fate.KEPT)
    return [each.row for each in kept if not answer.key or (answer.key in each.keys and each.is_plain)]


def _no_missing_rows(answer: Answer) -> Iterator[str]:
    """Returns all whole messages, or refuses."""
    if answer.rows is None or answer.refusal or answer.bug:
        return
    if _returns_units(answer):
        return
    right = _right_rows(answer)
    missing = sum(row not in answer.rows and row not in answer.earlier for row in right)
    if missing:
        how = "silently" if answer.is_silent else "with a warning"
        yield f"{how} leaves out {missing} of {len(right)} whole messages"


def _names_what_is_lost(answer: Answer) -> Iterator[str]:
    truth, key = answer.truth, answer.key
    lost = [each for each in truth.lost if not key or (key in each.keys and each.row not in truth.unindexed)]
    lost = [each for each in lost if each.row not in answer.earlier and each.row not in answer.told]
    if answer.rows is not None and lost and answer.is_silent:
        yield f"does not say that {len(lost)} messages are lost"


def _asks_and_does_not_guess(answer: Answer) -> Iterator[str]:
    """Fails, or says what it leaves out, if nobody knows whether messages belong to a deleted topic."""
    before = answer.earlier.keys() | answer.told
    unknown = [each for each in answer.truth.of(Fate.UNKNOWN) if each.row not in before]
    touched = {each.queue for each in unknown} & answer.starts.keys()
    if touched:
        yield f"gives offsets in {sorted(touched)} and does not ask about the messages that are there"
    if answer.rows is None or answer.key or answer.asker == "scan" or not unknown:
        return
    if answer.is_silent:
        yield f"does not say that {len(unknown)} messages may belong to a deleted topic"
    elif not answer.skips and not answer.refusal:
        yield f"does not ask about {len(unknown)} messages that may belong to a deleted topic"


def _no_false_refusal(answer: Answer) -> Iterator[str]:
    """Refuses no sound store. An answer that may leave out damage refuses only without a commitlog."""
    truth = answer.truth
    if not answer.refusal:
        return
    if not truth.differences and not truth.is_log_missing and not _may_stop(answer):
        yield f"refuses a sound store: {answer.refusal}"
    elif answer.skips and truth.of(Fate.KEPT):
        yield f"refuses: {answer.refusal}"


def _may_stop(answer: Answer) -> bool:
    """A running query with failOnDataLoss=true stops when messages that it has not read are gone."""
    return "stream" in answer.asker or "group" in answer.asker


def _no_false_retention(answer: Answer) -> Iterator[str]:
    """Does not call a message deleted by retention that is there."""
    texts = (text for text in [answer.refusal, *answer.warnings] if "retention" in text)
    for topic, queue_id, offset in re.findall(r"(\S+)-(\d+) offset (\d+)", " ".join(texts)):
        fate = answer.truth.fate_at(topic, int(queue_id), int(offset))
        if fate not in (None, Fate.EXPIRED):
            assert fate is not None
            yield f"says that retention has deleted {topic}-{queue_id} offset {offset}, which is {fate.value}"


def _writes_at_the_end(answer: Answer) -> Iterator[str]:
    for (topic, queue_id), start in answer.starts.items():
        least = answer.truth.next_offset((topic, queue_id))
        if start < least:
            yield f"gives {topic}-{queue_id} the offset {start}, and the next one was {least}"
    overwritten = answer.counts.get("overwritten")
    if overwritten:
        yield f"overwrites {overwritten} valid entries of consume queues"
    left = answer.counts.get("left")
    if left:
        yield f"leaves {left} entries of whole messages missing or wrong"
    cut = answer.counts.get("cut")
    if cut and answer.is_silent:
        yield f"does not say that it gives up {cut} lost messages"
    unserved = answer.counts.get("unserved")
    if unserved:
        yield f"leaves {unserved} messages in queues that topics.json does not have"


def _verify_is_right(answer: Answer) -> Iterator[str]:
    truth = answer.truth
    if not answer.asker.startswith("verify") or answer.refusal or answer.bug:
        return
    verdict = answer.text.partition("\n")[0]
    lost = truth.lost
    readable, unread = answer.counts["readable"] or 0, answer.counts.get("unread") or 0
    if not truth.units - unread <= readable <= truth.units or (unread and not truth.differences):
        yield f"says {verdict!r}, and {truth.units} messages can be read"
    named = f"{len(lost):,} message" in verdict or "mount" in answer.text.lower()
    named |= bool(truth.unnamed) and "damaged or missing bytes are lost" in verdict
    if lost and not named:
        yield f"says {verdict!r}, and {len(lost)} messages are lost"
    in_crash = re.search(r", ([\d,]+) messages? lost with the crash", verdict)
    if in_crash and int(in_crash[1].replace(",", "")) > truth.vanished * truth.is_crashed:
        yield f"says {verdict!r}, and {truth.vanished} messages are lost with a crash"
    others = "none lost|lost with the crash"
    if DAMAGED_BYTES in truth.differences:
        others += "|messages in [0-9,]+ damaged or missing bytes are lost"
    if not lost and "lost" in re.sub(others, "", verdict):
        yield f"says {verdict!r}, and no message is lost"
    completed_by_a_broker = truth.is_crashed and verdict.startswith("sound after a crash") and not lost
    is_bad = bool(truth.differences or truth.is_log_missing)
    if verdict.startswith(("sound", "empty")) and is_bad and not completed_by_a_broker:
        yield f"says {verdict!r}, and it is not: {'; '.join(truth.differences)}"
    if truth.begins_by_hand is not None and str(truth.begins_by_hand) not in answer.text:
        yield f"says {verdict!r}, and not that the log begins at {truth.begins_by_hand}"
    if answer.code == 0 and lost:
        yield f"ends with exit code 0, and {len(lost)} messages are lost"
    if not truth.differences and not truth.is_log_missing and not verdict.startswith("sound"):
        yield f"says {verdict!r} of a sound store"


def _counts_what_can_be_read(answer: Answer) -> Iterator[str]:
    if answer.asker not in ("info", "ls") or answer.refusal or answer.bug:
        return
    kept = len(answer.truth.of(Fate.KEPT))
    # these callers look at the ends of queues, not at the bytes of messages
    most = kept + len(answer.truth.of(Fate.UNKNOWN, Fate.DAMAGED))
    if not kept <= (answer.counts["messages"] or 0) <= most:
        yield f"counts {answer.counts['messages']} messages, and {kept} can be read"


def _lag_is_right(answer: Answer) -> Iterator[str]:
    if answer.asker != "lag" or answer.refusal or answer.bug:
        return
    truth = answer.truth
    for (group, topic, queue_id), committed in truth.committed.items():
        said = answer.counts.get(f"{group} {topic}-{queue_id}")
        queue = topic, queue_id
        if said is None:
            continue
        unread = sum(each.queue == queue and each.queue_offset >= committed for each in truth.of(Fate.KEPT))
        if "pop" in group:
            continue  # it has read messages behind the committed offset
        if said < 0 and not unread and (truth.vanished or truth.of(Fate.GIVEN_UP)):
            continue  # the group has read messages that a recovery has given up
        # those that retention has deleted count as well
        if not unread <= said <= max(truth.next_offset(queue) - committed, 0):
            yield f"says {said} for {group} in {topic}-{queue_id}, and {unread} messages are unread"


def _advice_is_followed(answer: Answer) -> Iterator[str]:
    if answer.asker.startswith("the advice") and answer.refusal:
        yield f"refuses: {answer.refusal}"


def _report_has_a_verdict(answer: Answer) -> Iterator[str]:
    if answer.asker == "the report of recover" and "verdict:" not in answer.text:
        yield "has no verdict"


_ALONE: tuple[Callable[[Answer], Iterator[str]], ...] = (
    _no_bug,
    _no_wrong_rows,
    _no_missing_rows,
    _names_what_is_lost,
    _asks_and_does_not_guess,
    _no_false_refusal,
    _no_false_retention,
    _writes_at_the_end,
    _verify_is_right,
    _counts_what_can_be_read,
    _lag_is_right,
    _advice_is_followed,
    _report_has_a_verdict,
)


# ---- several answers --------------------------------------------------------------------------------------


def _verify_and_readers_agree(answers: dict[str, Answer]) -> Iterator[str]:
    said, read = answers.get("verify"), answers.get("export --skip-damage")
    if said is None or read is None or said.refusal or not read.refusal:
        return
    if said.counts.get("readable"):
        yield f"verify says {said.counts['readable']} messages readable, and export --skip-damage refuses"


def _writer_and_recover_agree(answers: dict[str, Answer]) -> Iterator[str]:
    write, recover = answers.get("a write"), answers.get("recover --apply")
    if write is None or recover is None or not write.refusal or write.truth.of(Fate.UNKNOWN):
        return
    after = answers.get("a batch read after recover --apply")
    if after is not None and not after.refusal and not after.bug:
        yield f"a write refuses what recover mends: {write.refusal}"


def _one_advice_for_a_crash(answers: dict[str, Answer]) -> Iterator[str]:
    """`info` and `verify` say the same about what a broker cuts, and a sound store may be started on."""
    said, short = answers.get("verify"), answers.get("info")
    if said is None or short is None:
        return
    cut = re.search(r"a broker start will cut the commitlog at \d+", short.text)
    if cut and "will cut nothing" in said.text:
        yield f"info says {cut[0]!r}, and verify says 'a broker start will cut nothing'"
    if said.text.startswith("sound") and "Do not start a broker" in said.text:
        yield f"verify says {said.text.partition(chr(10))[0]!r}, and 'Do not start a broker'"


def _one_next_command(answers: dict[str, Answer]) -> Iterator[str]:
    """`verify` and `recover` name one recovery: of the store itself, or of a copy that keeps more. `recover`
    adds `--apply`, and names none if it changes nothing.
    """
    verified, shown = answers.get("verify"), answers.get("recover")
    if verified is None or shown is None or not shown.text:
        return
    first, second = (re.sub(" --apply| --broker-conf [^ ]+", "", each.advice) for each in (verified, shown))
    if first != second and first and (second or " --salvage" in first):
        yield f"verify names {first!r} as the next command, and recover {second!r}"


_TOGETHER: tuple[Callable[[dict[str, Answer]], Iterator[str]], ...] = (
    _verify_and_readers_agree,
    _writer_and_recover_agree,
    _one_advice_for_a_crash,
    _one_next_command,
)
