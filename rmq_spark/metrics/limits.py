"""Limits of a monitoring check: which state the numbers of consumer groups have, and why.

States and performance data are those of monitoring plugins (Nagios, Icinga): a value beyond a limit is a
warning or critical; a value on it is not. Of several states the first of critical, warning, unknown and ok
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from rmq_spark.metrics.lag_memory import GroupLag
from store_format.display.text import shown
from store_format.display.units import count_text, duration_text

_NAMED_MAX = 3  # groups that the line names
_MS = 1_000


class CheckState(IntEnum):
    """A state; its number is the exit code of a monitoring plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_WORST_FIRST = (CheckState.CRITICAL, CheckState.WARNING, CheckState.UNKNOWN, CheckState.OK)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a group on a topic that has limits.

    `label` is its name in the performance data. `is_time` are numbers of ms, which are shown as durations.
    `is_low_bad`: the least number is the worst, as of the time until a loss.
    """

    option: str
    label: str
    text: str
    is_time: bool = False
    is_low_bad: bool = False

    def of(self, each: GroupLag) -> int | None:
        """The number of a group; None if it is unknown, or if there is none."""
        if self.label == "age":
            return each.lag_ms
        if self.label == "loss_in":
            return each.loss_in_ms
        value: int | None = each.row["lagMessages" if self.label == "lag" else "lostMessages"]
        return value

    def is_unknown(self, each: GroupLag) -> bool:
        """Whether the lag of the group is known, and this number is not."""
        lag = each.row["lagMessages"]
        return self.of(each) is None and (
            (self.label == "lost" and lag is not None) or (self.label == "age" and bool(lag))
        )

    def shown(self, value: int) -> str:
        return duration_text(value) if self.is_time else count_text(value)


MEASURES = (
    Measure("--max-lag", "lag", "lag"),
    Measure("--max-age", "age", "oldest unread message", is_time=True),
    Measure("--max-lost", "lost", "lost messages"),
    Measure("--max-loss-in", "loss_in", "loses messages in", is_time=True, is_low_bad=True),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a measure; None is no limit."""

    measure: Measure
    warning: int | None
    critical: int | None

    def state(self, value: int) -> CheckState:
        """The state of a value.

        >>> Limit(MEASURES[0], 10, 20).state(20).name
        'WARNING'
        """
        for limit, state in ((self.critical, CheckState.CRITICAL), (self.warning, CheckState.WARNING)):
            if limit is not None and (value < limit if self.measure.is_low_bad else value > limit):
                return state
        return CheckState.OK

    def performance(self, worst: int | None) -> str:
        """The worst value in the form `label=value[unit];warning;critical;min`; U is unknown."""
        colon = ":" if self.measure.is_low_bad else ""
        limits = [
            "" if each is None else f"{self._number(each)}{colon}" for each in (self.warning, self.critical)
        ]
        value = "U" if worst is None else self._number(worst) + "s" * self.measure.is_time
        return f"{self.measure.label}={value};{';'.join(limits)};0"

    def _number(self, value: int) -> str:
        return f"{value / _MS:.3f}".rstrip("0").rstrip(".") if self.measure.is_time else str(value)


@dataclass(slots=True)
class CheckResult:
    """What a check has found: (state, sentence), and the worst value of each limit."""

    limits: Sequence[Limit]
    found: list[tuple[CheckState, str]] = field(default_factory=list)
    worst: dict[str, int] = field(default_factory=dict)
    group_count: int = 0

    @property
    def state(self) -> CheckState:
        states = {state for state, _ in self.found}
        return next((state for state in _WORST_FIRST if state in states), CheckState.OK)

    def add_unknown(self, why: str) -> None:
        """Notes that a part of the answer is not known."""
        self.found.append((CheckState.UNKNOWN, shown(why)))

    def add(self, groups: Iterable[GroupLag], broker: str = "") -> None:
        """Compares the numbers of a store's groups with all limits; names the `broker`, if given."""
        of_broker = f" of {broker}" if broker else ""
        is_known: dict[str, bool] = {}
        for each in groups:
            group = each.row["group"]
            is_known[group] = is_known.get(group, False) or each.row["lagMessages"] is not None
            for limit in self.limits:
                self._compare(limit, each, of_broker)
        self.group_count += len(is_known)
        for group, known in is_known.items():
            if not known:
                self.add_unknown(f"{group}{of_broker}: lag unknown, no committed offset can be compared")

    def _compare(self, limit: Limit, each: GroupLag, of_broker: str) -> None:
        measure, value = limit.measure, limit.measure.of(each)
        who = shown(f"{each.row['group']} on {each.row['topic']}{of_broker}")
        if value is None:
            if measure.is_unknown(each):
                self.found.append((CheckState.UNKNOWN, f"{who}: {measure.text} unknown"))
            return
        known = self.worst.get(measure.label, value)
        self.worst[measure.label] = min(known, value) if measure.is_low_bad else max(known, value)
        state = limit.state(value)
        if state is not CheckState.OK:
            self.found.append((state, f"{who}: {measure.text} {measure.shown(value)}"))

    def line(self) -> str:
        """The line that the check prints: state, reasons, performance data."""
        reasons = [text for state in _WORST_FIRST for known, text in self.found if known is state]
        more = len(reasons) - _NAMED_MAX
        text = "; ".join(reasons[:_NAMED_MAX]) + (f"; {more} more" if more > 0 else "")
        data = " ".join(
            each.performance(self.worst.get(each.measure.label))
            for each in self.limits
            if each.measure.label in self.worst or not each.measure.is_low_bad  # no loss is no unknown one
        )
        text = (
            text or f"{count_text(self.group_count)} group{'s' * (self.group_count != 1)} within the limits"
        )
        return f"RMQLOG {self.state.name} - {text.replace('|', '¦')}" + (f" | {data}" if data else "")
