"""Whether a broker appends a CRC property to each message (enabledAppendPropCRC, spec 2.7).

The end of the commitlog shows it. A broker with forceVerifyPropCRC=true truncates the log at the first
message without the property, so a writer does what the last message of the log does.
"""

from __future__ import annotations

from store_format.bookkeeping.ledger import Ledger
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import StoreError
from store_format.layouts import CRC_PROPERTY_NAME, CRC_PROPERTY_SIZE, NAME_VALUE_SEPARATOR

_PREFIX = CRC_PROPERTY_NAME + bytes([NAME_VALUE_SEPARATOR])


def ends_with_crc_property(log: CommitLog, ledger: Ledger) -> bool:
    """Whether the last unit of the log ends in the property; False for a log without units.

    Reads only lengths and heads, from the last commit of the ledger on, or of the last file with a unit.
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
    """The physical offset behind the last unit from `start` on, where a unit begins; None without a unit."""
    found = None
    for run in log.walk(start):
        assert not isinstance(run, Damage)  # Only a walk with `resync` has damage.
        found = run.file.start + run.stop
    return found


def has_crc_property_before(log: CommitLog, offset: int) -> bool:
    """Whether the unit that ends at the physical offset ends in the property.

    False behind the BLANK of a full file, which hides the property.
    """
    try:
        return log.read(offset - CRC_PROPERTY_SIZE, len(_PREFIX)) == _PREFIX
    except StoreError:  # The file was deleted, or the offset is the first of a file.
        return False
