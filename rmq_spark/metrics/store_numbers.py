"""All values of one store at one moment, as samples of the families, for `metrics` and for `check`."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rmq_spark.broker import Forecast
from rmq_spark.metrics.families import LABEL_CHARS_MAX
from rmq_spark.metrics.lag_memory import GroupLag, LagMemory
from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.settings import broker_conf_of
from store_format.errors import CorruptStoreError
from store_format.metadata.read import (
    BrokerConf,
    known_topics,
    read_subscription_groups,
    read_timer_metrics,
    read_transaction_metrics,
)
from store_format.names import (
    DLQ_PREFIX,
    REVIVE_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    is_retry_topic,
    is_system_group,
)
from store_format.read.store import Store
from store_format.views.registry import view_batches

Labels = tuple[str, ...]
Samples = dict[str, list[tuple[Labels, float]]]  # family -> (values of its labels, value)

_NODE_TYPE, _STORAGE = "broker", ("local", "disk")  # BrokerMetricsConstant, DefaultStoreMetricsConstant
_MS = 1_000
_UNREADABLE_SECONDS = 60.0  # an open store does not look again at files that may not be read


@dataclass(slots=True)
class StoreNumbers:
    """The numbers of one store, from look to look.

    `broker_conf` is the path of a broker.conf; None is the store's own. With `verify`, the only numbers are
    those of the problems of the store, and each look reads all of it. `series_max` limits the series of each
    kind whose number a store decides. After an error of `samples`, this value must not be used again.
    """

    store: Store
    broker_conf: str | None = None
    series_max: int = 2_000
    verify: bool = False
    lag: LagMemory = field(init=False)
    _opened_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.lag = LagMemory(self.store)

    @property
    def is_stale(self) -> bool:
        """Whether the store should be opened again: it notes unreadable files, and not that they can be read
        again.
        """
        return bool(self.store.unreadable) and time.monotonic() - self._opened_s >= _UNREADABLE_SECONDS

    def groups(self, now_ms: int) -> tuple[Forecast, list[GroupLag]]:
        """What retention does next, and the lag of each group on each topic."""
        return self.lag.look(broker_conf_of(self.store.opened, self.broker_conf), now_ms)

    def samples(self, now_ms: int) -> Samples:
        """All samples of the store. Raises what a read of the store raises."""
        if self.verify:
            return self._problems(now_ms)
        forecast, groups = self.groups(now_ms)
        store, found = self.lag.store, _NodeSamples(self._node(forecast.conf))
        left_out = found.add_groups(groups, self.series_max)
        left_out += found.add_counts("rmqlog_consumer_dead_letters", self._dead_letters(), self.series_max)
        for name, counts in _broker_counts(store):
            left_out += found.add_counts(name, counts, self.series_max)
        found.add("rmqlog_left_out_series", left_out)
        found.add_retention(forecast)
        self._add_store(found, now_ms)
        return found.samples

    def _problems(self, now_ms: int) -> Samples:
        found = _NodeSamples(self._node(broker_conf_of(self.store.opened, self.broker_conf)))
        severities = Counter(_severities(self.store, now_ms))
        for severity in ("damage", "warning", "info"):
            found.add("rmqlog_problems", severities[severity], severity)
        return found.samples

    def _node(self, conf: BrokerConf) -> Labels:
        return _shortened((_cluster_of(self.lag.store, conf), _NODE_TYPE, self.store.broker_name))

    def _dead_letters(self) -> Iterator[tuple[str, int]]:
        for topic, queues in self.lag.queues.items():
            if topic.startswith(DLQ_PREFIX):
                count = sum(queue.messages for queue in queues.values())
                yield topic.removeprefix(DLQ_PREFIX), count

    def _add_store(self, found: _NodeSamples, now_ms: int) -> None:
        store, topics = self.lag.store, known_topics(self.store.opened)
        configured = read_subscription_groups(store.opened)
        if topics is not None:
            found.add("rocketmq_topic_number", len(topics))
        if configured is not None:
            found.add("rocketmq_consumer_group_number", len(configured))
        space = store.opened.files.disk_space(store.path)
        if space.total_bytes:
            found.add("rocketmq_storage_size_bytes", space.total_bytes - space.free_bytes, *_STORAGE)
        first_ms = _first_message_ms(store)
        if first_ms > 0:
            age = now_ms - first_ms
            found.add("rocketmq_storage_message_reserve_time_milliseconds", age, *_STORAGE)
        state = store.state
        for each in StoreState:
            found.add("rmqlog_store_state", each is state, each.value)
        scanned = 0
        if store.has_consume_queues:
            every = (queue for queues in self.lag.queues.values() for queue in queues.values())
            scanned = sum(queue.scanned is not None for queue in every)
        found.add("rmqlog_damaged_queues", scanned)
        found.add("rmqlog_unreadable_files", len(store.unreadable or ()))


@dataclass(slots=True)
class _NodeSamples:
    """The samples of one look; `node` are the labels that all of them have first."""

    node: Labels
    samples: Samples = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Adds a sample, unless the value is unknown."""
        if value is not None:
            self.samples[name].append(((*self.node, *labels), float(value)))

    def add_groups(self, groups: Sequence[GroupLag], most: int) -> int:
        """Adds the groups; of more than `most` pairs those that are furthest behind. Returns how many it
        leaves out.
        """
        known = (each for each in groups if each.row["lagMessages"] is not None)
        unread = [each.lag_ms or 0 for each in known if not is_system_group(each.row["group"])]
        self.add("rmqlog_oldest_unread_message_age_seconds", max(unread) / _MS if unread else None)
        shown = sorted(groups, key=_furthest_behind)[:most] if len(groups) > most else groups
        added = {_consumer_labels(each): each for each in shown}  # two shortened names may be equal
        for labels, each in added.items():
            self._add_group(labels, each)
        return len(groups) - len(added)

    def _add_group(self, labels: Labels, each: GroupLag) -> None:
        row = each.row
        for name, value in (
            ("rocketmq_consumer_lag_messages", row["lagMessages"]),
            ("rocketmq_consumer_lag_latency_milliseconds", each.lag_ms),
            ("rocketmq_consumer_inflight_messages", row["inFlightMessages"]),
            ("rocketmq_consumer_ready_messages", row["readyMessages"]),
            ("rmqlog_consumer_lag_bytes", row["lagBytes"]),
            ("rmqlog_consumer_unknown_queues", row["unknownQueues"]),
            ("rmqlog_consumer_lost_messages", row["lostMessages"]),
            ("rmqlog_consumer_next_lost_messages", each.next_lost),
            ("rmqlog_consumer_next_loss_seconds", None if each.loss_in_ms is None else each.loss_in_ms / _MS),
        ):
            self.add(name, value, *labels)

    def add_counts(self, name: str, counts: Iterable[tuple[str, int]], most: int) -> int:
        """Adds a sample for each name, of more than `most` the largest. Returns how many it leaves out."""
        found = sorted(counts, key=lambda each: (-each[1], each[0]))
        added = {_shortened((label,)): count for label, count in found[:most]}
        for labels, count in added.items():
            self.add(name, count, *labels)
        return len(found) - len(added)

    def add_retention(self, forecast: Forecast) -> None:
        """Adds the disk and the next deletion."""
        if forecast.disk.total_bytes:
            self.add("rmqlog_disk_used_ratio", forecast.disk.used_percent / 100)
        self.add("rmqlog_disk_max_used_ratio", forecast.conf.disk_max_used_percent / 100)
        if forecast.deletion_ms is not None:
            self.add("rmqlog_next_deletion_seconds", (forecast.deletion_ms - forecast.now_ms) / _MS)
            self.add("rmqlog_next_deletion_bytes", sum(file.size_bytes for file in forecast.files))


