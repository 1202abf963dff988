"""`services`: RocketMQ's background work on stores without a broker, once or as a loop."""

from __future__ import annotations

import queue
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import INTERRUPTED, OK
from rmq_spark.cli.options import broker_conf_option, store_argument
from rmq_spark.cli.output import Output, output_options, write_rows

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa

    from rmq_spark.services.turn import TurnReport


@click.command("services")
@store_argument(opened=False)
@click.option("--once", is_flag=True, help="One turn, then exit.")
@click.option(
    "--every", metavar="TIME", default="1s", show_default=True, help="The longest pause between two turns."
)
@click.option(
    "--only", metavar="NAMES", help="These services, separated by commas, such as schedule,timer,clean."
)
@broker_conf_option
@click.option("--apply", "apply_", is_flag=True, help="Write to a store that rmqlog did not create.")
@output_options()
def services_(
    roots: list[str],
    commit_log_paths: tuple[str, ...],
    once: bool,
    every: str,
    only: str | None,
    broker_conf: str | None,
    apply_: bool,
    output: Output,
) -> int:
    """Deliver what is due, flush and clean, as a broker does.

    The broker of STORE must be stopped: a store in use is refused with exit code 6. Without --once, turns
    follow each other until SIGTERM or Ctrl-C; a turn that has begun is completed. On a store that rmqlog did
    not create, nothing is written without --apply: the turn is only shown. Files are deleted only with
    `clean` in --only.

    \b
    rmqlog services /data/spark-log
    rmqlog services /data/store-copy --once --only schedule --apply
    """
    from rmq_spark.options.parse import Given, duration_ms
    from rmq_spark.services.turn import is_preview

    every_ms = duration_ms(Given("--every", every, 0))
    if every_ms <= 0:
        raise click.UsageError(f"--every: expected a time above 0, such as 1s, found {every}")
    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    previews = [root for root in roots if is_preview(root, apply_)]
    batches = _turns(roots, commit_log_paths, names, broker_conf, apply_)
    if previews or once:
        _write_turns(output, batches)
        if previews:
            print(
                f"rmqlog: nothing was written to {', '.join(previews)}, which rmqlog did not create; add "
                "--apply to write",
                file=sys.stderr,
            )
        return OK
    turns = _until_signal()  # before the first turn: a signal must not end it
    _write_turns(output, batches)
    return _loop(roots, commit_log_paths, names, broker_conf, every_ms / 1000, output, turns)


def _write_turns(output: Output, batches: Iterator[pa.RecordBatch], following: int | None = None) -> None:
    from rmq_spark.services.turn import TURN_COLUMNS

    write_rows(
        output, batches, output.columns or ["brokerName", *(each.name for each in TURN_COLUMNS)],
        following=following,
    )  # fmt: skip


def _turns(
    roots: Sequence[str],
    commit_log_paths: tuple[str, ...],
    only: Sequence[str] | None,
    broker_conf: str | None,
    apply: bool,
) -> Iterator[pa.RecordBatch]:
    """One turn of each store. Raises the first error of a service after the table of its store."""
    from rmq_spark.services.registry import chosen_services
    from rmq_spark.services.turn import is_preview, now_of, take_turn

    for root in roots:
        reports = take_turn(
            root,
            chosen_services(only),
            now_of(root, None, broker_conf),
            preview=is_preview(root, apply),
            commit_log_paths=commit_log_paths,
        )
        yield _batch(root, reports)
        for each in reports:
            if each.error is not None:
                raise each.error


def _batch(root: str, reports: Sequence[TurnReport]) -> pa.RecordBatch:
    import pyarrow as pa

    from rmq_spark.services.turn import turn_table
    from store_format.read.store_root import broker_name_of

    table = turn_table(reports).combine_chunks()
    names = pa.array([broker_name_of(root)] * len(table), pa.string())
    table = table.add_column(0, "brokerName", names)
    # A table without rows, when every service had an error, has no batches.
    return (table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]


_Turns = queue.SimpleQueue["tuple[str, list[TurnReport]] | int"]  # reports of a store, or a signal


def _until_signal() -> _Turns:
    """A queue that gets the number of each SIGTERM and SIGINT from now on."""
    turns: _Turns = queue.SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        turns.put(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return turns


def _loop(
    roots: Sequence[str],
    commit_log_paths: tuple[str, ...],
    only: Sequence[str] | None,
    broker_conf: str | None,
    every: float,
    output: Output,
    turns: _Turns,
) -> int:
    """Turns in a thread for each store; writes the turns that did something, until a signal."""
    from rmq_spark.services.loop import Services

    def did() -> Iterator[pa.RecordBatch]:
        while not isinstance(turn := turns.get(), int):
            root, reports = turn
            done = [each for each in reports if each.done]
            if done:
                yield _batch(root, done)
        ended_by.append(turn)

    ended_by: list[int] = []
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(
                Services(
                    root, every, only=only, broker_conf=broker_conf, apply=True,
                    commit_log_paths=commit_log_paths,
                    on_turn=lambda reports, root=root: turns.put((root, reports)),  # type: ignore[misc]
                )
            )  # fmt: skip
        _write_turns(output, did(), following=0)
    return INTERRUPTED if ended_by == [signal.SIGINT] else OK
