"""What diagnose says about commits of ours: one that was broken off, and batches that were cut or overwritten
since.
"""

from __future__ import annotations

from store_format.bookkeeping.journal import journal_path, read_journal
from store_format.bookkeeping.ledger import ledger_path, read_ledger
from store_format.commitlog.log import CommitLog
from store_format.diagnose.problems import Findings
from store_format.errors import CorruptStoreError

__all__ = ["check_commits"]

_JOURNAL_ADVICE = "The next writer completes it; readers see nothing of it"
_LEDGER_ADVICE = (
    "Messages of it are lost: a broker ran while it was written, or the files were restored or truncated. Write them "
    "again, under another key"
)
_FILE_ADVICE = (
    "Nothing can be written before it is restored or moved out of the store. Without the journal, readers may show a part of a commit that "
    "was broken off; without the ledger, a job that runs again writes again"
)


def check_commits(findings: Findings, root: str, log: CommitLog) -> None:
    """Compares the ledger with the log."""
    try:
        journal = read_journal(root)
        if journal is not None:
            found = f"one of {journal.units} messages from physical offset {journal.base} on"
            findings.add(
                "warning", journal_path(root), 0, "no commit that was broken off", found, _JOURNAL_ADVICE
            )
        ledger = read_ledger(root)
    except CorruptStoreError as error:
        findings.add_error("damage", error, _FILE_ADVICE)
        return
    for report in ledger.reports(log):
        findings.add(
            "damage",
            ledger_path(root),
            0,
            "every committed batch in the log",
            report,
            _LEDGER_ADVICE,
            kind=report,
        )