def _furthest_behind(each: GroupLag) -> tuple[int, str, str]:
    lag = each.row["lagMessages"]
    return -(lag or 0), each.row["group"], each.row["topic"]


def _consumer_labels(each: GroupLag) -> Labels:
    group, topic = each.row["group"], each.row["topic"]
    return _shortened((group, topic, _bool(is_retry_topic(topic)), _bool(_is_system(group, topic))))


def _is_system(group: str, topic: str) -> bool:
    """BrokerMetricsManager.isSystem, which does not know all groups of `is_system_group`."""
    is_system_topic = topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)
    return is_system_topic or group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _shortened(labels: Labels) -> Labels:
    """Names from files may have any length, and surrogates, which have no UTF-8."""
    short = (each if len(each) <= LABEL_CHARS_MAX else f"{each[: LABEL_CHARS_MAX - 1]}…" for each in labels)
    return tuple(each if each.isascii() else each.encode(errors="replace").decode() for each in short)


def _cluster_of(store: Store, conf: BrokerConf) -> str:
    """The name of the broker's cluster: that of broker.conf, else that of the revive topic, which is named
    after it; "" if neither says one.
    """
    if "brokerClusterName" in conf.given:
        return conf.broker_cluster_name
    topics = known_topics(store.opened) or ()
    clusters = {each.removeprefix(REVIVE_PREFIX) for each in topics if each.startswith(REVIVE_PREFIX)}
    return clusters.pop() if len(clusters) == 1 else ""


def _first_message_ms(store: Store) -> int:
    """The store time of the first message of the commitlog (DefaultMessageStore.getEarliestMessageTime); -1
    without a message.
    """
    return store.time_at(store.log.min_offset) if store.log.files else -1


def _broker_counts(store: Store) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """The counts by topic that a broker keeps in a file. `verify` reports a file that cannot be decoded."""
    for name, read in (
        ("rocketmq_half_messages", read_transaction_metrics),
        ("rocketmq_timing_messages", read_timer_metrics),
    ):
        with suppress(CorruptStoreError):
            yield name, [(topic, each.count) for topic, each in (read(store.opened) or {}).items()]


def _severities(store: Store, now_ms: int) -> Iterator[str]:
    for batch in view_batches(store, "problems", now_ms=now_ms):
        yield from batch["severity"].to_pylist()
