"""Creates, changes and deletes topics and consumer groups of a store whose broker is stopped.

The files are those that the store's broker, 4.9 or 5.x, leaves after mqadmin's updateTopic, deleteTopic,
updateSubGroup and deleteSubGroup (AdminBrokerProcessor). Other settings stay as they are stored; mqadmin
replaces those that are not given by its defaults.

Each function returns a change: look at its `table()`, then `apply()` it. Every step can be repeated: after a
crash, the same change completes what is missing. A deletion ends with the offsets, because they name the
retry topics of pop that go with a topic.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from store_format.bookkeeping.journal import State, Writing
from store_format.bookkeeping.ledger import GivenUp
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.commit.unsupported import StoreRefusals
from store_format.commitlog.log import open_log
from store_format.consumequeue.files import FOLDERS, is_queue_id
from store_format.consumequeue.units import FiledQueue, list_queues
from store_format.display.columns import TEXT, ViewColumn, batch_of
from store_format.display.text import shown
from store_format.errors import OptionError, StoreError, StoreNotFoundError, UnsupportedFormatError
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import (
    group_members,
    is_broker_49,
    put_subscription_group,
    read_broker_offsets,
    rewrite_config,
)
from store_format.metadata.read import (
    config_path,
    read_queue_mappings,
    read_subscription_groups,
    read_topics,
)
from store_format.metadata.removals import (
    without_group,
    without_offsets,
    without_timing,
    without_topics,
)
from store_format.metadata.values import SubscriptionGroup, TopicConfig, put_topics
from store_format.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    dead_letter_topic,
    did_you_mean,
    is_light_queue,
    is_system_group,
    pop_retry_topic,
    retry_topic,
)
from store_format.opened.store import Opened
from store_format.survey.fates import StoredTopics

CHANGE_COLUMNS = (
    ViewColumn("file", TEXT, "The file or directory of the store that changes."),
    ViewColumn(
        "name", TEXT, "The topic or group, a queue (`topic-queueId`), or whose offsets (`topic@group`)."
    ),
    ViewColumn("field", TEXT, "What changes of it."),
    ViewColumn("before", TEXT, "The value now; null if there is none."),
    ViewColumn("after", TEXT, "The new value; null if it is removed."),
)
# updateTopic gives message.type one of these; MIXED needs enableMixedMessageType, LITE is another kind
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z", re.ASCII)  # TopicValidator
_TOPIC_LENGTH_MAX, _GROUP_LENGTH_MAX, _RETRY_LENGTH_MAX = 127, 120, 255
_NEW_QUEUES = 8  # UpdateTopicSubCommand
# UpdateSubGroupSubCommand; a broker that adds a group itself has true for both
_NEW_GROUP: Mapping[str, object] = {"consumeBroadcastEnable": False, "consumeFromMinEnable": False}
_SINCE_5 = ("consumeMessageOrderly",)
_EXT = "consumequeue_ext"
_FOLDERS = (*FOLDERS.values(), _EXT)  # a topic has a directory in each
_TOPICS, _GROUPS, _METRICS = "topics.json", "subscriptionGroup.json", "timermetrics"

Row = tuple[str, str, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of a topic or a group that is not applied yet."""

    opened: Opened
    name: str
    options: CommitOptions

    def rows(self) -> Iterator[Row]:
        raise NotImplementedError

    def write(self, files: FileWrites, timestamp: int) -> None:
        """Writes the change. The caller holds the store's lock. `timestamp` is the clock in ms."""
        raise NotImplementedError

    def stored(self) -> dict[str, str]:
        """The values that the store has of it, by the names in its file."""
        raise NotImplementedError

    def table(self) -> pa.Table:
        """One row for each value that changes, with `CHANGE_COLUMNS`."""
        return pa.Table.from_batches([batch_of(CHANGE_COLUMNS, self.rows())])

    def remarks(self) -> list[str]:
        """What the change does not touch, or what consumers will miss; sentences without a full stop."""
        if State.of(self.opened, None).writing is not Writing.REPAIR:
            return []
        return [f"warning: {self.opened} was not shut down: --apply recovers it first, as every write does"]

    def apply(self, *, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> pa.Table:
        """Writes the change, if it changes anything, and returns its table.

        Raises StoreInUseError, with nothing changed, if a broker runs on the store, and
        UnsupportedFormatError for a store that is not written to.
        """
        with write_session(self.opened.path, self.options) as session:
            table = self.table()
            if len(table):
                session.files.make_directories(self.opened.path, "config")
                self.write(session.files, clock_ms())
        return table


# ---- topics ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicChange(ConfigChange):
    """Creates a topic, or changes the `values` of one, by the names of `TopicConfig`."""

    values: Mapping[str, Any]
    create: bool

    def _before_and_after(self) -> tuple[TopicConfig | None, TopicConfig]:
        topics = read_topics(self.opened, is_needed=True)
        if topics is None and StoredTopics(self.opened).lost():
            raise StoreNotFoundError(
                f"{config_path(self.opened, _TOPICS)}: expected the topics of the store, found no file. "
                "Write it again first: rmqlog recover STORE"
            )
        before = None if topics is None else topics.get(self.name)
        if before is not None and self.create:
            raise OptionError(f"{self.opened}: topic {self.name} exists; leave out create to change it")
        if before is None and not self.create:
            raise _no_such(self.opened, "topic", self.name, topics or ())
        values = dict(self.values)
        if (kind := values.pop("message_type", None)) is not None:
            if is_broker_49(self.opened):
                raise OptionError(f"{self.opened}: a 4.9 broker has no message types; they begin with 5.0")
            values["attributes"] = {**(before.attributes if before else {}), "message.type": kind}
        return before, replace(before or TopicConfig(self.name, _NEW_QUEUES, _NEW_QUEUES), **values)

    def rows(self) -> Iterator[Row]:
        before, after = self._before_and_after()
        new, old = _topic_fields(after), {} if before is None else _topic_fields(before)
        for name, value in new.items():
            if old.get(name) != value:
                yield f"config/{_TOPICS}", self.name, name, old.get(name), value

    def remarks(self) -> list[str]:
        before, after = self._before_and_after()
        said = ConfigChange.remarks(self)
        if before is None or len(after.read_queue_ids) >= len(before.read_queue_ids):
            return said
        begin, stop = len(after.read_queue_ids), len(before.read_queue_ids)
        return [
            *said,
            f"consumers get no more messages of the queues {begin} to {stop - 1}; they stay in the store",
        ]

    def stored(self) -> dict[str, str]:
        before, _ = self._before_and_after()
        return {} if before is None else _topic_fields(before)

    def write(self, files: FileWrites, timestamp: int) -> None:
        _, after = self._before_and_after()
        # A topics.json that is older than our own commits lacks their topics: they get in, as in a commit.
        missing = StoredTopics(self.opened).missing(read_topics(self.opened) or ())
        others = [TopicConfig(name, number, number) for name, number in missing.items() if name != self.name]

        def merge(data: bytes | None, file: str) -> bytes | None:
            with_others = put_topics(data, others, timestamp, file) or data
            return put_topics(with_others, [after], timestamp, file, is_change=True)

        rewrite_config(config_path(self.opened, _TOPICS), merge, files)


def change_topic(
    root: str,
    topic: str,
    *,
    create: bool = False,
    read_queues: int | None = None,
    write_queues: int | None = None,
    perm: int | None = None,
    message_type: str | None = None,
    options: CommitOptions | None = None,
) -> TopicChange:
    """Creates the topic, or changes what is given of it; a new one has 8 queues and perm 6 (updateTopic).

    `perm` is 2 (write), 4 (read) or 6; `message_type` one of `MESSAGE_TYPES`. Raises OptionError for a name
    that a broker refuses, for a system topic, and for a topic that exists (`create`) or does not.
    """
    _check_topic(topic)
    StoreRefusals(Opened(root)).refuse_store()
    given = {
        "read_queue_nums": read_queues,
        "write_queue_nums": write_queues,
        "perm": perm,
        "message_type": message_type,
    }
    values = {name: value for name, value in given.items() if value is not None}
    return TopicChange(Opened(root), topic, options or CommitOptions(), values, create)


@dataclass(frozen=True, slots=True)
class TopicDeletion(ConfigChange):
    """Deletes a topic: its configuration and its consume queues.

    A 5.x broker also deletes the retry topics of pop for it, the offsets of all these topics, and their
    counts of timer messages (AdminBrokerProcessor.deleteTopicInBroker). A 4.9 broker keeps the offsets, and
    leaves the topic's empty directory. Messages stay in the commitlog until retention deletes them.
    """

    def _known(self) -> Mapping[str, TopicConfig]:
        topics = read_topics(self.opened, is_needed=True)
        return {} if topics is None else topics

    def _topics(self) -> list[str]:
        """The topic, and with 5.x its retry topics of pop (clearRetryTopicWhenDeleteTopic)."""
        if is_broker_49(self.opened):
            return [self.name]
        known = self._known()
        keys = self._offset_keys()
        found = [
            name
            for topic, group in keys
            if topic == self.name
            for is_v2 in (True, False)
            if (name := pop_retry_topic(group, topic, is_v2=is_v2)) in known
            or (name, group) in keys
            or self._has_directory(name)
        ]
        return [self.name, *dict.fromkeys(found)]

    def _has_directory(self, topic: str) -> bool:
        return any(
            self.opened.files.is_directory(f"{self.opened.path}/{folder}/{topic}") for folder in _FOLDERS
        )

    def _offset_keys(self) -> list[tuple[str, str]]:
        _, offsets = read_broker_offsets(self.opened, is_needed=True)
        if offsets is None:
            return []
        tables = (*offsets.by_topic_and_group(), *offsets.pulled_by_topic_and_group())
        return list(dict.fromkeys((topic, group) for topic, group, _ in tables))

    def _queues(self, topics: list[str]) -> list[FiledQueue]:
        return list(list_queues(self.opened, set(topics).__contains__))

    def rows(self) -> Iterator[Row]:
        topics, known = self._topics(), self._known()
        log_min = open_log(self.options.log_directories or (f"{self.opened.path}/commitlog",)).min_offset
        found = False
        for topic in topics:
            if topic in known:
                found = True
                each = known[topic]
                numbers = f"{each.read_queue_nums} read and {each.write_queue_nums} write queues"
                yield f"config/{_TOPICS}", topic, "queues", numbers, None
        for queue in self._queues(topics):
            found = True
            messages = _messages(queue, log_min)
            place = f"{FOLDERS[queue.kind]}/{queue.topic}/{queue.queue_id}"
            yield place, f"{queue.topic}-{queue.queue_id}", "messages", messages, None
        if is_broker_49(self.opened):
            if not found:
                raise _no_such(self.opened, "topic", self.name, known)
            return
        for topic in topics:
            if not self._queues([topic]) and self._has_directory(topic):
                yield f"{FOLDERS['simple']}/{topic}", topic, None, "an empty directory", None
                found = True
        name, offsets = read_broker_offsets(self.opened, is_needed=True)
        tables = offsets.by_topic_and_group() if offsets is not None else ()
        for topic, group, offsets_of in tables:
            if topic in topics:
                found = True
                values = ", ".join(f"{queue}: {offset}" for queue, offset in sorted(offsets_of.items()))
                yield f"config/{name}", f"{topic}@{group}", "offsets", values, None
        if not found:
            raise _no_such(self.opened, "topic", self.name, known)

    def remarks(self) -> list[str]:
        is_old = is_broker_49(self.opened)
        groups = sorted({group for topic, group in self._offset_keys() if topic == self.name})
        said = ConfigChange.remarks(self)
        said += ["the messages stay in the commitlog until retention deletes them, and no consumer gets them"]
        if is_old and groups:
            count = _counted(len(groups), "group")
            said.append(f"the offsets of {count} stay, as with a 4.9 broker: a new topic begins at offset 0")
        return said

    def write(self, files: FileWrites, timestamp: int) -> None:
        topics, is_old = self._topics(), is_broker_49(self.opened)

        def rewrite(name: str, merge: Callable[[bytes | None, str], bytes | None]) -> None:
            rewrite_config(config_path(self.opened, name), merge, files)

        GivenUp.read(self.opened)  # raises before the first write
        rewrite(_TOPICS, lambda data, file: without_topics(data, topics, timestamp, file))
        last: dict[str, int] = {}
        for queue in self._queues(topics):
            with suppress(StoreError):  # of damaged files; the others of the topic show an end
                if (bounds := queue.bounds(0)) is not None:
                    last[queue.topic] = max(last.get(queue.topic, -1), bounds.last_physical_offset)
        GivenUp.forget_topics(self.opened, topics, files, tuple(last.items()))
        for queue in self._queues(topics):
            _remove_files(queue.directory, files)
        for _, path in self.opened.files.directories(f"{self.opened.path}/{_EXT}", set(topics).__contains__):
            for _, directory in files_at(path).directories(path, is_queue_id):
                _remove_files(directory, files)
        if is_old:
            return
        for folder in _FOLDERS:
            for topic in topics:
                files.remove_directory(f"{self.opened.path}/{folder}/{topic}")
        rewrite(_METRICS, lambda data, file: without_timing(data, topics, file))
        offsets, _ = read_broker_offsets(self.opened, is_needed=True)
        rewrite(offsets, lambda data, file: without_offsets(data, lambda topic, _: topic in topics, file))


def delete_topic(root: str, topic: str, *, options: CommitOptions | None = None) -> TopicDeletion:
    """Deletes the topic. Raises OptionError for a system topic, and for one of which the store has nothing.

    Raises UnsupportedFormatError for a light queue and for a static topic.
    """
    _check_topic(topic, is_new=False)
    opened = Opened(root)
    StoreRefusals(opened).refuse_store()
    if topic in (read_queue_mappings(opened) or ()):
        raise UnsupportedFormatError(
            f"{opened}: topic {topic} is static: delete it with its broker (mqadmin)"
        )
    return TopicDeletion(opened, topic, options or CommitOptions())


def _messages(queue: FiledQueue, log_min: int) -> str:
    try:
        bounds = queue.bounds(log_min)
    except StoreError:
        return "unknown: damaged files"
    if bounds is None or bounds.min_offset == bounds.max_offset:
        return "0"
    first, stop = bounds.min_offset, bounds.max_offset
    return f"{stop - first:,}: offsets {first} to {stop - 1}"


def _remove_files(directory: str, files: FileWrites) -> None:
    """Removes the files of a queue, then its directory (ConsumeQueue.destroy)."""
    for entry in files_at(directory).entries(directory):
        if entry.kind == "file":
            files.remove(entry.path)
    files.remove_directory(directory)


# ---- groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupChange(ConfigChange):
    """Creates a group, or changes the `values` of one, by the names in subscriptionGroup.json."""

    values: Mapping[str, Any]
    create: bool

    def _before_and_after(self) -> tuple[dict[str, Any], dict[str, Any]]:
        groups, is_old = read_subscription_groups(self.opened), is_broker_49(self.opened)
        known = groups is not None and self.name in groups
        if known and self.create:
            raise OptionError(f"{self.opened}: group {self.name} exists; leave out create to change it")
        if not known and not self.create:
            raise _no_such(self.opened, "group", self.name, groups or ())
        if is_old and (newer := sorted(self.values.keys() & {*_SINCE_5})):
            raise OptionError(f"{self.opened}: a 4.9 broker has no {newer[0]}; it begins with 5.0")
        before = group_members(groups[self.name], is_old=is_old) if groups is not None and known else {}
        new = group_members(SubscriptionGroup(self.name), is_old=is_old)
        return before, (before or new) | self._changed()

    def _changed(self) -> dict[str, Any]:
        return {**_NEW_GROUP, **self.values} if self.create else dict(self.values)

    def rows(self) -> Iterator[Row]:
        before, after = self._before_and_after()
        for name, value in after.items():
            if before.get(name) != value and _is_shown(name, value):
                yield f"config/{_GROUPS}", self.name, name, _text(before.get(name)), _text(value)

    def stored(self) -> dict[str, str]:
        before, _ = self._before_and_after()
        return {name: str(_text(value)) for name, value in before.items() if _is_shown(name, value)}

    def write(self, files: FileWrites, timestamp: int) -> None:
        put_subscription_group(self.opened, self.name, self._changed(), timestamp=timestamp, files=files)


def change_group(
    root: str,
    group: str,
    *,
    create: bool = False,
    retry_max_times: int | None = None,
    order: bool | None = None,
    consume: bool | None = None,
    broadcast: bool | None = None,
    options: CommitOptions | None = None,
) -> GroupChange:
    """Creates the group, or changes what is given of it: retryMaxTimes, consumeMessageOrderly (`order`),
    consumeEnable (`consume`), consumeBroadcastEnable (`broadcast`).

    A new group has the defaults of updateSubGroup: retryMaxTimes 16, no order, no broadcasting. Raises
    OptionError for a name that a broker refuses, for a system group, and for a group that exists (`create`)
    or does not.
    """
    _check_group(group, is_new=create)
    StoreRefusals(Opened(root)).refuse_store()
    given = {
        "retryMaxTimes": retry_max_times,
        "consumeMessageOrderly": order,
        "consumeEnable": consume,
        "consumeBroadcastEnable": broadcast,
    }
    values = {name: value for name, value in given.items() if value is not None}
    return GroupChange(Opened(root), group, options or CommitOptions(), values, create)


@dataclass(frozen=True, slots=True)
class GroupDeletion(ConfigChange):
    """Deletes a group's configuration, and with `remove_offset` its offsets.

    As deleteSubGroup of one broker does: `%RETRY%` and `%DLQ%` topics stay.
    """

    remove_offset: bool

    def rows(self) -> Iterator[Row]:
        groups = read_subscription_groups(self.opened)
        found = False
        if groups is not None and self.name in groups:
            found = True
            stored = group_members(groups[self.name], is_old=is_broker_49(self.opened))
            for field_name, value in stored.items():
                if field_name in ("retryMaxTimes", "consumeMessageOrderly", "consumeEnable"):
                    yield f"config/{_GROUPS}", self.name, field_name, _text(value), None
        name, offsets = read_broker_offsets(self.opened, is_needed=True)
        for topic, group, values in offsets.by_topic_and_group() if offsets and self.remove_offset else ():
            if group == self.name:
                found = True
                text = ", ".join(f"{queue}: {offset}" for queue, offset in sorted(values.items()))
                yield f"config/{name}", f"{topic}@{group}", "offsets", text, None
        if not found:
            raise _no_such(self.opened, "group", self.name, groups or ())

    def remarks(self) -> list[str]:
        known = read_topics(self.opened)
        topics = [
            name for name in (retry_topic(self.name), dead_letter_topic(self.name)) if name in (known or ())
        ]
        said = ConfigChange.remarks(self)
        if not self.remove_offset:
            said.append("the group's offsets stay; --remove-offset removes them too")
        for name in topics:
            command = f"rmqlog topic STORE {shlex.quote(name)} --delete"
            said.append(f"the topic {name} stays, as with mqadmin deleteSubGroup -b: {command}")
        return said

    def write(self, files: FileWrites, timestamp: int) -> None:
        rewrite_config(
            config_path(self.opened, _GROUPS),
            lambda data, file: without_group(data, self.name, timestamp, file),
            files,
        )
        if self.remove_offset:
            name, _ = read_broker_offsets(self.opened, is_needed=True)
            rewrite_config(
                config_path(self.opened, name),
                lambda data, file: without_offsets(data, lambda _, group: group == self.name, file),
                files,
            )


def delete_group(
    root: str, group: str, *, remove_offset: bool = False, options: CommitOptions | None = None
) -> GroupDeletion:
    """Deletes the group. Raises OptionError for a system group, and for one that the store does not have."""
    _check_group(group, is_new=False)
    StoreRefusals(Opened(root)).refuse_store()
    return GroupDeletion(Opened(root), group, options or CommitOptions(), remove_offset)


# ---- names and values --------------------------------------------------------------------------------------


def _check_topic(topic: str, *, is_new: bool = True) -> None:
    """Raises OptionError for what TopicValidator refuses, UnsupportedFormatError for a light queue."""
    of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    _check_name("topic", topic, _TOPIC_LENGTH_MAX if is_new and not of_group else _RETRY_LENGTH_MAX)
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX):
        raise OptionError(f"topic {topic} is a system topic: its broker creates and changes it")
    if is_light_queue(topic):
        raise UnsupportedFormatError(f"topic {topic} is a light queue (enableLmq), which its broker manages")


