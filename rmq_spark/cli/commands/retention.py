"""What retention deletes next, and which groups lose unread messages by it: `retention`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.cells import Zone, zone_of, zoned_rows
from rmq_spark.cli.exit_codes import OK
from rmq_spark.cli.group_options import (
    group_options,
    refuse_unknown_group,
    say_unknown_losses,
    what_is_unknown,
)
from rmq_spark.cli.options import (
    broker_confs_option,
    file_reserved_time_option,
    filter_options,
    from_one_look,
    now_option,
    store_argument,
)
from rmq_spark.cli.output import (
    Output,
    Verdict,
    fitted,
    is_report,
    output_options,
    print_json,
    write_verdict,
)
from rmq_spark.cli.remarks import given_store, remark
from rmq_spark.cli.view_rows import KeepWhere, first_rows, in_order, keep_where, show_batches
from store_format.display.rows import iso_utc, plain_rows
from store_format.display.text import shown
from store_format.display.units import count_text, size_text, until_text
from store_format.errors import OptionError
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.broker import Forecast
    from store_format import MessageStore
    from store_format.metadata.broker_confs import BrokerConfs
    from store_format.metadata.read import BrokerConf

_BY_TOPIC: tuple[str, ...] = (
    "group",
    "topic",
    "lagMessages",
    "lostMessages",
    "nextLostMessages",
    "deletionTimestamp",
)
_BY_QUEUE: tuple[str, ...] = (
    "group",
    "topic",
    "queueId",
    "committedOffset",
    "lostMessages",
    "nextLostMessages",
    "file",
    "expiresTimestamp",
)
_LABEL = 15  # columns of the names of facts
_UNKNOWN = "which groups lose unread messages is not known"
_LEVELS = {
    "normal": "normal",
    "clean": "a broker deletes expired files at any hour",
    "force": "a broker deletes files of any age",
    "full": "a broker refuses writes, and deletes files of any age",
}


@click.command("retention")
@from_one_look
@store_argument()
@broker_confs_option
@file_reserved_time_option
@click.option(
    "--delete-when",
    metavar="HH",
    help="The hours in which a broker deletes expired files, such as 04 or '02;04' (deleteWhen).",
)
@now_option
@group_options
@click.option("-l", "--queues", is_flag=True, help="One row for each queue, with the file of the next loss.")
@filter_options("topic", "limit")
@output_options()
def retention_(
    stores: list[MessageStore],
    broker_confs: BrokerConfs,
    hours: int | None,
    delete_when: str | None,
    now_ms: int,
    group: str | None,
    all_groups: bool,
    queues: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """What a broker deletes next, and who loses unread messages.

    Shows the level of the disk, the next deletion of commitlog files, and the groups that lose unread
    messages by it, the soonest first. A commitlog file expires fileReservedTime after its last write, and is
    deleted at the next deleteWhen. The settings are those of --broker-conf, else RocketMQ's defaults: 72
    hours, at 04 local time. --tz is the time zone of that hour, too. Nothing is deleted.

    \b
    rmqlog retention /data/store
    rmqlog retention /data/store --delete-when 04 --tz Asia/Shanghai
    rmqlog retention /data/store --broker-conf /etc/rocketmq/broker.conf -l
    """
    from rmq_spark.broker import forecast

    tz = click.get_current_context().params.get("tz")
    zone = zone_of("local" if tz is None else tz, to_terminal=True).place
    found = [
        forecast(store, _conf(store, broker_confs.of(store.broker_name), hours, delete_when), now_ms, zone)
        for store in stores
    ]
    keep = keep_where(group=group, topic=filters.glob, all_groups=all_groups) or KeepWhere(())
    losses = [_losses(each, keep) for each in found]
    code = what_is_unknown(stores, group)
    if code == OK and not any(batch.num_rows for batch in losses):
        refuse_unknown_group(stores, group)
    nobody = f"no {'matching ' if keep.patterns else ''}group loses unread messages to the next deletion"
    nobody = nobody if code == OK else _UNKNOWN
    rows = [_queues(each, keep) for each in found] if queues else [[batch] for batch in losses]
    if output.form == "json" and not output.columns:
        verdicts = [
            _verdict([] if each.is_tiered else [batch], _UNKNOWN if each.is_tiered else nobody, output)
            for each, batch in zip(found, losses, strict=True)
        ]
        _write_json(found, rows, verdicts, filters.limit, output.zone)
        return code
    for each in found:
        for line in _facts(each, output):
            if is_report(output):
                print(fitted(output, line, indent=_LABEL))
            else:
                remark(line)
        if is_report(output):
            print()
    shown_columns = _BY_QUEUE if queues else _BY_TOPIC
    every = list(chain.from_iterable(rows)) if len(found) == 1 else _soonest_first(found, rows)
    count = show_batches(output, every, every[0].schema.names, shown_columns, limit=filters.limit)
    if count and is_report(output):
        print()
    say_unknown_losses(losses, "deletionTimestamp")
    known = [batch for each, batch in zip(found, losses, strict=True) if not each.is_tiered]
    write_verdict(output, _verdict(known, nobody if len(known) == len(losses) else _UNKNOWN, output))
    return code


def _losses(forecast: Forecast, keep: KeepWhere) -> pa.RecordBatch:
    from rmq_spark.broker import LOSS_COLUMNS
    from store_format.display.columns import batch_of

    batch = batch_of(LOSS_COLUMNS, forecast.losses())
    return batch.filter(keep(batch))


def _queues(forecast: Forecast, keep: KeepWhere) -> list[pa.RecordBatch]:
    """The rows of the view `retention`, with the settings of the forecast; at least one batch."""
    from store_format.views.registry import view_batches

    batches = view_batches(forecast.store, "retention", now_ms=forecast.now_ms, broker_conf=forecast.conf)
    return [batch.filter(keep(batch)) for batch in batches]


def _soonest_first(
    found: Sequence[Forecast], rows: Sequence[Sequence[pa.RecordBatch]]
) -> list[pa.RecordBatch]:
    """The rows of all brokers, by the time of the deletion; a broker's own rows come in this order."""
    batches = [
        batch.append_column("", _deletions(forecast, batch))
        for forecast, batches in zip(found, rows, strict=True)
        for batch in batches
    ]
    names = ("nextLostMessages", "descending"), ("group", "ascending"), ("topic", "ascending")
    ordered = in_order(batches, [("", "ascending"), *names, ("brokerName", "ascending")])
    return [batch.drop_columns([""]) for batch in ordered] or [rows[0][0]]


