"""May a broker start on the store? Yes if, by the rules of RocketMQ 5.5.0, its start cuts no message off, and
it serves every message that a read of the store returns. It is a question about a start, not about losses:
of a log with damage in its middle, a broker serves all that can be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from store_format.commitlog.dledger import GROUP_RECOVERS
from store_format.diagnose.lost_messages import Evidence
from store_format.diagnose.problems import MISSING_ADVICE, UNCHECKED_ADVICE, Diagnosis, verdict
from store_format.diagnose.queue_advice import UNKNOWN_ADVICE, WRITTEN_ADVICE

_REFUSES = re.compile("broker .*refuses? to start")  # in an advice
_NOT_BEFORE = re.compile("Do not start a broker before|before a broker starts|, a broker does not: ")
_STOPS_AT_DAMAGE = (  # DefaultMessageStore.ReputMessageService.doReput
    "where it writes lost consume queues again, it stops at damaged bytes, and goes on with the next "
    "commitlog file: rmqlog recover writes all entries"
)
_HAS_MORE = (
    "the files of this store do not keep it from a start, but the broker also serves messages from files "
    "that are not checked, such as tiered storage"
)
_GROUP_LACKS = (
    "the log is damaged, and a start cuts {:,} whole messages behind the damage. If a majority of its group "
    "runs, the leader gives them back. If not, export them first, with rmqlog export --skip-damage"
)
_NO_DATABASE = "the database of the consume queues is missing. "


class MayStart(StrEnum):
    """The answer in a word."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """Whether a broker may start, and the first cause why not, or what to know before."""

    may: MayStart
    cause: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.may}: {self.cause}" if self.cause else str(self.may)


def broker_start(diagnosis: Diagnosis) -> BrokerStart:
    """The answer for a store that `diagnose` has checked. The first cause is what loses the most.

    The rules are those of DefaultMessageStore.load and CommitLog.recoverNormally and recoverAbnormally; the
    tests compare the answer with these classes.
    """
    summary = diagnosis.summary
    if not diagnosis.is_checked:
        return BrokerStart(MayStart.UNKNOWN, verdict(diagnosis)[0])
    if summary.state == "live":
        return BrokerStart(MayStart.UNKNOWN, "a broker has the store open")
    if diagnosis.lost_log is not None:
        return BrokerStart(MayStart.NO, verdict(diagnosis)[0])
    if diagnosis.is_dledger:
        behind = f"{diagnosis.uncommitted}; " if diagnosis.uncommitted else ""
        told = _GROUP_LACKS.format(summary.cut_messages) if summary.cut_messages else GROUP_RECOVERS
        return BrokerStart(MayStart.UNKNOWN, f"a DLedger store: {behind}{told}")
    refused = next((problem for problem in diagnosis if _REFUSES.search(problem.advice)), None)
    if refused is not None:
        cause = f"it refuses to start: expected {refused.expected}, found {refused.found}"
        return BrokerStart(MayStart.NO, cause, refused.file)
    if diagnosis.refusal is not None:
        cause = (
            f"rmqlog cannot read it: expected {diagnosis.refusal.expected}, found {diagnosis.refusal.found}"
        )
        return BrokerStart(MayStart.UNKNOWN, cause, diagnosis.refusal.file)
    if summary.cut_messages:
        cause = f"it cuts {summary.cut_messages:,} whole messages off, from offset {summary.cut_offset} on"
        return BrokerStart(MayStart.NO, cause)
    for unserved in (diagnosis.unserved, diagnosis.unserved_light):
        if unserved:
            return BrokerStart(MayStart.NO, f"it does not serve {unserved.named}")
    if diagnosis.lacks_last_files:
        cause = "the last commitlog files are missing: copy them back first; a start cuts the queues for good"
        return BrokerStart(MayStart.NO, cause)
    if any(each.advice == MISSING_ADVICE for each in diagnosis):
        return BrokerStart(MayStart.UNKNOWN, f"{_NO_DATABASE}{MISSING_ADVICE}")
    asked = next((each for each in diagnosis if each.advice in (UNKNOWN_ADVICE, UNCHECKED_ADVICE)), None)
    if asked is not None:
        return BrokerStart(MayStart.UNKNOWN, f"expected {asked.expected}, found {asked.found}", asked.file)
    if any(each.evidence is Evidence.CLAIM for each in diagnosis.lost):
        return BrokerStart(MayStart.NO, "it hands out messages at places that their records contradict")
    wrong = next((problem for problem in diagnosis if _NOT_BEFORE.search(problem.advice)), None)
    if wrong is not None:
        return BrokerStart(MayStart.NO, f"expected {wrong.expected}, found {wrong.found}", wrong.file)
    is_rebuilt = any(problem.advice == WRITTEN_ADVICE for problem in diagnosis)
    if is_rebuilt and summary.damage_bytes > summary.torn_bytes:
        return BrokerStart(MayStart.NO, _STOPS_AT_DAMAGE)
    if diagnosis.has_more:
        return BrokerStart(MayStart.UNKNOWN, _HAS_MORE)
    return BrokerStart(MayStart.YES, "")
