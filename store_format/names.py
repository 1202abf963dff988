"""Every name that RocketMQ reserves, once: topics, prefixes, groups, message properties; delay levels; and
"did you mean".

TopicValidator has the system topics, MixAll the prefixes, MessageConst the properties, PermName the text of
`perm`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from store_format.display.text import first_names, shown

QueueKey = tuple[str, int]  # a queue of one store: its topic and its queue id

# ---- prefixes of topics (MixAll, TopicValidator) ----

RETRY_PREFIX = "%RETRY%"  # + group: messages that the group failed to consume, and will consume again
DLQ_PREFIX = "%DLQ%"  # + group: messages that failed too often: dead letters
LMQ_PREFIX = "%LMQ%"  # a light queue: its entries point to messages of other topics
SYSTEM_PREFIX = "rmq_sys_"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"  # + cluster: pop's check points and acks (PopAckConstants)
# + broker name: a topic that each broker adds to topics.json at start-up (TopicConfigManager)
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

# ---- topics (TopicValidator, TimerMessageStore) ----

DEFAULT_TOPIC = "TBW102"  # the template of topics that are created on demand
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # messages with a delay level wait here, one queue a level
TIMER_TOPIC = "rmq_sys_wheel_timer"  # messages with a time of delivery wait here
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # half messages of transactions
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # which half messages are committed or rolled back
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"  # 5.4 and later
ROCKSDB_OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
HALF_TOPICS = (HALF_TOPIC, ROCKSDB_HALF_TOPIC)
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages that were checked too often
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_PREFIXES = (TRACE_TOPIC, "rmq_sys_TRACE_DATA_")  # of the broker, and of regions
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"  # each broker adds this topic to topics.json at start-up
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = (
    "CHECKPOINT_TOPIC"  # in a database of queues: what the commitlog's messages are filed up to
)

# TopicValidator.SYSTEM_TOPIC_SET
SYSTEM_TOPICS = frozenset(
    (
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        OP_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_TOPIC,
        DISCARDED_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    )
)
# TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET: client and broker refuse a message to these topics
NOT_ALLOWED_SEND_TOPICS = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_TOPIC,
        DISCARDED_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)

# ---- groups (MixAll, TransactionalMessageUtil, PopAckConstants) ----

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
CHECKER_GROUP = "CID_RMQ_SYS_TRANS"  # the broker's reader of the half topic
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"  # the broker's reader of pop checkpoints
# MixAll: the groups that each broker adds to subscriptionGroup.json at start-up (SubscriptionGroupManager)
SYSTEM_GROUPS = frozenset(
    (
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    )
)

# ---- message properties (MessageConst) that several rooms read or write ----

KEYS = "KEYS"  # the user's keys, separated by spaces
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"  # the message id that the client assigns
WAIT = "WAIT"
DELAY = "DELAY"  # the delay level, from 1
REAL_TOPIC = "REAL_TOPIC"  # topic and queue id of delivery, while a message waits in a system topic
REAL_QID = "REAL_QID"
BORN_TIMESTAMP = "BORN_TIMESTAMP"  # of a recall: when the producer asked for it
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"  # the time that a producer asks for
TIMER_OUT_MS = "TIMER_OUT_MS"  # when the timer delivers the message
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"  # when the timer put it into the wheel
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"  # when the timer took it out
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"  # how often the timer stored it again before its time
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"  # of a message that recalls another: its UNIQ_KEY
RETRY_TOPIC = "RETRY_TOPIC"  # the original topic of a message in a retry topic
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"  # the id of the first message, in retries and dead letters
RECONSUME_TIME = "RECONSUME_TIME"  # of a failed message that a consumer sends as a new message
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
# in a dead letter that this project has stored again: the offset message id of the dead letter
RESENT_FROM = "__RESENT_FROM"
FIRST_POP_TIME = "1ST_POP_TIME"  # of a message in a pop retry topic: when it was popped first
ORIGIN_GROUP = "ORIGIN_GROUP"  # the group that popped it
SHARDING_KEY = "__SHARDINGKEY"  # the user's key by which a producer chooses the queue
PGROUP = "PGROUP"  # the producer group of a transaction
TRAN_MSG = "TRAN_MSG"  # "true" for a message of a transaction
TRANSACTION_ID = "__transactionId__"  # the UNIQ_KEY of a half message
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"  # how often the broker has asked for a decision
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"  # the queue offset of the first copy of a half message
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"  # how long the broker waits before it asks
INNER_NUM = "INNER_NUM"  # the number of messages of an inner batch
INNER_BASE = "INNER_BASE"  # the queue offset of its first message
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"  # further queues of the message, separated by commas
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"  # the queue offsets in these queues

BORN_HOST = "__BORNHOST"  # the producer's address, set by a proxy

# the delays in ms of DELAY; level 1 is the first (the default of MessageStoreConfig.messageDelayLevel)
DELAY_LEVELS_MS = (
    *(seconds * 1000 for seconds in (1, 5, 10, 30)),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * 3_600_000 for hours in (1, 2)),
)

# MessageConst: the properties that a client sets on an ordinary message, not its user
CLIENT_PROPERTIES = frozenset(
    (
        KEYS,
        TAGS,
        UNIQ_KEY,
        WAIT,
        SHARDING_KEY,
        "TRACE_ON",
        "MSG_REGION",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "INSTANCE_ID",
        "CLUSTER",
        # request and reply
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "MSG_TYPE",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
    )
)

# MessageConst, without the properties that a client sets on an ordinary message (spec 2.5). Exact names:
# ORIGIN_COUNTRY is a user's property.
RESERVED_PROPERTIES = frozenset(
    (
        # retry and dead letters
        RETRY_TOPIC,
        ORIGIN_MESSAGE_ID,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        "CONSUME_START_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        # delay and timer
        DELAY,
        REAL_TOPIC,
        REAL_QID,
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        "TIMER_ROLL_LABEL",
        TIMER_DEL_UNIQKEY,
        # transactions
        TRAN_MSG,
        PGROUP,
        TRANSACTION_ID,
        PREPARED_QUEUE_OFFSET,
        CHECK_TIMES,
        CHECK_IMMUNITY_TIME,
        "TRANS_OFFSET",
        # pop
        "POP_CK",
        "POP_CK_OFFSET",
        FIRST_POP_TIME,
        ORIGIN_GROUP,
        # a broker puts messages with these properties into other queues than the producer names
        "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
        # set by the store and the proxy
        INNER_NUM,
        INNER_BASE,
        INNER_MULTI_DISPATCH,
        INNER_MULTI_QUEUE_OFFSET,
        "DUP_INFO",
        "__CRC32#",
        "EXTEND_UNIQ_INFO",
        BORN_HOST,
        BORN_TIMESTAMP,
        "TRACE_CONTEXT",
        "MIN_OFFSET",
        "MAX_OFFSET",
    )
)

_NEAREST_RATIO_MIN = 0.6
_LISTED_MAX = 20


def retry_topic(group: str) -> str:
    """The topic in which a group's failed messages wait to be consumed again (MixAll.getRetryTopic)."""
    return RETRY_PREFIX + group


