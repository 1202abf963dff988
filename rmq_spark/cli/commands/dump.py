"""`dump`: one record of the commitlog as annotated hex, or the bytes at a place without a record."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.address import parse_address, physical_places
from rmq_spark.cli.cells import BOLD, cell, painted
from rmq_spark.cli.exit_codes import DAMAGE, OK, NotFoundError
from rmq_spark.cli.options import store_argument
from rmq_spark.cli.output import Output, fitted, output_options, print_json, write_bytes
from store_format.display.text import shown, width

if TYPE_CHECKING:
    from store_format import MessageStore
    from store_format.message.single import UnitCheck, UnitField

_LINE = 16
_MARGIN = 9  # columns before the bytes
_FIELD_BYTES_SHOWN = 256
_UNREADABLE_BYTES = 256
_UNIT_SIZE_MAX = 64 << 20
_FIELDS = ("start", "size", "name", "value", "about", "hex")


@click.command("dump")
@store_argument()
@click.argument("place", metavar="PLACE")
@click.option("--full", is_flag=True, help="Show all bytes of long bodies and properties.")
@output_options(raw=True)
def dump_(stores: list[MessageStore], place: str, full: bool, output: Output) -> int:
    """Show one record as annotated hex.

    PLACE is a physical offset, a UNIQ_KEY, an offset message id, or TOPIC/QUEUE@OFFSET. At a place without a
    record, the command shows the bytes and the reason, and the exit code is 3. `-o raw` writes the bytes.

    \b
    rmqlog dump /data/store 1073741824
    rmqlog dump /data/store Orders/2@100
    """
    if output.columns:
        raise click.UsageError("--columns cannot be used with dump, which shows all fields of one record")
    records = _records(stores, place)
    if output.form == "json":
        print_json([_document(record) for record in records])
    for i, record in enumerate(records):
        if output.form == "raw":
            write_bytes(output, record.data)
        elif output.form == "table":
            sys.stdout.write("\n" * bool(i))
            sys.stdout.writelines(f"{line}\n" for line in _hex_lines(record, full, output))
        elif output.form != "json":
            _write_fields(output, record)
    return OK if all(record.is_whole for record in records) else DAMAGE


@dataclass(frozen=True, slots=True)
class _Record:
    """Bytes at an offset of the commitlog, and the result of the record check."""

    path: str
    position: int
    physical_offset: int
    data: bytes
    check: UnitCheck
    around: int | None = None  # the physical offset of the record that these bytes are a part of

    @property
    def is_whole(self) -> bool:
        return bool(self.check.kind == "ok")

    def fields(self) -> list[UnitField]:
        from store_format.message.single import unit_fields

        return unit_fields(self.data)


def _records(stores: list[MessageStore], place: str) -> list[_Record]:
    if re.fullmatch("[0-9]{1,19}", place):
        if len(stores) > 1:
            raise click.UsageError(
                "a physical offset belongs to one store, but STORE is a cluster: give one of its stores"
            )
        return [_at(stores[0], int(place))]
    address = parse_address(place)
    if address is not None:
        return [_at(store, offset) for store, offset in physical_places(stores, address)]
    offsets = [
        (store, offset)
        for store in stores
        for offset in store.find(message_id=place, columns=["physicalOffset"], on_damage="DROPMALFORMED")
        .table["physicalOffset"]
        .to_pylist()
    ]
    if not offsets:
        raise NotFoundError(f"no message has the id {place!r}, and {place!r} is no physical offset")
    return [_at(store, offset) for store, offset in dict.fromkeys(offsets)]


def _at(store: MessageStore, offset: int) -> _Record:
    from store_format.message.single import check_unit

    offset = store.log.message_offset(offset)
    file = store.log.file_at(offset)
    if file is None:
        stop = store.log.stop
        raise NotFoundError(
            f"the commitlog has no offset {offset}; its offsets are {store.log.min_offset} to {stop}"
        )
    view, position = store.log.view(file), offset - file.start
    check = check_unit(view, position, file.size - position, physical_offset=offset)
    is_whole = check.kind == "ok"
    size = check.size if is_whole else _UNREADABLE_BYTES
    return _Record(
        file.path,
        position,
        offset,
        view.read(position, min(size, file.size - position, _UNIT_SIZE_MAX)),
        check,
        None if is_whole else _record_around(store, file.start, offset),
    )


def _record_around(store: MessageStore, file_start: int, offset: int) -> int | None:
    """The record in which an offset lies, found by a walk over the file before the offset."""
    from store_format.commitlog.walk import UnitRun

    last = None
    for each in store.log.walk(file_start, offset, resync=True):
        last = each if isinstance(each, UnitRun) else None
    return None if last is None or last.file.start + last.stop <= offset else int(last.physical_offsets[-1])


# ---- lines -------------------------------------------------------------------------------------------------


def _hex_lines(record: _Record, full: bool, output: Output) -> Iterator[str]:
    """The record as lines. On a terminal that is too narrow, the meaning of a field is below its bytes."""
    for line in _about_record(record):
        yield fitted(output, line, indent=_MARGIN)
    for field in record.fields():
        about = f"  ({field.about})" if field.about else ""
        note = f"{field.name} = {cell(field.value)}{about}"
        part = record.data[field.start : field.start + field.size]
        kept = part if full else part[:_FIELD_BYTES_SHOWN]
        lines = [
            f"{field.start + place:>7}  {_hex(kept[place : place + _LINE])}"
            for place in range(0, len(kept), _LINE)
        ]
        if len(kept) < len(part):
            lines.append(f"{'…':>7}  {len(part) - len(kept):,} more bytes; --full shows them")
        if lines and _fits(output, f"{lines[0]}  {note}"):
            yield f"{lines[0]}  {_emphasised(note, field.name, output)}"
        elif lines:
            below = fitted(output, " " * _MARGIN + note, indent=_MARGIN + 2)
            yield f"{lines[0]}\n{_emphasised(below, field.name, output)}"
        yield from lines[1:]


def _fits(output: Output, line: str) -> bool:
    return output.wide or output.terminal_columns is None or width(line) <= output.terminal_columns


def _emphasised(note: str, name: str, output: Output) -> str:
    return note.replace(name, painted(name, BOLD), 1) if output.colour else note


def _about_record(record: _Record) -> Iterator[str]:
    where = f"byte {record.position} of {shown(record.path)}"
    yield f"physical offset {record.physical_offset}: {where}, {len(record.data)} bytes"
    if not record.is_whole:
        check = record.check
        at = f", {check.at} bytes further" if check.at else ""
        reason = f"expected {shown(check.expected)}, found {shown(check.found)}"
        yield f"no message record at this offset ({check.kind}){at}: {reason}"
        if record.around is not None:
            yield f"the offset is inside of the record that begins at {record.around}"


def _hex(data: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)
    return f"{data.hex(' '):<{3 * _LINE - 1}}  |{text:<{_LINE}}|"


def _field_rows(record: _Record) -> list[tuple[object, ...]]:
    return [
        (*asdict(field).values(), record.data[field.start : field.start + field.size].hex())
        for field in record.fields()
    ]


def _document(record: _Record) -> dict[str, object]:
    head = {
        "file": record.path,
        "position": record.position,
        "physicalOffset": record.physical_offset,
        "kind": str(record.check.kind),
    }
    return {**head, "fields": [dict(zip(_FIELDS, row, strict=True)) for row in _field_rows(record)]}


def _write_fields(output: Output, record: _Record) -> None:
    """The fields as rows."""
    from rmq_spark.cli.view_rows import show_batches
    from store_format.display.columns import INT, TEXT, ViewColumn, batch_of

    columns = [
        ViewColumn(name, INT if name in ("start", "size") else TEXT, "Of a field.") for name in _FIELDS
    ]
    show_batches(output, [batch_of(columns, _field_rows(record))], _FIELDS)
