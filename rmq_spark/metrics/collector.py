"""The collector: one page of metrics about all stores of a path, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rmq_spark.metrics.exposition import MetricsPage
from rmq_spark.metrics.store_numbers import Samples, StoreNumbers
from store_format import MessageStore
from store_format.errors import StoreError, StoreNotFoundError
from store_format.files.read import all_answered, one_look
from store_format.metadata.broker_confs import BrokerConfs
from store_format.metadata.group_offsets import refuse_unknown_offsets
from store_format.read.store_root import NoStore, members_without_store, refuse_equal_names, store_roots

_NS_OF_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """What a collector looks at: the absolute path of a store or a cluster, and how its stores are opened and
    measured, as in `StoreNumbers`. With another number of stores than `expected_count`, the path itself is
    not read completely.
    """

    path: str
    commit_log_paths: tuple[str, ...] = ()
    broker_name: str | None = None
    broker_confs: BrokerConfs = field(default_factory=BrokerConfs)
    series_max: int = 2_000
    verify: bool = False
    expected_count: int | None = None


@dataclass(frozen=True, slots=True)
class Scrape:
    """One page, how many stores were read for it, the errors of those that were not, and why the offsets of
    the groups of others are unknown.
    """

    page: bytes
    read_count: int
    errors: list[Exception]
    unknown: list[StoreError]


@dataclass(slots=True)
class Collector:
    """Looks at the stores, and keeps from look to look what did not change.

    A store that fails has `rmqlog_scrape_success` 0 and no other number; the next look opens it again. So has
    a store of an earlier look that is gone, until it is back or the collector ends.
    """

    scope: Scope
    clock_ns: Callable[[], int] = time.time_ns
    _looks: dict[str, StoreNumbers] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _page: MetricsPage = field(default_factory=MetricsPage)

    def scrape(self) -> Scrape:
        """Looks at all stores once. An error of a store is in the result, and does not raise."""
        samples: Samples = {}
        errors: list[Exception] = []
        unknown: list[StoreError] = []
        names: list[tuple[str, str]] = []
        with one_look():
            roots = self._roots(samples, errors)
            self._looks = {root: look for root, look in self._looks.items() if root in roots}
            for root in roots:
                self._add_store(root, samples, errors, names)
                unknown += self._unknown(root)
        return Scrape(self._page.write(samples), len(names), errors, unknown)

    def _roots(self, samples: Samples, errors: list[Exception]) -> list[str]:
        scope = self.scope
        if scope.commit_log_paths:
            return [scope.path]
        left_out: list[StoreError | OSError] = []
        try:
            roots = store_roots(scope.path, left_out.append)
        except (StoreError, OSError) as error:
            left_out.append(error)
            roots = []
        failed = {getattr(error, "member", "") or scope.path for error in left_out}
        for path in sorted(failed):
            self._add(samples, "success", path, 0)
        errors += left_out
        errors += self._missing(roots, samples, failed)
        self._seen.update(roots)
        return [root for root in roots if not left_out or root != scope.path]

    def _missing(self, roots: list[str], samples: Samples, failed: set[str]) -> list[Exception]:
        """The errors of stores that are not there, each with its number, but for those that have `failed`."""
        scope = self.scope
        without: dict[str, NoStore] = {}
        with suppress(StoreError, OSError):
            without = {each.path: each for each in members_without_store(scope.path) if each.is_missing}
        gone = self._seen - {*roots, *failed, scope.path}
        found: list[Exception] = []
        for path in sorted(gone | without.keys()):
            self._add(samples, "success", path, 0)
            text = f"{path} was a store at an earlier look, and is none now"
            found.append(StoreNotFoundError(str(without.get(path, text))))
        if scope.expected_count is not None and len(roots) != scope.expected_count:
            if scope.path not in {*roots, *failed}:
                self._add(samples, "success", scope.path, 0)
            counts = f"expected {scope.expected_count} stores (--expect-stores), found {len(roots)}"
            found.append(StoreNotFoundError(f"{scope.path}: {counts}"))
        return found

    def _add_store(
        self, root: str, samples: Samples, errors: list[Exception], names: list[tuple[str, str]]
    ) -> None:
        begun = time.perf_counter()
        try:
            with all_answered():
                look = self._look_of(root)
                refuse_equal_names([*names, (look.store.broker_name, root)])
                found = look.samples(self.clock_ns() // _NS_OF_MS)
        except Exception as error:  # also what nobody foresaw: the other stores have their numbers
            self._looks.pop(root, None)
            errors.append(error)
            self._add(samples, "success", root, 0)
            return
        names.append((look.store.broker_name, root))
        for name, each in found.items():
            samples.setdefault(name, []).extend(each)
        self._add(samples, "success", root, 1)
        self._add(samples, "duration_seconds", root, time.perf_counter() - begun)

    def _unknown(self, root: str) -> list[StoreError]:
        """Why a store that was read has no series of its groups."""
        if root in self._looks and not self.scope.verify:
            try:
                refuse_unknown_offsets(self._looks[root].store.opened)
            except StoreError as error:
                return [error]
        return []

    def _look_of(self, root: str) -> StoreNumbers:
        scope = self.scope
        look = self._looks.get(root)
        if look is not None and look.is_stale:
            look = None
        store = MessageStore.open(
            root,
            broker_name=scope.broker_name,
            commit_log_paths=scope.commit_log_paths,
            skip_unreadable=True,
            fail_on_unknown=False,
        )
        if look is None or look.store.broker_name != store.broker_name:
            look = self._looks[root] = StoreNumbers(
                store, scope.broker_confs.of(store.broker_name), scope.series_max, scope.verify
            )
        return look

    def _add(self, samples: Samples, name: str, store: str, value: float) -> None:
        """Adds a number of the look itself. The names of a look with `verify` are others: its page is a file
        beside that of other looks.
        """
        name = f"rmqlog_{'verify' if self.scope.verify else 'scrape'}_{name}"
        samples.setdefault(name, []).append(((store,), float(value)))
