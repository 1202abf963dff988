"""Each metric that rmqlog exports, as one table: name, type, labels, help text and origin.

The names, labels and units of a 5.x broker's own exporter come first; the broker's OpenTelemetry exporter
adds the unit to a name, and a label `otel_scope_name`, which is left out here. A name that begins with
`rmqlog_` is of a number that no broker exports. Numbers that only a broker's memory has, such as
rocketmq_storage_flush_behind_bytes, are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NODE = ("cluster", "node_type", "node_id")  # the labels of each series about a store
STORAGE = (*NODE, "storage_type", "storage_medium")
CONSUMER = (*NODE, "consumer_group", "topic", "is_retry", "is_system")

LABEL_CHARS_MAX = 255  # of a label's value: the longest name of a topic or group has 255 characters


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    `constant` is the constant of RocketMQ 5.5 that has the name, as Class.FIELD; "" for names of rmqlog.
    `unit` is what the broker's exporter adds to the constant. `source` says where the value comes from.
    """

    name: str
    labels: tuple[str, ...]
    help: str
    source: str
    constant: str = ""
    unit: str = ""
    kind: Literal["gauge", "counter"] = "gauge"


_BROKER, _STORE = "BrokerMetricsConstant", "DefaultStoreMetricsConstant"

FAMILIES = (
    Family(
        "rocketmq_topic_number", NODE, "Topics of the broker, its own ones included.", "topics.json",
        f"{_BROKER}.GAUGE_TOPIC_NUM",
    ),
    Family(
        "rocketmq_consumer_group_number", NODE, "Consumer groups of the broker, its own ones included.",
        "subscriptionGroup.json", f"{_BROKER}.GAUGE_CONSUMER_GROUP_NUM",
    ),
    Family(
        "rocketmq_storage_size_bytes", STORAGE,
        "Used bytes of the file system of the store's directory, other files included.", "the file system",
        f"{_STORE}.GAUGE_STORAGE_SIZE", "_bytes",
    ),
    Family(
        "rocketmq_storage_message_reserve_time_milliseconds", STORAGE,
        "Age of the first message of the commitlog.", "the commitlog",
        f"{_STORE}.GAUGE_STORAGE_MESSAGE_RESERVE_TIME", "_milliseconds",
    ),
    Family(
        "rocketmq_half_messages", (*NODE, "topic"),
        "Half messages without a decision, by destination topic, as the broker has counted them.",
        "transactionMetrics", f"{_BROKER}.GAUGE_HALF_MESSAGES",
    ),
    Family(
        "rocketmq_timing_messages", (*NODE, "topic"),
        "Messages that wait in the timer, by destination topic, as the broker has counted them.",
        "timermetrics", f"{_STORE}.GAUGE_TIMING_MESSAGES",
    ),
    Family(
        "rocketmq_consumer_lag_messages", CONSUMER, "Messages that the group has not consumed.",
        "view lagByTopic, lagMessages", f"{_BROKER}.GAUGE_CONSUMER_LAG_MESSAGES",
    ),
    Family(
        "rocketmq_consumer_lag_latency_milliseconds", CONSUMER,
        "Age of the oldest message that the group has not consumed.", "view lagByTopic, lagMs",
        f"{_BROKER}.GAUGE_CONSUMER_LAG_LATENCY", "_milliseconds",
    ),
    Family(
        "rocketmq_consumer_inflight_messages", CONSUMER,
        "Messages that consumers of the group were given and have not acknowledged.",
        "view lagByTopic, inFlightMessages", f"{_BROKER}.GAUGE_CONSUMER_INFLIGHT_MESSAGES",
    ),
    Family(
        "rocketmq_consumer_ready_messages", CONSUMER, "Messages that no consumer of the group was given.",
        "view lagByTopic, readyMessages", f"{_BROKER}.GAUGE_CONSUMER_READY_MESSAGES",
    ),
    Family(
        "rmqlog_consumer_lag_bytes", CONSUMER,
        "Bytes in the commitlog of the messages that the group has not consumed.",
        "view lagByTopic, lagBytes",
    ),
    Family(
        "rmqlog_consumer_unknown_queues", CONSUMER,
        "Queues of the topic whose lag is unknown, such as those without a committed offset; no other series "
        "counts their messages.",
        "view lagByTopic, unknownQueues",
    ),
    Family(
        "rmqlog_consumer_lost_messages", CONSUMER,
        "Messages that retention has deleted before the group consumed them.",
        "view lagByTopic, lostMessages",
    ),
    Family(
        "rmqlog_consumer_next_lost_messages", CONSUMER,
        "Messages that the next deletion of retention takes before the group has consumed them; without a "
        "series if it takes none.",
        "rmqlog retention, nextLostMessages",
    ),
    Family(
        "rmqlog_consumer_next_loss_seconds", CONSUMER,
        "Time until retention deletes messages that the group has not consumed; without a series if all are "
        "in the last commitlog file, which is never deleted.",
        "rmqlog retention, deletionInMs",
    ),
    Family(
        "rmqlog_consumer_dead_letters", (*NODE, "consumer_group"),
        "Messages in the group's dead letter topic.", "consume queues",
    ),
    Family(
        "rmqlog_oldest_unread_message_age_seconds", NODE,
        "Age of the oldest message that a group of an application has not consumed; 0 if all are consumed, "
        "and without a series if no such group has a known lag.",
        "view lagByTopic, lagMs",
    ),
    Family(
        "rmqlog_left_out_series", NODE,
        "Pairs of group and topic, dead letter topics, and topics of half and timing messages that "
        "--max-series has left out.",
        "the limit of series",
    ),
    Family(
        "rmqlog_store_state", (*NODE, "state"), "1 for the state of the store: clean, live or crashed.",
        "abort, lock",
    ),
    Family(
        "rmqlog_damaged_queues", NODE,
        "Queues whose consume queue files are damaged or lost; their messages are found by a scan.",
        "consume queues",
    ),
    Family(
        "rmqlog_unreadable_files", NODE, "Topics, queues and files that may not be read and are left out.",
        "the store's files",
    ),
    Family(
        "rmqlog_problems", (*NODE, "severity"), "Problems that rmqlog verify finds; with --verify.",
        "view problems",
    ),
    Family(
        "rmqlog_disk_used_ratio", NODE,
        "Used share of the disk of the commitlog or of the consume queues, of the fuller one.",
        "the file system",
    ),
    Family(
        "rmqlog_disk_max_used_ratio", NODE,
        "Share above which the broker deletes expired files at any hour (diskMaxUsedSpaceRatio).",
        "broker.conf",
    ),
    Family(
        "rmqlog_next_deletion_seconds", NODE,
        "Time until retention deletes the first commitlog file; without a series if there is only one file.",
        "rmqlog retention",
    ),
    Family(
        "rmqlog_next_deletion_bytes", NODE, "Bytes of the commitlog files of the next deletion.",
        "rmqlog retention",
    ),
    Family(
        "rmqlog_scrape_success", ("store",), "1 if the store was read, 0 if it was not: stderr says why.",
        "this look",
    ),
    Family(
        "rmqlog_scrape_duration_seconds", ("store",), "How long the look at the store took.", "this look",
    ),
    Family(
        "rmqlog_verify_success", ("store",), "As rmqlog_scrape_success, with --verify.", "this look",
    ),
    Family(
        "rmqlog_verify_duration_seconds", ("store",), "As rmqlog_scrape_duration_seconds, with --verify.",
        "this look",
    ),
)  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}
