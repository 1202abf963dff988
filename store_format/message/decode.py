"""Decodes message units into record batches: checks, filters, and the columns that a caller selects.

It is apart from `columns.py`, because it imports `pyarrow.compute`, and a process that only plans reads, such
as the source of a stream, decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.message.column_builders import MessageRows, offset_msg_id
from store_format.message.columns import DecodeOptions, arrow_schema
from store_format.message.locate import Units, inner_batches, locate
from store_format.message.rows import TooMuchOpenedError
from store_format.message.unit_refs import BadUnit, UnitRefs
from store_format.names import TAGS, UNIQ_KEY

_OPENED_BYTES_MAX = 32 << 20  # decompressed bodies of one record batch, unless it is a single body


def decode(refs: UnitRefs, options: DecodeOptions, broker_name: str) -> tuple[pa.RecordBatch, list[BadUnit]]:
    """Returns a RecordBatch with `options.names` of the units that pass the checks, and each bad unit.

    Rows have the order of the units. Bad units have their index in `refs` and the reason; they raise nothing.
    """
    return _decode(refs, options, broker_name, None)


def decode_parts(
    refs: UnitRefs, options: DecodeOptions, broker_name: str
) -> Iterator[tuple[UnitRefs, pa.RecordBatch, list[BadUnit]]]:
    """Yields (part of `refs`, `decode` of the part); several if decompressed bodies need much memory."""
    try:
        decoded = _decode(refs, options, broker_name, _OPENED_BYTES_MAX)
    except TooMuchOpenedError:
        decoded = None  # continue outside of this block: the error keeps the decompressed bodies alive
    if decoded is not None:
        yield refs, *decoded
        return
    half = len(refs) // 2
    yield from decode_parts(refs.select(np.arange(half)), options, broker_name)
    yield from decode_parts(refs.select(np.arange(half, len(refs))), options, broker_name)


def _decode(
    refs: UnitRefs, options: DecodeOptions, broker_name: str, opened_max: int | None
) -> tuple[pa.RecordBatch, list[BadUnit]]:
    units, bad = locate(refs, verify_crc=options.verify_crc)
    # place in `refs` of each unit; None: all units are good
    places = np.setdiff1d(np.arange(len(refs)), [unit.index for unit in bad]) if bad else None
    filtered = _filter_first(units, options, broker_name)
    keep = None if filtered is None else _kept_rows(filtered, options)
    # Building rows again from the kept units pays where fewer than half are kept: at one message in five it
    # saves 5 to 15 % of the time of the default columns, three quarters of it with compressed bodies of 8
    # KiB.
    if keep is not None and 2 * np.count_nonzero(keep) < len(units):
        units, filtered = units.select(keep), None
        places = np.flatnonzero(keep) if places is None else places[keep]
        keep, options = None, replace(options, tags=None, key=None, message_id=None, where=None)
    rows = _message_rows(units, options, broker_name, "body" in options.names, opened_max)
    if places is not None and rows.bad:
        rows.bad = [BadUnit(int(places[unit.index]), unit.error) for unit in rows.bad]
    if filtered is None or rows.bad:
        keep = _kept_rows(rows, options)
    else:
        rows.share_properties(filtered)
    batch = _record_batch(rows, options.names)
    if keep is not None:
        batch = batch.filter(pa.array(keep))
    return batch, sorted(bad + rows.bad, key=lambda unit: unit.index)


def _message_rows(
    units: Units, options: DecodeOptions, broker_name: str, open_bodies: bool, opened_max: int | None
) -> MessageRows:
    return MessageRows(
        units,
        broker_name,
        open_bodies=open_bodies,
        body_size_max=options.body_size_max,
        opened_max=opened_max,
        group=options.group,
    )


def _record_batch(rows: MessageRows, names: tuple[str, ...]) -> pa.RecordBatch:
    if not names:  # no columns, but the right number of rows: what `count()` needs
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    rows.prepare(names)
    return pa.RecordBatch.from_arrays([rows.column(name) for name in names], schema=arrow_schema(names))


def _filter_first(units: Units, options: DecodeOptions, broker_name: str) -> MessageRows | None:
    """Returns rows to filter before bodies are decompressed; None where the filter needs every row built.

    Messages of an inner batch, and rows that are left out, are known only once the bodies are decompressed.
    """
    if not options.filters or inner_batches(units).any():
        return None
    rows = _message_rows(units, options, broker_name, False, None)
    return None if rows.bad else rows


def _kept_rows(rows: MessageRows, options: DecodeOptions) -> NDArray[np.bool_] | None:
    """Returns the rows that pass the filters and lie in the wanted part of their batch; None for all rows."""
    identity = rows.units.refs.identity
    keep = None
    if identity is not None and identity.wanted is not None:
        offsets = rows.queue_offsets()
        start, stop = (rows.of_units(bounds) for bounds in identity.wanted)
        keep = (offsets >= start) & (offsets < stop)
    for matches in _filter_results(rows, options):
        found = pc.fill_null(matches, False).to_numpy(zero_copy_only=False)
        keep = found if keep is None else keep & found
    return None if keep is None or keep.all() else keep


def _filter_results(rows: MessageRows, options: DecodeOptions) -> Iterator[pa.BooleanArray]:
    """Yields one array for each filter of the options."""
    values = rows.properties().values if options.filters else None
    if values is None:
        return
    if options.tags is not None:
        yield pc.is_in(values(TAGS), pa.array(sorted(options.tags), pa.string()))
    if options.key is not None:
        yield rows.properties().has_key(options.key)
    if options.message_id is not None:
        unique = pc.fill_null(pc.equal(values(UNIQ_KEY), options.message_id), False)
        yield pc.or_(unique, pc.equal(offset_msg_id(rows), options.message_id.upper()))
    if options.where is not None:
        yield options.where.mask(len(rows), values)