def _deletions(forecast: Forecast, batch: pa.RecordBatch) -> pa.Array:
    """When the broker deletes the files of the next loss; of rows of queues by file and expiry."""
    import pyarrow as pa

    if "deletionTimestamp" in batch.schema.names:
        return batch["deletionTimestamp"].cast(pa.int64())
    store = forecast.store
    numbers = {
        file.path.removeprefix(f"{store.path}/"): number for number, file in enumerate(store.log.files)
    }
    expiry = batch["expiresTimestamp"].cast(pa.int64()).to_pylist()
    return pa.array(
        [
            None if file is None else 1_000 * forecast.deleted_at(numbers[file], expires_us // 1_000)
            for file, expires_us in zip(batch["file"].to_pylist(), expiry, strict=True)
        ],
        pa.int64(),
    )


def _facts(forecast: Forecast, output: Output) -> list[str]:
    """The lines about the disk, the commitlog and the next deletion."""
    from store_format.files.paths import remote_kind

    conf, disk, log = forecast.conf, forecast.disk, forecast.store.log.files
    is_default = "fileReservedTime" not in conf.given
    levels = (
        f"{conf.disk_max_used_percent} % deletes at any hour, {conf.disk_forcibly_percent} % at any age, "
        f"{conf.disk_warning_percent} % refuses writes"
    )
    used = f"{disk.used_percent} % of {size_text(disk.total_bytes)} used: {_LEVELS[forecast.level]}"
    if not disk.total_bytes:
        used = f"{remote_kind(forecast.store.path)}: a copy, whose files are as old as their upload"
    facts = [
        ("disk", used),
        ("levels", levels),
        ("commitlog", f"{_files(len(log))}, {size_text(sum(file.size for file in log))}"),
        (
            "expired",
            f"{conf.file_reserved_hours} h after the last write"
            + (" (default; --broker-conf has yours)" if is_default else ""),
        ),
        ("next deletion", _next_deletion(forecast, output)),
    ]
    if output.several_stores:
        facts.insert(0, ("broker", shown(forecast.store.broker_name)))
    return [f"{label:<{_LABEL}}{text}" for label, text in facts]


def _next_deletion(forecast: Forecast, output: Output) -> str:
    if forecast.deletion_ms is None:
        return "none: a broker never deletes the last commitlog file"
    hours = ";".join(f"{hour:02}" for hour in forecast.conf.delete_when)
    zone = Zone(forecast.zone)  # of the hour; times are shown in that of the output
    moment = zone.moment(iso_utc(forecast.deletion_ms))
    hours += "" if moment is None else f" {zone.label(moment)}"
    why = f"deleteWhen {hours}" if forecast.level == "normal" else "the disk is too full"
    size = size_text(sum(file.size_bytes for file in forecast.files))
    when = _clock(output, iso_utc(forecast.deletion_ms))
    left = until_text(forecast.deletion_ms - forecast.now_ms)
    return f"{when}, {left} ({why}): {_files(len(forecast.files))}, {size}"


def _files(count: int) -> str:
    return f"{count_text(count)} file{'s' * (count != 1)}"


def _clock(output: Output, iso: str) -> str:
    """A time to the minute, in the zone of the output."""
    moment = output.zone.moment(iso)
    return iso if moment is None else f"{moment:%Y-%m-%d %H:%M} {output.zone.label(moment)}"


def _verdict(batches: Sequence[pa.RecordBatch], nobody: str, output: Output) -> Verdict:
    """Who loses how much, and when, and the next command; `nobody` is the sentence if there is no loss."""
    losses = [row for batch in batches for row in plain_rows(batch)]
    gone = sum(row["lostMessages"] or 0 for row in losses)
    lost = f"; {count_text(gone)} are lost already" if gone else ""
    losing = [row for row in losses if row["deletionTimestamp"] is not None and row["nextLostMessages"] != 0]
    if not losing:
        return Verdict(f"{nobody}{lost}", is_bad=bool(gone))
    first = min(losing, key=lambda row: (row["deletionTimestamp"], -(row["nextLostMessages"] or 0)))
    groups = {row["group"] for row in losing}
    who = f"{shown(first['group'])} loses" if len(groups) == 1 else f"{len(groups)} groups lose"
    known = [row["nextLostMessages"] for row in losing if row["nextLostMessages"] is not None]
    count = count_text(sum(known))
    if len(known) < len(losing):  # queues without files do not tell how many
        count = f"at least {count}" if sum(known) else "an unknown number of"
    when = _clock(output, first["deletionTimestamp"])
    command = f"rmqlog lag {given_store()} -l -g {shlex.quote(shown(first['group']))}"
    total = " (the sum over the groups)" if len(groups) > 1 else ""
    text = f"{who} {count} unread messages to retention{total}, the first at {when}{lost}"
    return Verdict(text, command, is_bad=True)


def _write_json(
    found: Sequence[Forecast],
    rows: Sequence[Sequence[pa.RecordBatch]],
    verdicts: Sequence[Verdict],
    limit: int | None,
    zone: Zone,
) -> None:
    """Writes a document: for each store the facts, at most `limit` losses, and the verdict."""
    document = [
        {
            "store": each.store.path,
            "brokerName": each.store.broker_name,
            "diskLevel": each.level,
            "diskUsedPercent": each.disk.used_percent,
            "diskTotalBytes": each.disk.total_bytes,
            "diskFreeBytes": each.disk.free_bytes,
            "diskMaxUsedSpaceRatio": each.conf.disk_max_used_percent,
            "diskSpaceCleanForciblyRatio": each.conf.disk_forcibly_percent,
            "diskSpaceWarningLevelRatio": each.conf.disk_warning_percent,
            "commitLogFiles": len(each.store.log.files),
            "commitLogBytes": sum(file.size for file in each.store.log.files),
            "fileReservedTime": each.conf.file_reserved_hours,
            "deleteWhen": list(each.conf.delete_when),
            "nextDeletionTimestamp": each.deletion_ms and zone.full(iso_utc(each.deletion_ms)),
            "nextDeletionFiles": len(each.files),
            "nextDeletionBytes": sum(file.size_bytes for file in each.files),
            "losses": [row for batch in first_rows(batches, limit) for row in zoned_rows(batch, zone)],
            "verdict": verdict.text,
            "next": verdict.command,
        }
        for each, batches, verdict in zip(found, rows, verdicts, strict=True)
    ]
    print_json(document)


def _conf(store: MessageStore, given: str | None, hours: int | None, delete_when: str | None) -> BrokerConf:
    """The broker's settings, with those of the command line."""
    from store_format.bookkeeping.settings import broker_conf_of
    from store_format.metadata.read import parse_hours

    conf = broker_conf_of(store.opened, given)
    if hours is not None:
        conf = replace(conf, file_reserved_hours=hours, given=conf.given | {"fileReservedTime"})
    if delete_when is not None:
        try:
            conf = replace(conf, delete_when=parse_hours(delete_when), given=conf.given | {"deleteWhen"})
        except ValueError as error:
            raise OptionError(f"--delete-when: {error}") from error
    return conf
