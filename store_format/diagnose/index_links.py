"""The slots and chains of one index file: exactly one link must point to each unit, from a later unit or the
slot of its hash.

A broker would follow a link to a later unit in a circle. A link that skips units hides their messages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store_format.diagnose.files import INDEX_ADVICE
from store_format.diagnose.problems import Findings
from store_format.index.file import IndexFile, IndexGeometry, IndexHeader
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT

_CHUNK = 1 << 18
_ORPHANS_SHOWN_MAX = 100  # units without a link that are reported
_PREV_AT = 16  # in a unit
_SLOT_COUNT_AT = 32  # in the header


class _Links:
    """What one pass over a file collects. `linked[n]`: a link points to unit n."""

    def __init__(
        self,
        findings: Findings,
        file: IndexFile,
        geometry: IndexGeometry,
        hashes: NDArray[np.int32],
        foreign: NDArray[np.bool_],
    ) -> None:
        self.findings = findings
        self.file = file
        self.geometry = geometry
        self.count = len(hashes)
        self.hashes = hashes
        self.foreign = foreign
        self.linked = np.zeros(len(hashes) + 1, bool)
        self.linked_twice: list[tuple[int, int]] = []  # (unit, byte of the second link)

    def slots_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of units by number; -1, unknown, for a unit whose hash is wrong."""
        slots = self.hashes[numbers - 1].astype(np.int64) % self.geometry.hash_slot_num
        return np.where(self.foreign[numbers], -1, slots)

    def unit_byte(self, number: int) -> int:
        return self.geometry.units_start + INDEX_UNIT.itemsize * number

    def slot_byte(self, slot: int) -> int:
        return INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * slot

    def add(self, numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Records that the links at these bytes point to these units."""
        order = np.argsort(numbers, kind="stable")
        numbers, positions = numbers[order], positions[order]
        again = self.linked[numbers]
        again[1:] |= numbers[1:] == numbers[:-1]
        self.linked[numbers] = True
        self.linked_twice += list(
            zip(numbers[again].tolist()[:_ORPHANS_SHOWN_MAX], positions[again].tolist(), strict=False)
        )

    def wrong(self, position: int, expected: str, found: str) -> None:
        self.findings.add("damage", self.file.path, position, expected, found, INDEX_ADVICE)


def check_links(
    findings: Findings,
    file: IndexFile,
    geometry: IndexGeometry,
    header: IndexHeader,
    hashes: NDArray[np.int32],
    foreign: NDArray[np.bool_],
    *,
    is_live: bool,
) -> None:
    """Reports wrong links. `hashes` are those of the units in use, which begin with number 1.

    `foreign[n]` marks units whose hash is known to be wrong: their chain is unknown. In a file that a broker
    is writing (`is_live`) a unit is written before the link to it, so missing links are no fault.
    """
    links = _Links(findings, file, geometry, hashes, foreign)
    for start in range(1, links.count + 1, _CHUNK):
        _check_units(links, np.arange(start, min(start + _CHUNK, links.count + 1)))
    used = sum(
        _check_slots(links, start, is_live=is_live) for start in range(0, geometry.hash_slot_num, _CHUNK)
    )
    if used != header.hash_slot_count and not is_live:
        links.wrong(_SLOT_COUNT_AT, f"{used} hash slots in use, as there are", str(header.hash_slot_count))
    orphans = np.flatnonzero(~links.linked[1:]) + 1
    if is_live:
        return
    for number in orphans[:_ORPHANS_SHOWN_MAX].tolist():
        _report_skipping_link(links, number)
    if not len(orphans):
        for number, position in links.linked_twice:
            links.wrong(position, "a link to a unit that no other link points to", f"unit {number}")


def _previous(links: _Links, start: int, stop: int) -> NDArray[np.int64]:
    """The links of units `start` to `stop`."""
    return links.file.units(start, stop)["prev_index"].astype(np.int64)


def _check_units(links: _Links, numbers: NDArray[np.int64]) -> None:
    """Checks the links from a chunk of units to earlier units."""
    prev = _previous(links, int(numbers[0]), int(numbers[-1]) + 1)
    outside = (prev < 0) | (prev >= numbers)
    linked = ~outside & (prev > 0)
    own, other = links.slots_of(numbers), links.slots_of(np.where(linked, prev, numbers))
    elsewhere = linked & (own != other) & (own >= 0) & (other >= 0)
    for i in np.flatnonzero(outside | elsewhere).tolist():
        number = int(numbers[i])
        what = f"unit {int(prev[i])}" + (", of another slot" if elsewhere[i] else "")
        links.wrong(
            links.unit_byte(number) + _PREV_AT,
            f"a link from unit {number} to an earlier unit of its slot, or 0",
            what,
        )
    right = linked & ~elsewhere
    links.add(prev[right], links.geometry.units_start + INDEX_UNIT.itemsize * numbers[right] + _PREV_AT)


def _check_slots(links: _Links, start: int, *, is_live: bool) -> int:
    """Checks a chunk of slots from `start` on; returns how many of them are in use."""
    stop = min(start + _CHUNK, links.geometry.hash_slot_num)
    slots = links.file.slots(start, stop)
    used = np.flatnonzero(slots)
    heads = slots[used].astype(np.int64)
    outside = (heads < 0) | (heads > links.count)
    of_unit = links.slots_of(np.where(outside, 1, heads))
    elsewhere = ~outside & (of_unit != used + start) & (of_unit >= 0)
    for i in np.flatnonzero((outside & (not is_live)) | elsewhere).tolist():
        slot = int(used[i]) + start
        what = f"unit {int(heads[i])}" + (", of another slot" if elsewhere[i] else f" of {links.count}")
        links.wrong(links.slot_byte(slot), f"the newest unit of slot {slot}, or 0", what)
    right = ~outside & ~elsewhere
    links.add(heads[right], INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * (used[right] + start))
    return len(used)


def _report_skipping_link(links: _Links, number: int) -> None:
    """Reports the link of unit `number`'s chain that skips the unit: the fault is there, not in the unit."""
    slot = int(links.slots_of(np.array([number]))[0])
    if slot < 0:
        return  # its hash is wrong, which is reported; its chain is unknown
    head = links.file.slots(slot, slot + 1)
    at, position, steps = int(head[0]), links.slot_byte(slot), 0
    while number < at <= links.count and steps <= links.count:
        position = links.unit_byte(at) + _PREV_AT
        following = int(_previous(links, at, at + 1)[0])
        if following >= at or (
            following > 0 and int(links.slots_of(np.array([following]))[0]) not in (slot, -1)
        ):
            break  # a circle, or a link into another chain: reported already
        at, steps = following, steps + 1
    links.wrong(
        position,
        f"a link to an earlier unit of slot {slot} that skips no unit",
        f"unit {at}, past unit {number}",
    )
