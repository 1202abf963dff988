"""Reads the smaller files of a broker's `config/`, and a client's offsets.json.

Static topics, consumer filters, ordered pop, request modes and two metrics; with the `.bak` rule of
`metadata.read`.
"""

from __future__ import annotations

from typing import Any

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.read import config_path, read_config
from store_format.metadata.values import (
    ConsumerFilter,
    Metric,
    OrderInfo,
    QueueMapping,
    QueueMappingItem,
    RequestMode,
    UnlikeBeanError,
    bean,
    integer,
    integer_map,
    items,
    members,
    string,
)


def read_queue_mappings(root: str) -> dict[str, QueueMapping] | None:
    """topicQueueMapping.json: the static topics (TopicQueueMappingManager)."""

    def decode(raw: dict[str, Any]) -> dict[str, QueueMapping]:
        name = "topicQueueMappingInfoMap"
        return {
            topic: _queue_mapping(topic, value, f"{name}.{topic}")
            for topic, value in members(raw.get(name), name).items()
        }

    return read_config(config_path(root, "topicQueueMapping.json"), decode)


def _queue_mapping(topic: str, value: Any, where: str) -> QueueMapping:
    where_hosted = f"{where}.hostedQueues"
    hosted = {
        integer(queue_id, where_hosted): tuple(
            bean(QueueMappingItem, item, f"{where_hosted}.{queue_id}")
            for item in items(stretches, where_hosted)
        )
        for queue_id, stretches in members(members(value, where).get("hostedQueues"), where_hosted).items()
    }
    return bean(QueueMapping, value, where, topic=topic, hosted_queues=hosted)


def read_consumer_filters(root: str) -> dict[str, dict[str, ConsumerFilter]] | None:
    """consumerFilter.json by topic and group (ConsumerFilterManager)."""

    def decode(raw: dict[str, Any]) -> dict[str, dict[str, ConsumerFilter]]:
        return {
            topic: {
                group: bean(
                    ConsumerFilter,
                    value,
                    f"filterDataByTopic.{topic}.{group}",
                    topic=topic,
                    consumer_group=group,
                )
                for group, value in members(members(table, topic).get("groupFilterData"), topic).items()
            }
            for topic, table in members(raw.get("filterDataByTopic"), "filterDataByTopic").items()
        }

    return read_config(config_path(root, "consumerFilter.json"), decode)


def read_order_infos(root: str) -> dict[str, dict[int, OrderInfo]] | None:
    """consumerOrderInfo.json by `topic@group` and queue (ConsumerOrderInfoManager)."""
    return read_config(config_path(root, "consumerOrderInfo.json"), decode_order_infos)


def decode_order_infos(raw: dict[str, Any]) -> dict[str, dict[int, OrderInfo]]:
    """The members of consumerOrderInfo.json as values. UnlikeBeanError for a member of another type."""
    return {
        key: {
            integer(queue_id, key): _order_info(members(value, key), f"table.{key}.{queue_id}")
            for queue_id, value in members(queues, key).items()
        }
        for key, queues in members(raw.get("table"), "table").items()
    }


def _order_info(value: dict[str, Any], where: str) -> OrderInfo:
    stored = [integer(offset, f"{where}.o") for offset in items(value.get("o"), f"{where}.o")]
    invisible, attempt = value.get("i"), value.get("a")
    return OrderInfo(
        # the offsets after the first are stored as differences from the first
        offsets=tuple(stored[:1] + [stored[0] + difference for difference in stored[1:]]),
        pop_time=integer(value.get("popTime", 0), f"{where}.popTime"),
        invisible_time=None if invisible is None else integer(invisible, f"{where}.i"),
        last_consume_timestamp=integer(value.get("l", 0), f"{where}.l"),
        commit_offset_bit=integer(value.get("cm", 0), f"{where}.cm"),
        attempt_id=None if attempt is None else string(attempt, f"{where}.a"),
        consumed_count=_map_or_none(value.get("oc"), f"{where}.oc"),
        next_visible_time=_map_or_none(value.get("ot"), f"{where}.ot"),
    )


def _map_or_none(value: Any, where: str) -> dict[int, int] | None:
    return None if value is None else integer_map(value, where)


def read_request_modes(root: str) -> dict[str, dict[str, RequestMode]] | None:
    """messageRequestMode.json by topic and group (MessageRequestModeManager)."""

    def decode(raw: dict[str, Any]) -> dict[str, dict[str, RequestMode]]:
        name = "messageRequestModeMap"
        return {
            topic: {
                group: bean(RequestMode, value, f"{name}.{topic}.{group}", topic=topic, consumer_group=group)
                for group, value in members(groups, f"{name}.{topic}").items()
            }
            for topic, groups in members(raw.get(name), name).items()
        }

    return read_config(config_path(root, "messageRequestMode.json"), decode)


def _read_metrics(path: str, name: str) -> dict[str, Metric] | None:
    def decode(raw: dict[str, Any]) -> dict[str, Metric]:
        return {
            topic: bean(Metric, value, f"{name}.{topic}")
            for topic, value in members(raw.get(name), name).items()
        }

    return read_config(path, decode)


def read_timer_metrics(root: str) -> dict[str, Metric] | None:
    """timermetrics (TimerMetrics): destination topic -> messages in the timer."""
    return _read_metrics(config_path(root, "timermetrics"), "timingCount")


def read_transaction_metrics(root: str) -> dict[str, Metric] | None:
    """transactionMetrics (TransactionMetrics): destination topic -> undecided half messages."""
    return _read_metrics(config_path(root, "transactionMetrics"), "transactionCount")


def read_local_offsets(path: str) -> dict[tuple[str, str, int], int] | None:
    """A client's offsets.json (LocalFileOffsetStore): (topic, broker name, queue id) -> next offset."""

    def decode(raw: dict[str, Any]) -> dict[tuple[str, str, int], int]:
        offsets = {}
        for key, offset in members(raw.get("offsetTable"), "offsetTable").items():
            try:
                queue = members(loads(key.encode(), path), "offsetTable")
            except CorruptStoreError as error:
                raise UnlikeBeanError(
                    "offsetTable", "an object of brokerName, queueId and topic as key", key
                ) from error
            name = (
                string(queue.get("topic"), "topic"),
                string(queue.get("brokerName"), "brokerName"),
                integer(queue.get("queueId"), "queueId"),
            )
            offsets[name] = integer(offset, f"offsetTable.{key}")
        return offsets

    return read_config(path, decode, is_needed=True)
