"""A user's own code in a consumer group, by name: `package.module:name`.

An allocation strategy has `allocate(consumer_group, current_cid, mq_all, cid_all)` and `get_name()`. A
machine room resolver has `broker_deploy_in(message_queue)` and `consumer_deploy_in(client_id)`. A hash
function is called with a text and returns a long. The Java interfaces are AllocateMessageQueueStrategy,
MachineRoomResolver and HashFunction. The modules are imported where queues are allocated: on the driver,
never in a task, and only if Python finds them there already.

Whoever may name a module may run it, so the environment decides who may: see `refuse_unlisted`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from logging import getLogger
from typing import Any

from rmq_spark.consume.consumer import MessageQueue
from store_format.display.text import first_names
from store_format.errors import OptionError
from store_format.names import did_you_mean

_log = getLogger(__name__)

SETTING = "spark.rmqlog.strategies"
VARIABLE = "RMQLOG_STRATEGIES"  # the same list, for servers whose sessions no code registers the format in
_LONG = 1 << 63


def refuse_unlisted(names: Collection[str], listed: Collection[str] | None) -> None:
    """Raises OptionError for a name that this session may not import; None allows every name.

    In a classic session code of the same user has registered the format. A SQL client of a server runs no
    Python, and could name any module: it is allowed what the server lists.
    """
    allowed = {*(listed or ()), *os.environ.get(VARIABLE, "").split(",")}
    refused = sorted(name for name in names if listed is not None and name not in allowed)
    if refused:
        raise OptionError(
            f"{refused[0]}: expected a name that this session may import, found none of its list; in a "
            "classic session call rmq_spark.register(spark). In Spark Connect add the name to the setting "
            f"{SETTING} before that, and on a SQL server to its environment variable {VARIABLE}"
        )


def load(option: str, text: str, *methods: str) -> Any:  # Any: the user's object
    """The object of this name, of a class a new one; `methods` are those that it must have.

    Raises OptionError for a module that cannot be imported here and for a missing name or method.
    """
    module_name, _, name = text.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        raise OptionError(
            f"{option}: expected a module that Python finds on the driver, found {module_name}, which cannot "
            f"be imported ({type(error).__name__}: {error}); install it for the driver's Python"
        ) from error
    if not hasattr(module, name):
        public = [each for each in vars(module) if not each.startswith("_")]
        raise OptionError(
            f"{option}: module {module_name} has no {name!r}; {did_you_mean(name, public, 'names')}"
        )
    found = getattr(module, name)
    made = found() if isinstance(found, type) else found
    for method in methods or ("__call__",):
        if not callable(getattr(made, method, None)):
            raise OptionError(f"{option}: expected an object with {method}(…), found {text} without it")
    return made


def load_hash(option: str, text: str) -> Callable[[str], int]:
    """The user's hash function (org.apache.rocketmq.common.consistenthash.HashFunction)."""
    function = load(option, text)

    def checked(key: str) -> int:
        value = function(key)
        if not isinstance(value, int) or not -_LONG <= value < _LONG:
            raise OptionError(
                f"{option}: expected a whole number of 64 bits from {text}({key[:100]!r}), found {value!r}"
            )
        return value

    return checked


@dataclass(slots=True)
class OwnStrategy:
    """A user's strategy, asked for the queues of all clients at once, and checked.

    Each queue may go to one client, and a queue that goes to none is named in a warning: nobody reads it.
    `label` is its name in options and errors.
    """

    strategy: Any  # Any: the user's object
    label: str
    _asked: tuple[object, ...] = field(default=())
    _answer: dict[str, list[MessageQueue]] = field(default_factory=dict)
    _left_out: frozenset[MessageQueue] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.label} {self.strategy.get_name()}"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of `current_cid`. Raises OptionError for an answer that no group can use."""
        asked = consumer_group, tuple(mq_all), tuple(cid_all)
        if asked != self._asked:
            self._answer = {client: self._ask(consumer_group, client, mq_all, cid_all) for client in cid_all}
            self._check(mq_all)
            self._asked = asked
        return list(self._answer.get(current_cid, ()))

    def _ask(
        self, group: str, client: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        try:
            found = self.strategy.allocate(group, client, list(mq_all), list(cid_all))
            return [MessageQueue(*queue) for queue in found]
        except Exception as error:  # whatever the user's code raises
            raise OptionError(
                f"{self.label}: expected the queues of client {client} from allocate(…), found "
                f"{type(error).__name__}: {error}"
            ) from error

    def _check(self, mq_all: Sequence[MessageQueue]) -> None:
        owners: dict[MessageQueue, str] = {}
        known = set(mq_all)
        for client, queues in self._answer.items():
            for queue in queues:
                if queue not in known:
                    raise OptionError(
                        f"{self.label}: expected queues of mq_all, found {queue} for client {client}"
                    )
                if queue in owners:
                    raise OptionError(
                        f"{self.label}: expected one client for each queue, found {queue} for client "
                        f"{owners[queue]} and for client {client}"
                    )
                owners[queue] = client
        left_out = frozenset(known - owners.keys())
        if left_out - self._left_out:
            _log.warning(
                "%s: %d queues go to no client, so nobody reads them: %s",
                self.label,
                len(left_out),
                first_names(map(str, sorted(left_out))),
            )
        self._left_out = left_out