def pop_retry_topic(group: str, topic: str, *, is_v2: bool = False) -> str:
    """The topic in which a group's messages of `topic` wait that nobody acknowledged in time (pop).

    Brokers with enableRetryTopicV2 join the names with `+` (KeyBuilder.buildPopRetryTopicV2).

    >>> pop_retry_topic("billing", "Orders")
    '%RETRY%billing_Orders'
    """
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def normal_topic(topic: str, group: str) -> tuple[str, int]:
    """(the topic, 0), or for the group's pop retry topics the topic that is retried, and version 1 or 2.

    KeyBuilder.parseNormalTopic; the number is the retry flag of a receipt handle.

    >>> normal_topic("%RETRY%billing_Orders", "billing")
    ('Orders', 1)
    """
    for version in (2, 1):
        prefix = pop_retry_topic(group, "", is_v2=version == 2)
        if topic.startswith(prefix) and len(topic) > len(prefix):
            return topic[len(prefix) :], version
    return topic, 0


def dead_letter_topic(group: str) -> str:
    """The topic of a group's dead letters (MixAll.getDLQTopic)."""
    return DLQ_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Whether the topic is a group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


class RetryOwner(NamedTuple):
    """Whose messages wait in a retry topic: a group's, and with pop those of one topic.

    `topic` is None for the retry topic of a group (`%RETRY%group`).
    """

    group: str
    topic: str | None = None


