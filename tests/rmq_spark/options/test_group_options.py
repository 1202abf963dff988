"""A group's options: what each row reads, what contradicts, and what they are made into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from rmq_spark.consume.consumer import ConsumeFromWhere, MessageQueue
from rmq_spark.consume.offset_store import LocalOffsets, NoOffsets, StoreOffsets
from rmq_spark.options.group_options import GROUP_OPTIONS, GroupOptions
from rmq_spark.options.option import Given
from rmq_spark.options.read_options import OPTIONS

NOW = 1_700_000_000_000


def _parse(options: Mapping[str, str], **others: str) -> GroupOptions | None:
    given = {name: Given(name, text, NOW) for name, text in options.items()}
    assert given.keys() <= {row.name for row in GROUP_OPTIONS}
    return GroupOptions.from_read(
        {row.name: row.read(given, NOW) for row in GROUP_OPTIONS}, [*given, *others], NOW
    )


def _group(**options: str) -> GroupOptions:
    found = _parse({"group": "g", **options})
    assert found is not None
    return found


def test_defaults_are_rocketmqs() -> None:
    assert _parse({}) is None
    assert _group() == GroupOptions("g", consume_timestamp_ms=NOW - 30 * 60_000)
    assert _group().where is ConsumeFromWhere.LAST
    assert (_group().lease_seconds, _group().persist_seconds) == (30.0, 5.0)


def test_every_row_has_a_field_and_no_other_row_its_name() -> None:
    made = _group(
        consumers="2",
        clientId="c",
        allocateMessageQueueStrategy="CONFIG",
        allocateConfig='[{"T":[0]},{"T":[1]}]',
        consumerIdcs="a,b",
        machineRoomNearbyInner="AVG_BY_CIRCLE",
        virtualNodeCount="3",
        machineRoomResolver="a.b:c",
        hashFunction="a.b:d",
        messageModel="CLUSTERING",
        consumeFromWhere="consume_from_timestamp",
        consumeTimestamp="20230101080000",
        consumeYoungQueueFromZero="true",
        offsetStore="local",
        offsetStorePath="/o",
        groupPath="/p",
        leaseTime="10s",
        persistConsumerOffsetInterval="0s",
    )
    plain = GroupOptions("other")
    same = [
        each.name for each in fields(GroupOptions) if getattr(made, each.name) == getattr(plain, each.name)
    ]
    assert same == ["message_model"]  # the other word of it does not go with `consumers`
    assert (made.lease_seconds, made.persist_seconds) == (10.0, 0.0)
    assert len(GROUP_OPTIONS) == len(fields(GroupOptions)) + 2  # consumeMode, invisibleDuration
    assert len({row.name.lower() for row in OPTIONS}) == len(OPTIONS)
    assert all(row.about.endswith(".") for row in GROUP_OPTIONS)


def test_clients_and_their_strategy() -> None:
    options = _group(
        consumers="2",
        clientId="c",
        allocateMessageQueueStrategy="CONFIG",
        allocateConfig='[{"T":[0]},{"T":{"b":[1]},"U":[5]}]',
    )
    membership = options.make_membership("T *", ["a", "b"])
    assert membership.clients == ("c@0", "c@1")
    assert (membership.lease_seconds, membership.persist_seconds) == (30.0, 5.0)
    queues = [MessageQueue("T", broker, queue_id) for broker in "ab" for queue_id in range(2)]
    assert membership.allocate(membership.clients, queues) == {
        queues[0]: "c@0",
        queues[2]: "c@0",
        queues[3]: "c@1",
    }
    nearby = _group(allocateMessageQueueStrategy="MACHINE_ROOM_NEARBY-CONSISTENT_HASH").make_strategy(
        ["c"], []
    )
    assert nearby.name == "MACHINE_ROOM_NEARBY-CONSISTENT_HASH"
    first, second = _group().make_client_ids(), _group().make_client_ids()
    assert first != second


def test_offset_stores() -> None:
    roots = {"b": "/nowhere"}
    assert isinstance(_group().make_offset_store(roots), StoreOffsets)
    assert isinstance(_group(offsetStore="none").make_offset_store(roots), NoOffsets)
    local = _group(messageModel="BROADCASTING", offsetStorePath="/o", clientId="c").make_offset_store(roots)
    assert isinstance(local, LocalOffsets)
    assert local.path == "/o/c/g/offsets.json"
