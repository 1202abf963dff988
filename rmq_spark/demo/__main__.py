"""`python -m rmq_spark.demo DIRECTORY`: creates the demo store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rmq_spark.demo import create
from rmq_spark.demo.broker import DEAD_LETTERS

_CLEAR = "\r\x1b[K"


def _draw(share: float) -> None:
    """Shows the share on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"{_CLEAR}demo: {100 * share:.0f} % of three days", end="", file=sys.stderr, flush=True)


def _erase() -> None:
    if sys.stderr.isatty():
        print(_CLEAR, end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m rmq_spark.demo DIRECTORY`."""
    parser = argparse.ArgumentParser(prog="python -m rmq_spark.demo", description=__doc__)
    parser.add_argument("directory", help="a new or empty directory")
    parser.add_argument(
        "--end", metavar="TIME", help="the time of the last message, ISO 8601; by default now"
    )
    parser.add_argument("--orders", type=int, default=8000, help="number of orders; by default 8000")
    given = parser.parse_args(arguments)
    end_ms = None
    if given.end is not None:
        moment = datetime.fromisoformat(given.end)
        end_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    store = create(given.directory, end_ms=end_ms, orders=given.orders, on_progress=_draw)
    _erase()
    messages = sum(queue.messages for queue in store.queues())
    letters = sum(queue.max_offset for queue in store.queues(DEAD_LETTERS.__eq__))
    print(f"{given.directory}: {messages:,} messages of three days, {letters} of them dead letters")
    print(f"next: rmqlog ls {given.directory}; rmqlog lag {given.directory}")


if __name__ == "__main__":
    main()
