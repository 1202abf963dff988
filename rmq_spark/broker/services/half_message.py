"""Half messages as the user's function gets them, and its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmq_spark.broker.services.decisions import COMMIT, ROLLBACK
from rmq_spark.produce.half import check_times
from store_format.errors import OptionError
from store_format.java.numbers import parse_long
from store_format.message.columns import BODY_SIZE_MAX
from store_format.message.compression import decompress
from store_format.message.properties import PropertyTable
from store_format.message.stored import StoredMessages
from store_format.message.sysflag import COMPRESSED
from store_format.names import PGROUP, REAL_QID, REAL_TOPIC, TAGS, UNIQ_KEY

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message, as the function of `transaction.check` receives it.

    `topic` and `queue_id` are the destination. `body` is decompressed. `properties` are the producer's and
    RocketMQ's. `born_timestamp` is in ms since 1970. `check_times` is the number of earlier checks.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    msg_id: str | None
    producer_group: str | None
    born_timestamp: int
    check_times: int

    @property
    def keys(self) -> list[str]:
        """The keys of the message: the words of the property KEYS."""
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def tags(self) -> str | None:
        """The tag of the message (the property TAGS), or None."""
        return self.properties.get(TAGS)


Decide = Callable[[HalfMessage], str | None]


def half_messages(halves: StoredMessages) -> list[HalfMessage]:
    """The messages for the user's function."""
    maps = PropertyTable(halves.messages.properties.cast(pa.binary())).map_array().to_pylist()
    born = np.asarray(halves.messages.born_timestamp).tolist()
    flags = np.asarray(halves.messages.sys_flag).tolist()
    found = []
    for pairs, times, born_ms, flag, body in zip(
        maps, check_times(halves), born, flags, halves.messages.body, strict=True
    ):
        properties = dict(pairs)
        queue_id = parse_long(properties.get(REAL_QID))
        found.append(
            HalfMessage(
                topic=properties.get(REAL_TOPIC, ""),
                queue_id=-1 if queue_id is None else queue_id,
                body=_body(body.as_buffer(), flag),
                properties=properties,
                msg_id=properties.get(UNIQ_KEY),
                producer_group=properties.get(PGROUP),
                born_timestamp=born_ms,
                check_times=times,
            )
        )
    return found


def _body(stored: pa.Buffer, sys_flag: int) -> bytes:
    if not sys_flag & COMPRESSED:
        return bytes(stored.to_pybytes())
    body: bytes = decompress(stored, sys_flag, size_max=BODY_SIZE_MAX)
    return body


def answer_of(decide: Decide, message: HalfMessage) -> str | None:
    """TransactionCheckListener: an error in the user's function is an unknown decision."""
    try:
        answer = decide(message)
    except Exception:
        _log.warning("the decision about %s failed and counts as unknown", message.msg_id, exc_info=True)
        return None
    if answer in (None, "unknown"):
        return None
    if answer not in (COMMIT, ROLLBACK):
        raise OptionError(
            f"the function that decides transactions: expected 'commit', 'rollback' or None for "
            f"{message.msg_id}, found {answer!r}"
        )
    return answer
