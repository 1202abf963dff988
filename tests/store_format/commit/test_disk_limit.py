"""A store on a nearly full disk takes no messages, as in a broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.commit.unsupported import StoreRefusals
from store_format.errors import StoreWriteError
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf
from store_format.opened.store import Opened
from tests.support.fixtures import Unchanged
from tests.support.staged import columns_of, numbered


def test_append_refuses_above_the_limit(root: Path, unchanged: Unchanged) -> None:
    messages = columns_of(numbered("T", 0, 3))
    mount, before = (
        files_at(str(root)).disk_space(str(root)).mount,
        files_at(str(root)).disk_space(str(root)).used_percent,
    )
    with unchanged(root), pytest.raises(StoreWriteError) as caught:
        MessageStore.open(str(root)).append(messages, options=CommitOptions(disk_limit=0))
    told = re.fullmatch(  # other tests fill the same disk meanwhile
        rf"{re.escape(f'{root}: the file system {mount}')} is ([1-9]\d*) % full, above the limit of 0 % for "
        r"writes; free some space \(rmqlog clean\), or raise diskSpaceWarningLevelRatio or disk_limit",
        str(caught.value),
    )
    assert told is not None
    seen = sorted((before, files_at(str(root)).disk_space(str(root)).used_percent))
    assert seen[0] - 1 <= int(told[1]) <= seen[1] + 1
    assert MessageStore.open(str(root)).append(messages, options=CommitOptions(disk_limit=100)).committed


@pytest.mark.parametrize(("given", "limit"), [({}, 90), ({"diskSpaceWarningLevelRatio": "50"}, 50)])
def test_the_limit_is_the_brokers(root: Path, given: dict[str, str], limit: int) -> None:
    """Without `disk_limit` the settings decide, and without them 90 %."""
    conf = BrokerConf.of(given, "broker.conf")
    used = files_at(str(root)).disk_space(str(root)).used_percent
    if used > limit:
        with pytest.raises(StoreWriteError, match=f"above the limit of {limit} %"):
            StoreRefusals(Opened(str(root))).refuse_full_disk(None, conf)
    else:
        StoreRefusals(Opened(str(root))).refuse_full_disk(None, conf)
    assert (StoreRefusals(Opened(str(root))).full_disk((), limit) is None) is (used <= limit)


def test_the_emptiest_disk_of_the_commitlog_counts(root: Path) -> None:
    """Nothing of the file system /proc is used."""
    reason = StoreRefusals(Opened("/proc/store")).full_disk((str(root),), 0)
    assert reason is not None
    assert reason.endswith("% full, above the limit of 0 % for writes")
    assert StoreRefusals(Opened("/proc/store")).full_disk((str(root), "/proc/store/commitlog"), 0) is None
