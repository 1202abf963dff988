"""Parses the options of a write, by the rows of `write_table`, into a `WriteOptions` of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq_spark.options.option import WRITE, Given, plain_fields, value_text
from rmq_spark.options.read_options import user_options
from rmq_spark.options.read_table import OPTIONS
from rmq_spark.options.write_table import NO_COMPRESSION, WRITE_OPTIONS
from rmq_spark.produce.bodies import Compression
from rmq_spark.produce.columns import check_property_columns
from store_format.bookkeeping.ledger import refuse_service_key
from store_format.errors import OptionError
from store_format.survey.fates import Unfiled

_ZLIB_LEVEL_MAX = 9
_WRITE_NAMES = {option.name for option in WRITE_OPTIONS}
# With the options of a read: in a write they are reported as such, and not as misspelt.
_TABLE = (*WRITE_OPTIONS, *(option for option in OPTIONS if option.name not in _WRITE_NAMES))


@dataclass(frozen=True, slots=True)
class NewStoreOptions:
    """Settings of a new store; an existing store must have the same. None: not given."""

    broker_name: str | None
    mapped_file_size_commit_log: int | None
    mapped_file_size_consume_queue: int | None
    max_hash_slot_num: int | None
    max_index_num: int | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write as plain values, which are pickled to every task."""

    path: str
    topic: str | None
    property_columns: tuple[str, ...]
    message_queue_selector: str  # roundrobin | hash | random
    auto_create_topic_enable: bool
    default_topic_queue_nums: int
    flush_disk_type: str  # SYNC_FLUSH | ASYNC_FLUSH
    message_index_enable: bool
    compression: Compression | None
    strict_properties: bool
    max_message_size: int
    born_host: tuple[bytes, int] | None  # None: this machine's
    store_host: tuple[bytes, int] | None
    txn: tuple[str, int] | None  # txnAppId and txnVersion: the key of an idempotent batch
    send_back: str | None  # the group that sends messages back
    max_reconsume_times: int | None
    transaction: str | None  # half | commit | rollback
    producer_group: str | None
    disk_used_percent_max: int | None  # None: that of the broker's settings
    broker_conf: str | None  # path of a file; None: each store's own
    unfiled_queues: Unfiled | None
    ignore_missing_stores: bool
    writer_lock_timeout_ms: int
    staging_retention_ms: int
    new_store: NewStoreOptions
    effective: tuple[tuple[str, str], ...]

    @property
    def decides(self) -> bool:
        """Whether the rows name half messages to commit or to roll back."""
        return self.transaction in ("commit", "rollback")

    def resolved(self) -> list[tuple[str, str]]:
        """(documented name, value) of every option that has one, defaults too: logged once per write."""
        return list(self.effective)


def parse_write_options(options: Mapping[str, str], *, now_ms: int = 0) -> WriteOptions:
    """The options of a batch or stream write. Raises OptionError."""
    given = {name: Given(name, text, now_ms) for name, text in user_options(options, WRITE, _TABLE).items()}
    if "path" not in given:
        raise OptionError(
            "path is not given; give the store directory to write to, as in save('/data/store') or "
            "option('path', …). In SQL, Spark passes a table's options neither to INSERT INTO nor to "
            "CREATE TABLE … AS SELECT: use INSERT INTO t WITH (path = '/data/store') SELECT …, or "
            "INSERT INTO a temporary view that has OPTIONS (path '/data/store')"
        )
    read = {option.name: option.read(given, now_ms) for option in WRITE_OPTIONS}
    _refuse_beside_send_back(given)
    _refuse_beside_transaction(given, read["transaction"])
    combined = {
        "path": read["path"][0],
        "property_columns": _property_columns(read),
        "compression": _compression(read),
        "txn": _txn(read),
        "disk_used_percent_max": read["diskSpaceWarningLevelRatio"],
        "writer_lock_timeout_ms": read["writerLockTimeout"],
        "staging_retention_ms": read["stagingRetention"],
        "new_store": NewStoreOptions(**plain_fields(NewStoreOptions, read)),
        "effective": tuple((name, value_text(value)) for name, value in read.items() if value is not None),
    }
    return WriteOptions(**(plain_fields(WriteOptions, read) | combined))


# What a row of new messages has, and a row that names a stored message does not.
_OF_NEW_MESSAGES = (
    "topic", "propertyColumns", "messageQueueSelector", "autoCreateTopicEnable", "defaultTopicQueueNums",
    "compressType", "compressMsgBodyOverHowmuch", "compressLevel", "strictProperties", "bornHost",
)  # fmt: skip
_NOT_BESIDE_SEND_BACK = (*_OF_NEW_MESSAGES, "transaction", "producerGroup")


def _refuse_beside_send_back(given: Mapping[str, Given]) -> None:
    if "sendBack" not in given:
        if "maxReconsumeTimes" in given:
            raise OptionError("maxReconsumeTimes is given without sendBack; it only applies with sendBack")
        return
    other = next((name for name in _NOT_BESIDE_SEND_BACK if name in given), None)
    if other is not None:
        raise OptionError(
            f"sendBack and {other} are given together, but a message is sent back as it is stored; leave "
            f"out {other}"
        )


def _refuse_beside_transaction(given: Mapping[str, Given], transaction: str | None) -> None:
    if transaction is None:
        if "producerGroup" in given:
            raise OptionError("producerGroup is given without transaction; it only applies with transaction")
        return
    if transaction == "half":
        if "producerGroup" not in given:
            raise OptionError(
                "transaction=half is given without producerGroup; give the group that a broker would ask for "
                "the decision"
            )
        return
    other = next((name for name in _OF_NEW_MESSAGES if name in given), None)
    if other is not None:
        raise OptionError(
            f"transaction={transaction} and {other} are given together, but a half message is decided as it "
            f"is stored; leave out {other}"
        )


def _compression(read: Mapping[str, Any]) -> Compression | None:
    kind, level = read["compressType"], read["compressLevel"]
    if kind == NO_COMPRESSION:
        return None
    if kind == "ZLIB" and level > _ZLIB_LEVEL_MAX:
        raise OptionError(
            f"compressLevel: expected 1 to {_ZLIB_LEVEL_MAX} for compressType ZLIB, found {level}"
        )
    return Compression(kind, read["compressMsgBodyOverHowmuch"], level)


def _property_columns(read: Mapping[str, Any]) -> tuple[str, ...]:
    names = tuple(read["propertyColumns"] or ())
    check_property_columns(names)
    return names


def _txn(read: Mapping[str, Any]) -> tuple[str, int] | None:
    name, version = read["txnAppId"], read["txnVersion"]
    if name is None and version is None:
        return None
    if name is None or version is None:
        missing, there = ("txnAppId", "txnVersion") if name is None else ("txnVersion", "txnAppId")
        raise OptionError(
            f"{there} is given without {missing}; give both or neither: together they identify the batch"
        )
    return refuse_service_key(name), version