def _check_group(group: str, *, is_new: bool) -> None:
    _check_name("group", group, _GROUP_LENGTH_MAX if is_new else _RETRY_LENGTH_MAX)
    if is_system_group(group):
        raise OptionError(f"group {group} is a system group: its broker creates and changes it")


def _check_name(kind: str, name: str, length_max: int) -> None:
    if _NAME.match(name) is None or len(name) > length_max:
        raise OptionError(
            f"{kind} {shown(name[:100])!r}: expected 1 to {length_max} of the characters A-Z a-z 0-9 _ - % | "
            "(TopicValidator)"
        )


def _no_such(opened: Opened, kind: str, name: str, known: Any) -> StoreNotFoundError:
    advice = did_you_mean(name, sorted(known), f"{kind}s")
    return StoreNotFoundError(f"{opened}: the store has no {kind} {name}; {advice}")


def _topic_fields(topic: TopicConfig) -> dict[str, str]:
    """The fields of a topic as topics.json names them, and the attributes by their names."""
    fields_of = {
        "readQueueNums": topic.read_queue_nums,
        "writeQueueNums": topic.write_queue_nums,
        "perm": topic.perm,
        "order": topic.order,
    }
    return {name: str(_text(value)) for name, value in {**fields_of, **topic.attributes}.items()}


def _is_shown(name: str, value: object) -> bool:
    return name != "groupName" and not isinstance(value, Mapping)


def _text(value: object) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
