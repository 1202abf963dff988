"""Failed messages without a broker: sends them back for a retry, and stores dead letters again.

When a consumer fails, it sends the message back to its broker. The broker stores a copy for the group's retry
topic, and after too many retries for its dead letter topic. `send_back` does the same in a store whose broker
is stopped. `resend` stores dead letters again as new messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rmq_spark.broker.resend import ResendPlan, ResendResult, Where, resend
from rmq_spark.produce.rows import Host
from rmq_spark.write.send_back import SendBackSettings, StagedBack, stage_send_back
from store_format.bookkeeping.ledger import read_ledger, refuse_service_key
from store_format.bookkeeping.settings import broker_conf_of
from store_format.bookkeeping.staged_file import StagedFile
from store_format.commit.append import commit
from store_format.commit.appended_crc import ends_with_crc_property
from store_format.commit.options import CommitOptions
from store_format.commit.staging import StagingWriter
from store_format.commit.unsupported import refuse_full_disk, refuse_store
from store_format.errors import OptionError
from store_format.metadata.broker_conf import BrokerConf
from store_format.read.store import Store
from store_format.read.stored_messages import FoundPlaces, find_physical, find_places
from store_format.survey.gone import refuse_lost_log

__all__ = ["Place", "ResendPlan", "ResendResult", "SendBackResult", "Where", "resend", "send_back"]

Place = tuple[str, int, int] | int


@dataclass(frozen=True, slots=True)
class SendBackResult:
    """The number of messages that were stored as retries (`retried`) and as dead letters (`dead_letters`).

    `committed` is False if the key was committed before; then nothing was written.
    """

    committed: bool
    retried: int = 0
    dead_letters: int = 0


def send_back(
    store: Store | str,
    group: str,
    places: Iterable[Place],
    *,
    delay_level: int | Sequence[int] = 0,
    max_reconsume_times: int | None = None,
    key: tuple[str, int] | None = None,
    now_ms: int | None = None,
    store_host: Host | None = None,
    broker_conf: str | BrokerConf | None = None,
    lock_timeout: float = 10.0,
    disk_limit: int | None = None,
) -> SendBackResult:
    """Sends failed messages of `group` back, so that the group consumes them again later. Writes all or none.

    `places` name messages of the store: (topic as stored, queue id, queue offset), or physical offsets. A
    message that is named twice is sent back once. `delay_level` is 0 for RocketMQ's own delay (level 3 +
    reconsumeTimes), a level from 1, or negative for a dead letter at once; give one value for all places, or
    one for each. After `max_reconsume_times` retries (default: retryMaxTimes of the group, 16), a message
    becomes a dead letter. -1, the default of RocketMQ's consumers, is 16, whatever the group's retryMaxTimes.
    With a `key` (id, number), a second call with this number or a lower number writes nothing. `now_ms` is
    the clock (ms since 1970), `lock_timeout` the seconds to wait for the store's lock. `store_host` is the
    (address, port) of the broker (default: the host of each message). `broker_conf` has the broker's settings
    (messageDelayLevel), as for `run_once`. `disk_limit` is the percentage of a disk above which nothing is
    written (default: diskSpaceWarningLevelRatio, 90). The service `schedule` delivers the retries when they
    are due.

    Raises OffsetOutOfRangeError for a place without a message, StoreInUseError while a broker has the store,
    OptionError for a group that keeps no retries and for a maximum below -1, IllegalMessageError for a
    message that a broker refuses, and StoreWriteError for a disk that is too full.

    Example::

        retry.send_back("/data/store", "CG_orders", [("Orders", 0, 17)], key=("fix-4711", 1))
    """
    store = Store.open(store) if isinstance(store, str) else store
    root = store.path
    if key is not None:
        refuse_service_key(key[0])
    refuse_store(root)
    refuse_lost_log(root, store.log)
    conf = broker_conf_of(root, broker_conf)
    settings = SendBackSettings(
        group, max_reconsume_times, conf.message_delay_levels_ms, store_host=store_host
    )
    staged, files = StagedBack(), list[StagedFile]()
    if key is None or not read_ledger(root).has(key):  # The messages of a committed call may be deleted.
        refuse_full_disk(root, disk_limit, conf, store.commit_log_paths)
        staged, files = _staged_copies(store, _found_messages(store, places), delay_level, settings)
    options = CommitOptions(
        new_topics=staged.new_topics,
        lock_timeout=lock_timeout,
        log_directories=store.commit_log_paths,
        conf=conf,
    )
    if now_ms is not None:
        options = replace(options, clock=lambda: now_ms)
    result = commit(root, files, key=key, options=options)
    if not result.committed:
        return SendBackResult(False)
    return SendBackResult(True, staged.retried, staged.dead_letters)


def _found_messages(store: Store, places: Iterable[Place]) -> FoundPlaces:
    given = list(places)
    offsets = [each for each in given if isinstance(each, int)]
    queue_places = [each for each in given if not isinstance(each, int)]
    if offsets and queue_places:
        raise OptionError(
            f"places: expected (topic, queue id, queue offset) or physical offsets, found both, "
            f"{queue_places[0]} and {offsets[0]}; send them back in two calls"
        )
    return find_physical(store, offsets) if offsets else find_places(store, queue_places)


def _staged_copies(
    store: Store, found: FoundPlaces, delay_level: int | Sequence[int], settings: SendBackSettings
) -> tuple[StagedBack, list[StagedFile]]:
    if not len(found):
        return StagedBack(), []
    writer = StagingWriter(store.path, os.urandom(8).hex())
    try:
        crc_property = ends_with_crc_property(store.log, read_ledger(store.path))
        staged = stage_send_back(writer, found, delay_level, settings, crc_property=crc_property)
        return staged, [writer.close()]
    except BaseException:
        writer.discard()
        raise
