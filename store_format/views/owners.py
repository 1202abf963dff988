"""The view `owners`: who reads which queue of a consumer group, from the directories of groups in the store.

Streaming queries of Spark and consumers in Python record it there (`rmq_spark.consume.group.directory`).
Members that meet elsewhere (groupPath, offsetStore=local) are not shown, and neither are those of a broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.errors import CorruptStoreError
from store_format.files.read import files_at
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.views.view import View

OWNERS_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("strategy", TEXT, "The allocation strategy of its members."),
    ViewColumn("client", TEXT, "The client id of the member that has the queue."),
    ViewColumn("kind", TEXT, "What the member is: `query`, `push` or `pull`."),
    ViewColumn("host", TEXT, "The member's host."),
    ViewColumn("processId", LONG, "The member's process on that host."),
    ViewColumn("topic", TEXT, "The topic of the queue; null for a member without a queue."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("since", TIME, "When the member got the queue; null if the ownership log no longer says it."),
    ViewColumn("epoch", LONG, "How often the queue got an owner."),
    ViewColumn("position", LONG, "The next offset to read, as the members have recorded it."),
    ViewColumn("lagMessages", LONG, "The messages of the queue from there on."),
)

_Row = tuple[object, ...]


def owners(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each queue that a member has, and one for each member without a queue."""
    return batches_of(OWNERS_COLUMNS, _rows(store))


def _rows(store: Store) -> Iterator[_Row]:
    directory = store.opened.own("groups")
    for group in sorted(store.opened.files.names(directory, missing_ok=True)):
        path = f"{directory}/{group}/group.json"
        data = files_at(path).read(path)
        if data is not None:
            try:
                rows = list(_rows_of(store, group, json.loads(data)))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
                raise CorruptStoreError(
                    path, 0, "the state of a consumer group (JSON)", f"other content ({str(error)[:100]})"
                ) from error
            yield from rows


def _rows_of(store: Store, group: str, state: dict[str, Any]) -> Iterator[_Row]:  # Any: JSON
    since = _gained(store.opened, group, state["logSize"])
    members = {
        name: (str(each["host"]).partition("/")[0], int(each["processId"]), str(each.get("kind", "query")))
        for name, each in state["members"].items()
    }
    clients = {name: ", ".join(map(str, each["clients"])) for name, each in state["members"].items()}
    topics = {str(row[0]) for row in state["queues"]}
    ends = {queue.key: queue.max_offset for queue in store.queues(topics.__contains__)} if topics else {}
    idle = dict(members)
    for topic, broker, queue_id, owner, client, epoch, position, _ in state["queues"]:
        if owner not in members or broker != store.broker_name:
            continue
        idle.pop(owner, None)
        host, process, kind = members[owner]
        lag = None if position is None else max(ends.get((topic, queue_id), position) - position, 0)
        at = since.get((topic, broker, queue_id, epoch))
        yield (
            store.broker_name, group, str(state["strategy"]), str(client), kind, host, process,
            str(topic), int(queue_id), None if at is None else time_us(at), int(epoch), position, lag,
        )  # fmt: skip
    for name, (host, process, kind) in idle.items():
        yield (
            store.broker_name, group, str(state["strategy"]), clients[name], kind, host, process,
            *(None,) * 6,
        )  # fmt: skip


def _gained(opened: Opened, group: str, size: int) -> dict[tuple[str, str, int, int], int]:
    """(topic, broker, queue id, epoch) -> when the queue got its owner, from the ownership log."""
    path = f"{opened.own('groups')}/{group}/ownership.log"
    data = (files_at(path).read(path) or b"")[:size]
    events = (json.loads(line) for line in data.split(b"\n")[:-1])
    return {
        (each["topic"], each["broker"], each["queue"], each["epoch"]): each["at"]
        for each in events
        if each["event"] == "gain"
    }


VIEW = View(
    "owners",
    "Who reads which queue of a consumer group: streaming queries and consumers in Python.",
    OWNERS_COLUMNS,
    owners,
)
