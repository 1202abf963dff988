"""What a broker serves from files that are not read. Nothing there is damage, and none of it is checked."""

from __future__ import annotations

from collections.abc import Sequence

from store_format.diagnose.problems import Findings
from store_format.files.status import is_directory
from store_format.metadata.read import config_path
from store_format.read.served_elsewhere import (
    COMPACTED,
    DLEDGER,
    TIERED,
    compacted_topics,
    is_below,
    tiered_metadata,
)
from store_format.survey.lost_log import dledger_logs

_TOPICS_MAX = 8
_DLEDGER_ADVICE = "It is not checked; read the messages through the store's broker"


def check_elsewhere(findings: Findings, root: str) -> bool:
    """Reports files that are not read, and returns whether there are any."""
    logs, tiered, compacted = dledger_logs(root), tiered_metadata(root), compacted_topics(root)
    for path in logs:
        findings.add("info", path, 0, "a commitlog in commitlog/", DLEDGER, _DLEDGER_ADVICE)
    if tiered is not None:
        findings.add("info", tiered, 0, "all messages in this directory", TIERED, "It is not checked")
    if compacted:
        more = f" and {len(compacted) - _TOPICS_MAX} more" if len(compacted) > _TOPICS_MAX else ""
        found = f"cleanup.policy=COMPACTION of {', '.join(compacted[:_TOPICS_MAX])}{more}: {COMPACTED}"
        path = config_path(root, "topics.json")
        findings.add(
            "info", path, 0, "topics whose messages only retention deletes", found, "It is not checked"
        )
    return bool(logs or tiered or compacted)


def is_dledger_only(root: str, commit_log_paths: Sequence[str]) -> bool:
    """Whether the commitlog is one of DLedger, whose entries have heads that are not checked."""
    logs = dledger_logs(root)
    if commit_log_paths:
        return any(is_below(path, log) for path in commit_log_paths for log in logs)
    return bool(logs) and not is_directory(f"{root}/commitlog")
