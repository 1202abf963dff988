"""`services`: RocketMQ's background work on stores without a broker, once or as a loop.

Each store, and each service of a store, goes on by itself. The rows, the lines on stderr and the exit code
say what was done, what failed, and why.
"""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import INTERRUPTED, OK, PARTIAL
from rmq_spark.cli.options import broker_confs_option, broker_name, conf_of, named_roots, store_argument
from rmq_spark.cli.output import Output, output_options, write_rows
from rmq_spark.cli.output_file import forget_output
from rmq_spark.cli.remarks import remark
from rmq_spark.cli.view_rows import column_named
from store_format.errors import StoreError, StoreWriteError

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa

    from rmq_spark.broker import turn
    from store_format.metadata.broker_confs import BrokerConfs
    from store_format.metadata.read import BrokerConf


@click.command("services")
@store_argument(opened=False, tolerant=True)
@click.option("--once", is_flag=True, help="One turn, then exit.")
@click.option(
    "--every", metavar="TIME", default="1s", show_default=True, help="The longest pause between two turns."
)
@click.option(
    "--only", metavar="NAMES", help="These services, separated by commas, such as schedule,timer,clean."
)
@broker_confs_option
@click.option("--apply", "apply_", is_flag=True, help="Write to STORE; without it one turn is only shown.")
@output_options()
def services_(
    roots: list[str],
    left_out: list[StoreError],
    commit_log_paths: tuple[str, ...],
    once: bool,
    every: str,
    only: str | None,
    broker_confs: BrokerConfs,
    apply_: bool,
    output: Output,
) -> int:
    """Deliver what is due, flush and clean, as a broker does.

    What is due is only shown; --apply lets the services write to STORE. The broker of STORE must be stopped:
    a store in use is refused with exit code 6. Without --once, turns follow each other until SIGTERM or
    Ctrl-C; a turn that has begun is completed. In a cluster, each store and each service goes on by itself;
    if one fails, the others do their work, and the exit code is 4. Files are deleted only with `clean` in
    --only.

    \b
    rmqlog services /data/spark-log
    rmqlog services /data/spark-log --apply
    rmqlog services /data/store-copy --once --only schedule --apply
    """
    from rmq_spark.broker import chosen_services
    from rmq_spark.options.option import Given, duration_ms
    from store_format.metadata.read import read_broker_conf

    every_ms = duration_ms(Given("--every", every, 0))
    if every_ms <= 0:
        raise click.UsageError(f"--every: expected a time above 0, such as 1s, found {every}")
    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    chosen_services(names)  # an unknown name is refused before any store is touched
    confs: dict[str, BrokerConf | None] = {}
    for root in roots:
        file = conf_of(broker_confs, root)
        confs[root] = None if file is None else read_broker_conf(file)
    named = named_roots(roots)
    asked = _Asked(roots, commit_log_paths, names, confs, apply_)
    turns = None if once or not apply_ else _until_signal()  # before the first turn: none must end it
    first = _FirstTurns([("", error) for error in left_out])
    with _needs_reader(apply_):
        _write_turns(output, _first_turns(asked, first))
        if not apply_:
            remark(f"nothing was written to {', '.join(named)}; add --apply to write")
        if turns is None:
            return first.end()
        first.end_of_first_turn()
        return _loop(asked, every_ms / 1000, output, turns, is_whole=not left_out)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line asks for."""

    roots: Sequence[str]
    commit_log_paths: tuple[str, ...]
    only: Sequence[str] | None
    confs: Mapping[str, BrokerConf | None]  # by root
    apply: bool


@dataclass(slots=True)
class _FirstTurns:
    """The first turns of all services: what failed, as (who, why), and whether anything did its work."""

    failed: list[tuple[str, Exception]] = field(default_factory=list)
    has_worked: bool = False

    def add(self, root: str, reports: Sequence[turn.TurnReport]) -> None:
        self.has_worked |= any(each.has_worked for each in reports)
        for each in reports:
            name = f"{broker_name(root)}, service {each.service}" if each.service else ""
            self.failed += [(name, error) for error in each.errors]

    def end(self) -> int:
        """Prints what failed, and returns the exit code.

        Raises the first error if nothing worked, and an error that nobody foresaw: it is a bug of rmqlog.
        """
        bugs = [error for _, error in self.failed if not isinstance(error, StoreError | OSError)]
        last = bugs[0] if bugs else None if self.has_worked or not self.failed else self.failed[0][1]
        self._print(besides=last)
        if last is not None:
            raise last
        return PARTIAL if self.failed else OK

    def end_of_first_turn(self) -> None:
        """Prints what failed before the loop goes on. Raises the first error if nothing worked."""
        if not self.has_worked and self.failed:
            self.end()
        self._print()

    def _print(self, besides: Exception | None = None) -> None:
        from rmq_spark.broker import turn

        for who, error in self.failed:
            if error is not besides:
                remark(f"{who}: {turn.error_text(error)}" if who else turn.error_text(error))


@contextmanager
def _needs_reader(is_needed: bool) -> Iterator[None]:
    """With `is_needed`, raises StoreWriteError if the reader of stdout is gone.

    Otherwise the command ends as any other whose reader has enough, with exit code 0, and a supervisor would
    take the services for done.
    """
    try:
        yield
    except BrokenPipeError as error:
        if not is_needed:
            raise
        forget_output()
        raise StoreWriteError(
            "stdout: expected a reader, found a closed pipe: the services have ended; start them again with "
            "stdout in a file, or in /dev/null"
        ) from error


def _write_turns(output: Output, batches: Iterator[pa.RecordBatch], following: int | None = None) -> None:
    """Writes the rows of turns. A table has no column `error`: stderr has the errors."""
    from rmq_spark.broker import turn

    known = ["brokerName", *(each.name for each in turn.TURN_COLUMNS)]
    names = [column_named(name, known) for name in output.columns] or [
        name for name in known if name != "error" or output.form != "table"
    ]
    write_rows(output, batches, names, following=following)


def _first_turns(asked: _Asked, first: _FirstTurns) -> Iterator[pa.RecordBatch]:
    """One turn of each store. A store that fails has one row, without a service, beside other stores."""
    from rmq_spark.broker import chosen_services, turn

    for root in asked.roots:
        try:
            reports = turn.take_turn(
                root,
                chosen_services(asked.only),
                turn.now_of(root, None, asked.confs[root]),
                preview=not asked.apply,
                commit_log_paths=asked.commit_log_paths,
            )
        except Exception as error:  # also what nobody foresaw: the other stores have their turn
            reports = [turn.TurnReport("", errors=(error,))]
        first.add(root, reports)
        if any(each.service for each in reports) or len(asked.roots) > 1:
            yield _batch(root, reports)


def _batch(root: str, reports: Sequence[turn.TurnReport]) -> pa.RecordBatch:
    import pyarrow as pa

    from rmq_spark.broker import turn

    table = turn.turn_table(reports).combine_chunks()
    names = pa.array([broker_name(root)] * len(table), pa.string())
    return table.add_column(0, "brokerName", names).to_batches()[0]


_Turns = queue.SimpleQueue["tuple[str, list[turn.TurnReport]] | int"]  # reports of a store, or a signal


def _until_signal() -> _Turns:
    """A queue that gets the number of each SIGTERM and SIGINT from now on."""
    turns: _Turns = queue.SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        turns.put(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return turns


def _loop(asked: _Asked, every: float, output: Output, turns: _Turns, *, is_whole: bool) -> int:
    """Turns in a thread for each store; writes the turns that did something, until a signal.

    `is_whole`: no store of the cluster was left out.
    """
    from rmq_spark.broker import Services

    def did() -> Iterator[pa.RecordBatch]:
        while not isinstance(found := turns.get(), int):
            root, reports = found
            done = [each for each in reports if each.done]
            if done:
                yield _batch(root, done)
        ended_by.append(found)

    ended_by: list[int] = []
    with ExitStack() as stack:
        loops = [
            stack.enter_context(
                Services(
                    root,
                    every,
                    only=asked.only,
                    broker_conf=asked.confs[root],
                    apply=True,
                    commit_log_paths=asked.commit_log_paths,
                    on_turn=lambda reports, root=root: turns.put((root, reports)),  # type: ignore[misc]
                )
            )
            for root in asked.roots
        ]
        _write_turns(output, did(), following=0)
    if ended_by == [signal.SIGINT]:
        return INTERRUPTED
    return PARTIAL if not is_whole or any(each.failing for each in loops) else OK
