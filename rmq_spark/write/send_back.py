"""Failed messages of a store, staged as retries and dead letters for one commit.

`produce.send_back` has the rule. Here are its surroundings: the messages are found by their places, the
group's settings are read from the store, and the copies are staged in chunks, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rmq_spark.produce.rows import Host
from rmq_spark.produce.send_back import refuse_without_retries, send_back
from store_format.commit.staging import StagingWriter, stage_columns
from store_format.errors import IllegalMessageError
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.names import DELAY_LEVELS_MS, dead_letter_topic, retry_topic
from store_format.read.stored_messages import FoundPlaces

# A message that is in the store is stored again, also above the maxMessageSize of today.
_MESSAGE_SIZE_MAX = (1 << 31) - (1 << 17)


@dataclass(frozen=True, slots=True)
class SendBackSettings:
    """How messages are sent back, as the arguments of `produce.send_back.send_back`.

    `delay_levels_ms` is the broker's messageDelayLevel.
    """

    group: str
    max_reconsume_times: int | None = None
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    store_host: Host | None = None


@dataclass(slots=True)
class StagedBack:
    """What was staged for one store."""

    retried: int = 0
    dead_letters: int = 0
    new_topics: dict[str, int] = field(default_factory=dict)


def stage_send_back(
    writer: StagingWriter,
    found: FoundPlaces,
    delay_levels: Sequence[int] | NDArray[np.int64] | int,
    settings: SendBackSettings,
    *,
    crc_property: bool,
) -> StagedBack:
    """Stages the copies of these messages into the store that has them.

    `delay_levels` is one level for all places, or one for each. Raises what `FoundPlaces.read` and the rule
    raise, and IllegalMessageError if the group's topics do not allow writes.
    """
    group = kept_group(found.store.path, settings.group)
    levels = np.asarray(delay_levels, np.int64)
    staged = StagedBack()
    for messages, first in found.read():
        made = send_back(
            messages,
            group,
            delay_levels=levels if levels.ndim == 0 else levels[first],
            max_reconsume_times=settings.max_reconsume_times,
            level_max=len(settings.delay_levels_ms),
            store_host=settings.store_host,
        )
        stage_columns(
            writer,
            made.messages,
            crc_property=crc_property,
            message_size_max=_MESSAGE_SIZE_MAX,
            delay_levels_ms=settings.delay_levels_ms,
        )
        staged.retried += made.retried
        staged.dead_letters += made.dead_letters
        staged.new_topics |= made.new_topics
    return staged


def kept_group(root: str, group: str) -> SubscriptionGroup:
    """The group's settings in subscriptionGroup.json, else the defaults of a group that a broker creates.

    If the retry topic exists with fewer queues than retryQueueNums, only these queues are used: consumers
    read no others. Raises OptionError for a group that keeps no retries, and IllegalMessageError if the retry
    or dead letter topic does not allow writes.
    """
    groups: Mapping[str, SubscriptionGroup] = read_subscription_groups(root) or {}
    config = groups.get(group, SubscriptionGroup(group))
    refuse_without_retries(config)
    topics: Mapping[str, TopicConfig] = read_topics(root) or {}
    for topic in (retry_topic(group), dead_letter_topic(group)):
        if topic in topics and not topics[topic].writable:
            raise IllegalMessageError(
                f"{root}: topic {topic}: expected write permission (perm 6), found perm {topics[topic].perm}"
            )
    existing = topics.get(retry_topic(group))
    if existing is None:
        return config
    queues = len(existing.written_queue_ids)
    return replace(config, retry_queue_nums=min(config.retry_queue_nums, queues))
