"""The service `revive`: messages that a pop group did not acknowledge in time are stored again (spec 11.6).

Consumers that pop do so themselves. The service does it for groups whose consumers were all killed, so that
the messages wait in the retry topic, as with a broker. What the last consumer handed over when it closed is
revived by the next consumer, or by a broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from rmq_spark.broker.pop.due import MESSAGES_MAX, DueCheckPoint, first_due
from rmq_spark.broker.pop.revive import revive_due
from rmq_spark.broker.services.service import Now, PartsFailedError
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.session import WriteSession
from store_format.display.columns import INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import StoreError
from store_format.pop.log import InFlightLog, InFlightReader, PopName, in_flight_logs
from store_format.pop.state import PopState
from store_format.read.store import Store

_COLUMNS = (
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic of the message; a message that came again is in the retry topic."),
    ViewColumn("queueId", INT, "The queue of the message."),
    ViewColumn("queueOffset", LONG, "Its offset."),
    ViewColumn("popTimestamp", TIME, "When a consumer got the message."),
    ViewColumn("dueTimestamp", TIME, "When its invisible time was over."),
)


class ReviveService:
    """Looks at all in-flight logs of a store; keeps its place in them between two turns."""

    name = "revive"

    def __init__(self) -> None:
        self._readers: dict[PopName, InFlightReader] = {}

    def plan(self, store: Store, ledger: Ledger, now: Now) -> RevivePlan:
        """A log that cannot be read is one of the plan's `errors`; the others have their turn."""
        names = [PopName(store.path, group, topic) for group, topic in in_flight_logs(store.path)]
        for gone in self._readers.keys() - set(names):
            self._readers.pop(gone).close()
        logs, errors = [], []
        for name in names:
            reader = self._readers.setdefault(name, InFlightReader(name.directory))
            try:
                state = reader.look()
            except StoreError as error:
                errors.append(error)
                continue
            if state is not None:
                due = first_due(state, now.ms)
                logs.append(_Log(name, due, _next_after(state, due), state.reviving is not None))
        logs.sort(key=lambda each: each.due[0].visible_at if each.due else now.ms)
        return RevivePlan(now, logs, errors)


def _next_after(state: PopState, due: list[DueCheckPoint]) -> int | None:
    """When the next check point is visible that is not revived as a whole by then."""
    if not due:
        return state.next_visible
    revived = {each.key: each.count for each in due}
    return min(
        (
            each.visible_at
            for each in state.check_points()
            if not each.again and revived.get(each.key) != each.left
        ),
        default=None,
    )


@dataclass(frozen=True, slots=True)
class _Log:
    """One in-flight log: what is due of it, and when more is. `is_broken`: a revive was broken off."""

    name: PopName
    due: list[DueCheckPoint]
    next_due: int | None
    is_broken: bool

    @property
    def messages(self) -> int:
        return sum(each.count for each in self.due)


@dataclass(frozen=True, slots=True)
class RevivePlan:
    """What is due in each log, the oldest first; a turn ends after `MESSAGES_MAX` messages."""

    now: Now
    logs: list[_Log]
    errors: list[StoreError]

    @property
    def due(self) -> int:
        return sum(each.messages for each in self.logs)

    @property
    def changes(self) -> bool:
        return bool(self.errors) or any(each.due or each.is_broken for each in self.logs)

    @property
    def next_due(self) -> int | None:
        return _first_due(self.logs)

    @property
    def late_ms(self) -> int | None:
        oldest = min((each.due[0].visible_at for each in self.logs if each.due), default=None)
        return None if oldest is None else self.now.ms - oldest

    def table(self) -> pa.Table:
        """One row for each due message."""
        rows = [
            (
                log.name.group, log.name.topic_of(due.key[0]), due.key[1], offset,
                time_us(due.key[3]), time_us(due.visible_at),
            )
            for log in self.logs
            for due in log.due
            for offset in due.offsets.tolist()
        ]  # fmt: skip
        return pa.Table.from_batches([batch_of(_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        """Stores the due messages again, a commit for each log, and returns how many were stored.

        Raises PartsFailedError after all logs have had their turn.
        """
        done, seen, errors, going = 0, 0, list(self.errors), list[_Log]()
        for each in self.logs:
            if not (each.due or each.is_broken) or seen >= MESSAGES_MAX:
                going.append(each)
                continue
            log = InFlightLog(each.name.directory, sync=session.options.sync)
            try:
                found = revive_due(each.name, log, session, self.now.ms)
                done += found.copies
                seen += found.messages
                going.append(each)
            except StoreError as error:
                errors.append(error)
            finally:
                log.close()
        if errors:
            raise PartsFailedError(done, _first_due(going), errors)
        return done


def _first_due(logs: Iterable[_Log]) -> int | None:
    return min((each.next_due for each in logs if each.next_due is not None), default=None)
