"""Whether a broker appends a CRC property to each unit (enabledAppendPropCRC, spec 2.7), as the end of its
log shows.

A broker with forceVerifyPropCRC=true truncates the log at the first unit without one, so a writer goes on as
the log ends.
"""

from __future__ import annotations

from store_format.bookkeeping.ledger import Ledger
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import StoreError
from store_format.layouts import CRC_PROPERTY_NAME, CRC_PROPERTY_SIZE, NAME_VALUE_SEPARATOR

__all__ = ["ends_with_crc_property", "has_crc_property_before"]

_PREFIX = CRC_PROPERTY_NAME + bytes([NAME_VALUE_SEPARATOR])


def ends_with_crc_property(log: CommitLog, ledger: Ledger) -> bool:
    """Whether the last unit of the log ends in the property; False for a log without units.

    Only lengths and heads are looked at, from the last commit of the ledger on, or in the last file that has
    a unit.
    """
    last = ledger.last
    if last is not None and last.last_size and log.file_at(last.last_offset) is not None:
        found = _end_of_units(log, last.last_offset)
        if found is not None:
            return has_crc_property_before(log, found)
    for file in reversed(log.files):
        found = _end_of_units(log, file.start)
        if found is not None:
            return has_crc_property_before(log, found)
    return False


def _end_of_units(log: CommitLog, start: int) -> int | None:
    """The physical offset behind the last unit from `start` on, where one has to begin; None without any."""
    found = None
    for run in log.walk(start):
        assert not isinstance(run, Damage)  # only a walk with resync has these
        found = run.file.start + run.stop
    return found


def has_crc_property_before(log: CommitLog, offset: int) -> bool:
    """Whether a unit that ends at the physical offset ends in the property. False behind the BLANK of a full
    file, which hides it.
    """
    try:
        return log.read(offset - CRC_PROPERTY_SIZE, len(_PREFIX)) == _PREFIX
    except StoreError:  # the file was deleted, or the offset begins one
        return False
