"""Metrics of stores for Prometheus: `metrics`, as a file, over HTTP, or on stdout."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import OK, PARTIAL
from rmq_spark.cli.group_options import unknown_lag
from rmq_spark.cli.options import (
    broker_confs_option,
    confs_for,
    expect_stores_option,
    open_roots,
    store_path_argument,
)
from rmq_spark.cli.options import (
    broker_name as name_of_broker,
)
from rmq_spark.cli.output_file import replace_whole
from rmq_spark.cli.remarks import remark
from store_format.errors import StoreError, StoreNotFoundError, StorePermissionError

if TYPE_CHECKING:
    from types import FrameType

    from rmq_spark.metrics.collector import Collector, Scrape
    from store_format.metadata.broker_confs import BrokerConfs


@click.command("metrics")
@store_path_argument
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write FILE for the textfile collector of the node exporter, in one step by a rename.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Answer GET /metrics at such an address as 127.0.0.1:9877 until SIGTERM or Ctrl-C; without HOST "
    "only to this machine.",
)
@click.option(
    "--max-series",
    "series_max",
    type=click.IntRange(1),
    default=2_000,
    show_default=True,
    metavar="N",
    help="The largest number of pairs of group and topic of each store; the pairs with the most unread "
    "messages stay.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Count only the problems that rmqlog verify finds, for a file of its own; reads all of STORE.",
)
@broker_confs_option
@expect_stores_option
def metrics_(
    path: str,
    commit_log_paths: tuple[str, ...],
    broker_name: str | None,
    textfile: str | None,
    listen: str | None,
    series_max: int,
    verify: bool,
    broker_confs: BrokerConfs,
    expected_count: int | None,
) -> int:
    """Metrics for Prometheus: lag, age, losses, disk, damage.

    The page has the names and labels of a 5.x broker's own exporter, and names with rmqlog_ in front for
    numbers that no broker exports. Without --textfile and --listen, the page goes to stdout. A store that
    cannot be read, is gone, or has left an empty directory in a directory of stores has
    rmqlog_scrape_success 0, and stderr says why. Needs the extra metrics
    (prometheus_client).

    \b
    rmqlog metrics /data/store --textfile /var/lib/node_exporter/rmqlog.prom
    rmqlog metrics /data/store --listen 127.0.0.1:9877
    """
    from rmq_spark.metrics.collector import Collector, Scope
    from rmq_spark.metrics.exposition import refuse_without_client

    if textfile is not None and listen is not None:
        raise click.UsageError("--textfile and --listen are given together; use only one of them")
    if listen is not None and verify:
        raise click.UsageError("--verify reads all of STORE at each look; use it with --textfile, once a day")
    refuse_without_client()
    confs = _confs_of(path, commit_log_paths, broker_confs)
    collector = Collector(
        Scope(path, commit_log_paths, broker_name, confs, series_max, verify, expected_count)
    )
    if listen is not None:
        return _listen(listen, collector)
    scrape = collector.scrape()
    if textfile is None:
        sys.stdout.write(scrape.page.decode())
    else:
        replace_whole(textfile, scrape.page)
    return _end(scrape)


def _confs_of(path: str, commit_log_paths: tuple[str, ...], confs: BrokerConfs) -> BrokerConfs:
    """The files of `--broker-conf` for the stores that are there now."""
    if not confs.files:
        return confs
    with suppress(StoreNotFoundError, StorePermissionError):  # the first look says it
        return confs_for(confs, [*map(name_of_broker, open_roots(path, commit_log_paths, []))])
    return confs


def _end(scrape: Scrape) -> int:
    """The exit code. Raises the first error if no store was read, and an error that nobody foresaw."""
    unforeseen = [error for error in scrape.errors if not isinstance(error, StoreError | OSError)]
    last = unforeseen[0] if unforeseen else None if scrape.read_count else scrape.errors[0]
    for error in scrape.errors:
        if error is not last:
            remark(str(error))
    if last is not None:
        raise last
    for unknown in map(unknown_lag, scrape.unknown):
        remark(unknown)
    return PARTIAL if scrape.errors or scrape.unknown else OK


# ---- the server --------------------------------------------------------------------------------------------


class _StoppedError(BaseException):
    """SIGTERM has come."""


@dataclass(slots=True)
class _Pages:
    """The pages of a collector; says on stderr what fails, once until the failure changes."""

    collector: Collector
    _said: list[str] = field(default_factory=list)

    def page(self) -> bytes:
        scrape = self.collector.scrape()
        errors = [str(error) or type(error).__name__ for error in scrape.errors]
        errors += map(unknown_lag, scrape.unknown)
        if errors != self._said:
            for error in errors:
                remark(error)
            if not errors:
                remark("all stores are read again")
        self._said = errors
        return scrape.page


def _listen(address: str, collector: Collector) -> int:
    from rmq_spark.metrics.server import MetricsServer, is_loopback, parse_address

    host, port = parse_address(address)
    with _until_sigterm(), MetricsServer((host, port), _Pages(collector).page) as server:
        remark(f"metrics at http://{server.shown_address}/metrics")
        if not is_loopback(host):
            remark(
                f"{host} is not loopback: each machine that reaches the port can read the names of all "
                "topics and groups"
            )
        server.page()  # the first look takes longest
        server.serve_forever()
    return OK


@contextmanager
def _until_sigterm() -> Iterator[None]:
    """Ends the block at SIGTERM, in whatever it does: a look changes no file."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _StoppedError

    before: Callable[..., object] | int | None = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _StoppedError:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