def retry_owner(
    name: str,
    groups: Collection[str],
    topics: Collection[str],
    properties: Mapping[str, str | None] | None = None,
) -> RetryOwner:
    """The group, and with pop the topic, of the retry topic `name`, by the groups and topics that exist.

    A name does not always decide: group `a` and topic `b_c`, group `a_b` and topic `c`, and the group `a_b_c`
    itself share `%RETRY%a_b_c`. The first rule that fits counts:

    1. ORIGIN_GROUP in the `properties` of a message, if the name begins with that group;
    2. `+` in the name separates group and topic;
    3. a message with 1ST_POP_TIME and without RETRY_TOPIC was popped, other messages belong to the group
       with the whole name if that group exists;
    4. the longest group and the rest, if both exist;
    5. the group with the whole name.

    >>> retry_owner("%RETRY%billing_Orders", ["billing"], ["Orders"])
    RetryOwner(group='billing', topic='Orders')
    >>> retry_owner("%RETRY%billing_eu", ["billing_eu", "billing"], ["eu"])
    RetryOwner(group='billing_eu', topic=None)
    """
    whole = name.removeprefix(RETRY_PREFIX)
    known = properties or {}
    sent_back = known.get(RETRY_TOPIC) is not None
    origin = known.get(ORIGIN_GROUP)
    if origin is not None and not (sent_back and whole in groups):
        topic, version = normal_topic(name, origin)
        if version:
            return RetryOwner(origin, topic)
    group, plus, topic = whole.partition("+")  # of version 2: no name of a group or topic has a +
    if group and plus and topic:
        return RetryOwner(group, topic)
    if whole in groups and (sent_back or known.get(FIRST_POP_TIME) is None):
        return RetryOwner(whole)
    for at in range(len(whole) - 1, 0, -1):
        if whole[at] == "_" and whole[:at] in groups and whole[at + 1 :] in topics:
            return RetryOwner(whole[:at], whole[at + 1 :])
    return RetryOwner(whole)


def is_light_queue(topic: str) -> bool:
    """Whether the name is a light queue's (MixAll.isLmq): its messages are stored under other topics."""
    return topic.startswith(LMQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Whether the topic is RocketMQ's own: TopicValidator.isSystemTopic, or a name that begins with `%`.

    >>> is_system_topic("%RETRY%orders"), is_system_topic("orders")
    (True, False)
    """
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, "%"))


def is_system_group(group: str) -> bool:
    """Whether the group is RocketMQ's own: every broker has it, and no application consumes with it.

    >>> is_system_group("CID_RMQ_SYS_TRANS"), is_system_group("TOOLS_CONSUMER"), is_system_group("CG_orders")
    (True, True, False)
    """
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def perm_text(perm: int) -> str:
    """A topic's `perm` as mqadmin shows it (PermName.perm2String).

    >>> perm_text(6)
    'RW-'
    """
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a misspelt name most likely means, in any case; None when none is near."""
    import difflib  # imported here: only errors need it, and `rmqlog` starts faster without it

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), by_lower, 1, _NEAREST_RATIO_MIN)
    return by_lower[close[0]] if close else None


def advice_of(meant: str) -> str:
    """The advice at the end of an error about a name, when the right one is known: for a terminal already."""
    return f"did you mean {meant}?"


def did_you_mean(
    name: str, candidates: Iterable[str], kind: str = "", *, listed_max: int = _LISTED_MAX
) -> str:
    """The advice at the end of an error about an unknown name: the nearest candidate.

    Without a near candidate the advice lists the first candidates, in the order given, after their `kind` in
    the plural. It is empty when no kind is given.

    >>> did_you_mean("Oders", ["Orders", "Audit"], "topics")
    'did you mean Orders?'
    >>> did_you_mean("x", ["Orders", "Audit"], "topics")
    'the topics are Orders, Audit'
    """
    known = list(candidates)
    meant = nearest(name, known)
    if meant is not None:
        return advice_of(shown(meant))
    if not kind:
        return ""
    return f"there are no {kind}" if not known else f"the {kind} are {first_names(known, listed_max)}"
