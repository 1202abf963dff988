"""Every fixed layout of RocketMQ's store files as a numpy dtype: one field a line, with offset and meaning.

Readers, writers, FORMAT.md and the hex dump derive from these tables. No other module spells an offset. All
integers are big-endian, also in the views of `unpack`. Native byte order begins at the Arrow boundary.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BATCH_CQ_UNIT",
    "BLANK_HEAD",
    "CHECKPOINT",
    "CHECKPOINT_FILE_SIZE",
    "CQ_EXT_ADDRESS_MAX",
    "CQ_EXT_HEAD",
    "CQ_LOST_TAGS_CODE",
    "CQ_PRE_BLANK_SIZE",
    "CQ_UNIT",
    "CRC_PROPERTY_NAME",
    "CRC_PROPERTY_SIZE",
    "DLEDGER_BLANK",
    "DLEDGER_HEAD",
    "DLEDGER_INDEX_UNIT",
    "DLEDGER_MAGIC",
    "DLEDGER_MAGIC_BLANK",
    "INDEX_HEADER",
    "INDEX_SLOT",
    "INDEX_UNIT",
    "LAYOUTS",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "MESSAGE_HEADS",
    "MESSAGE_SIZE_MIN",
    "NAME_VALUE_SEPARATOR",
    "OFFSET_MAX",
    "PROPERTY_SEPARATOR",
    "ROCKSDB_CQ_VALUE",
    "ROCKSDB_OFFSET_VALUE",
    "TIERED_INDEX_HEADER",
    "TIERED_INDEX_ITEM",
    "TIMER_CHECK",
    "TIMER_LOG_BLANK",
    "TIMER_LOG_UNIT",
    "TIMER_WHEEL_SLOT",
    "WIRE_MESSAGE_HEAD",
    "as_struct",
    "message_head",
    "pack",
    "unit",
    "unpack",
]

MAGIC_V1 = 0xDAA320A7  # MessageDecoder.MESSAGE_MAGIC_CODE: topic length is one byte
MAGIC_V2 = 0xDAA320AB  # MessageDecoder.MESSAGE_MAGIC_CODE_V2: topic length is two bytes
MAGIC_BLANK = 0xCBD43194  # CommitLog.BLANK_MAGIC_CODE: the rest of the file contains no message
DLEDGER_MAGIC = 1  # DLedgerEntryCoder: an entry begins here
DLEDGER_MAGIC_BLANK = -1  # MmapFileList.BLANK_MAGIC_CODE: the rest of the file contains no entry

OFFSET_MAX = 2**63 - 1  # Long.MAX_VALUE: offsets are Java longs

NAME_VALUE_SEPARATOR = 0x01  # MessageDecoder.NAME_VALUE_SEPARATOR
PROPERTY_SEPARATOR = 0x02  # MessageDecoder.PROPERTY_SEPARATOR

CRC_PROPERTY_NAME = b"__CRC32#"  # MessageConst.PROPERTY_CRC32
CRC_PROPERTY_SIZE = 20  # name, 0x01, ten digits least significant first, 0x02 (spec 2.7)

# The tags code of a unit for a lost message. The unit points to the next message: behind a pre-blank unit a
# broker skips the messages of the first commitlog file (DefaultMessageStore.getMessage). No hash, and no
# address in the extension, has this value.
CQ_LOST_TAGS_CODE = int.from_bytes(b"\0rmqlost", "big")
CQ_PRE_BLANK_SIZE = 0x7FFFFFFF  # ConsumeQueue.fillPreBlank: size in units before the first message
# ConsumeQueueExt.MAX_ADDR: a tags code at or below it is an address in a consumequeue_ext file
CQ_EXT_ADDRESS_MAX = -(2**31) - 1
CHECKPOINT_FILE_SIZE = 4096  # StoreCheckpoint: one memory page


def unit(size: int, *fields: tuple[str, str, int, str]) -> np.dtype[np.void]:
    """Returns a packed dtype of `size` bytes. A field is (name, type, offset, meaning).

    `size` and the offsets are copied from the broker's source. The dtype's metadata maps field names to
    meanings, for FORMAT.md and the hex dump. Raises TypeError at import when the types do not add up to the
    offsets or to `size`.
    """
    layout = np.dtype(
        [(name, kind) for name, kind, _, _ in fields],
        metadata={name: meaning for name, _, _, meaning in fields},
    )
    for name, _, offset, _ in fields:
        if layout.fields is None or layout.fields[name][1] != offset:
            raise TypeError(f"field {name}: the types before it do not add up to its offset {offset}")
    if layout.itemsize != size:
        raise TypeError(f"the fields add up to {layout.itemsize} bytes, expected {size}")
    return layout


def unpack(buffer: Any, layout: np.dtype[np.void]) -> NDArray[np.void]:
    """Returns `buffer` (anything with the buffer protocol) as records, without a copy and read-only."""
    return np.frombuffer(buffer, layout)


def pack(layout: np.dtype[np.void], columns: dict[str, Any]) -> NDArray[np.void]:
    """Returns records with these columns, the inverse of `unpack`. A column may be one number for all.

    Raises TypeError when the columns are not the layout's fields, and OverflowError for a value that does not
    fit its field, which numpy would wrap silently.
    """
    if columns.keys() != set(layout.names or ()):
        raise TypeError(f"columns {sorted(columns)} are not the layout's {layout.names}")
    arrays = {name: np.atleast_1d(np.asarray(values)) for name, values in columns.items()}
    units = np.zeros(max(len(values) for values in arrays.values()), layout)
    for name, values in arrays.items():
        units[name] = values
        if not np.array_equal(units[name], np.broadcast_to(values, units[name].shape)):
            raise OverflowError(f"{name}: a value does not fit {layout[name].str}")
    return units


_STRUCT_CODES = {"i2": "h", "i4": "i", "u4": "I", "i8": "q"}


def as_struct(layout: np.dtype[np.void]) -> Struct:
    """Returns a `struct.Struct` for single records, of which numpy reads a field in a microsecond."""
    fields = (layout[name] for name in layout.names or ())
    codes = (f"{field.itemsize}s" if field.kind == "V" else _STRUCT_CODES[field.str[1:]] for field in fields)
    return Struct(">" + "".join(codes))


# ---- commitlog ---------------------------------------------------------------------------------------------


def message_head(born_host_v6: bool, store_host_v6: bool) -> np.dtype[np.void]:
    """Returns the layout of a message's head, up to and including the body length (MessageExtEncoder.encode).

    The head has 88 bytes with two IPv4 hosts. Each IPv6 host adds 12 bytes and moves the later fields.
    """
    born, store = 16 if born_host_v6 else 4, 16 if store_host_v6 else 4
    b, s = born - 4, store - 4
    return unit(
        80 + born + store,
        ("total_size", ">i4", 0, "whole unit, this field included"),
        ("magic", ">u4", 4, "MAGIC_V1 or MAGIC_V2"),
        ("body_crc", ">i4", 8, "CRC32 of the stored body, without its top bit"),
        ("queue_id", ">i4", 12, "queue of the topic"),
        ("flag", ">i4", 16, "the user's number"),
        ("queue_offset", ">i8", 20, "index in the queue"),
        ("physical_offset", ">i8", 28, "commitlog offset of total_size"),
        ("sys_flag", ">i4", 36, "compression, transaction state, kind of addresses, inner batch"),
        ("born_timestamp", ">i8", 40, "ms, the client's clock"),
        ("born_ip", f"V{born}", 48, "raw address"),
        ("born_port", ">i4", 52 + b, "a full int"),
        ("store_timestamp", ">i8", 56 + b, "ms, the broker's clock"),
        ("store_ip", f"V{store}", 64 + b, "raw address"),
        ("store_port", ">i4", 68 + b + s, "a full int"),
        ("reconsume_times", ">i4", 72 + b + s, "how often a consumer sent the message back"),
        ("prepared_transaction_offset", ">i8", 76 + b + s, "commitlog offset of the half message, else 0"),
        ("body_length", ">i4", 84 + b + s, "then body, topic (length u1 or i2), properties (length i2)"),
    )


# Indexed by (sys_flag >> 4) & 3: bit 0 says the born host is IPv6, bit 1 the store host.
MESSAGE_HEADS = tuple(message_head(bool(i & 1), bool(i & 2)) for i in range(4))

MESSAGE_SIZE_MIN = 91  # V1, two IPv4 hosts, no body, topic or properties

BLANK_HEAD = unit(
    8,
    ("size", ">i4", 0, "bytes left in the file, this field included"),
    ("magic", ">u4", 4, "MAGIC_BLANK; the bytes behind are undefined"),
)

WIRE_MESSAGE_HEAD = unit(  # MessageDecoder.encodeMessage: one message of a batch body
    20,
    ("total_size", ">i4", 0, "whole sub-message"),
    ("magic", ">i4", 4, "0"),
    ("body_crc", ">i4", 8, "0"),
    ("flag", ">i4", 12, "the user's number"),
    ("body_length", ">i4", 16, "then body, properties (length i2)"),
)

DLEDGER_HEAD = unit(  # DLedgerEntryCoder: precedes each message unit of a DLedger commitlog
    48,
    ("magic", ">i4", 0, "DLEDGER_MAGIC"),
    ("size", ">i4", 4, "entry with this head"),
    ("index", ">i8", 8, "of the Raft entry"),
    ("term", ">i8", 16, "of the Raft leader"),
    ("pos", ">i8", 24, "offset of this head"),
    ("channel", ">i4", 32, "0"),
    ("chain_crc", ">i4", 36, "0"),
    ("body_crc", ">i4", 40, "0"),
    ("body_size", ">i4", 44, "of the message unit that follows"),
)

DLEDGER_INDEX_UNIT = unit(  # DLedgerIndexEntry: entry i is at byte 32 i of dledger-<id>/index
    32,
    ("magic", ">i4", 0, "DLEDGER_MAGIC"),
    ("pos", ">i8", 4, "offset of the entry's head"),
    ("size", ">i4", 12, "entry with its head"),
    ("index", ">i8", 16, "of the Raft entry"),
    ("term", ">i8", 24, "of the Raft leader"),
)

DLEDGER_BLANK = unit(  # MmapFileList.preAppend: the size behind the magic code, unlike in BLANK_HEAD
    8,
    ("magic", ">i4", 0, "DLEDGER_MAGIC_BLANK"),
    ("size", ">i4", 4, "bytes left in the file, the magic code included"),
)

# ---- consume queues ----------------------------------------------------------------------------------------

CQ_UNIT = unit(  # ConsumeQueue.CQ_STORE_UNIT_SIZE
    20,
    ("physical_offset", ">i8", 0, "first byte of the message in the commitlog"),
    ("size", ">i4", 8, "whole message; CQ_PRE_BLANK_SIZE marks a pre-blank unit"),
    ("tags_code", ">i8", 12, "Java hash of TAGS, a delivery time, or an address of the ext file"),
)

CQ_EXT_HEAD = unit(  # ConsumeQueueExt.CqExtUnit; the filter bit map follows
    20,
    ("size", ">i2", 0, "20 + bit map"),
    ("tags_code", ">i8", 2, "the real tags code"),
    ("store_timestamp", ">i8", 10, "ms, of the message"),
    ("filter_bit_map_size", ">i2", 18, "may be 0"),
)

BATCH_CQ_UNIT = unit(  # BatchConsumeQueue.CQ_STORE_UNIT_SIZE
    46,
    ("physical_offset", ">i8", 0, "first byte of the unit in the commitlog"),
    ("size", ">i4", 8, "whole unit"),
    ("tags_code", ">i8", 12, "Java hash of TAGS"),
    ("store_timestamp", ">i8", 20, "ms, of the unit"),
    ("base_offset", ">i8", 28, "first queue offset covered"),
    ("batch_size", ">i2", 36, "number of queue offsets covered"),
    ("compacted_offset", ">i4", 38, "-1"),
    ("reserved", ">i4", 42, "0"),
)

ROCKSDB_CQ_VALUE = unit(  # RocksDBConsumeQueueTable.CQ_UNIT_SIZE
    28,
    ("physical_offset", ">i8", 0, "first byte of the message in the commitlog"),
    ("size", ">i4", 8, "whole message"),
    ("tags_code", ">i8", 12, "as in CQ_UNIT"),
    ("store_timestamp", ">i8", 20, "ms, of the message"),
)

ROCKSDB_OFFSET_VALUE = unit(  # RocksDBConsumeQueueOffsetTable.OFFSET_VALUE_LENGTH
    16,
    ("physical_offset", ">i8", 0, "of the queue's first or last message"),
    ("queue_offset", ">i8", 8, "of the same message"),
)

# ---- index -------------------------------------------------------------------------------------------------

INDEX_HEADER = unit(  # IndexHeader
    40,
    ("begin_timestamp", ">i8", 0, "store time of the first entry"),
    ("end_timestamp", ">i8", 8, "store time of the last entry"),
    ("begin_physical_offset", ">i8", 16, "commitlog offset of the first entry"),
    ("end_physical_offset", ">i8", 24, "commitlog offset of the last entry"),
    ("hash_slot_count", ">i4", 32, "slots in use"),
    ("index_count", ">i4", 36, "number of the next unit; the first is 1"),
)

INDEX_SLOT = np.dtype(">i4")  # number of the newest unit of the chain, 0 = empty

INDEX_UNIT = unit(  # IndexFile.indexSize
    20,
    ("key_hash", ">i4", 0, "|Java hash of topic#key|, 0 for -2^31"),
    ("physical_offset", ">i8", 4, "of the message in the commitlog"),
    ("time_diff", ">i4", 12, "seconds after begin_timestamp"),
    ("prev_index", ">i4", 16, "number of the next older unit of the chain, 0 = none"),
)

TIERED_INDEX_HEADER = unit(  # IndexStoreFile.INDEX_HEADER_SIZE
    28,
    ("magic", ">i4", 0, "0xBCC50285: sorted by slot, and uploaded"),
    ("begin_timestamp", ">i8", 4, "ms, when the file was begun"),
    ("end_timestamp", ">i8", 12, "store time of a message, ms"),
    ("hash_slot_count", ">i4", 20, "slots in use"),
    ("item_count", ">i4", 24, "number of items"),
)

TIERED_INDEX_ITEM = unit(  # IndexItem.COMPACT_INDEX_ITEM_SIZE
    28,
    ("key_hash", ">i4", 0, "|Java hash of topic#key|"),
    ("topic_id", ">i4", 4, "the topic's number in tieredStoreMetadata.json"),
    ("queue_id", ">i4", 8, "of the message"),
    ("physical_offset", ">i8", 12, "of the message in the uploaded log of its queue"),
    ("size", ">i4", 20, "whole message"),
    ("time_diff", ">i4", 24, "seconds after begin_timestamp, also negative"),
)

# ---- checkpoint --------------------------------------------------------------------------------------------

CHECKPOINT = unit(  # StoreCheckpoint; the rest of the 4096 bytes is zero
    48,
    ("physic_msg_timestamp", ">i8", 0, "store time of the last message known flushed"),
    (
        "logics_msg_timestamp",
        ">i8",
        8,
        "store time of the last entry known in a consume queue (5.5: flushed)",
    ),
    ("index_msg_timestamp", ">i8", 16, "end time of the last full index file"),
    ("master_flushed_offset", ">i8", 24, "since 5.0: what the master of a pair has flushed"),
    ("confirm_phy_offset", ">i8", 32, "since 5.1.1: start of the last valid message after recovery"),
    ("logics_physical_offset", ">i8", 40, "since 5.5: start of the message whose entry is known flushed"),
)

# ---- timer -------------------------------------------------------------------------------------------------

TIMER_LOG_UNIT = unit(  # TimerLog.UNIT_SIZE
    52,
    ("size", ">i4", 0, "52"),
    ("prev_pos", ">i8", 4, "timerlog offset of the slot's previous unit, -1 = none"),
    ("magic", ">i4", 12, "1 normal, 2 roll, 4 delete"),
    ("write_timestamp", ">i8", 16, "ms, base of delayed_time"),
    ("delayed_time", ">i4", 24, "ms until the slot's time"),
    ("physical_offset", ">i8", 28, "of the message in the timer topic"),
    ("message_size", ">i4", 36, "of that message"),
    ("topic_hash", ">i4", 40, "Java hash of REAL_TOPIC"),
    ("reserved", ">i8", 44, "0"),
)

TIMER_LOG_BLANK = unit(
    16,
    ("size", ">i4", 0, "bytes left in the file"),
    ("reserved", ">i8", 4, "0"),
    ("magic", ">u4", 12, "MAGIC_BLANK"),
)

TIMER_WHEEL_SLOT = unit(  # Slot.SIZE
    32,
    ("slot_time", ">i8", 0, "time / precision; another time here means the slot is empty"),
    ("first_pos", ">i8", 8, "timerlog offset of the oldest unit"),
    ("last_pos", ">i8", 16, "timerlog offset; chains are read from here"),
    ("num", ">i4", 24, "messages waiting in the slot"),
    ("magic", ">i4", 28, "0"),
)

TIMER_CHECK = unit(  # TimerCheckpoint; the rest of the 4096 bytes is zero
    56,
    ("last_read_time", ">i8", 0, "ms, how far the wheel has been read"),
    ("last_timer_log_flush_pos", ">i8", 8, "timerlog offset, how far it is flushed"),
    ("last_timer_queue_offset", ">i8", 16, "how far the queue of the timer topic has been read"),
    ("master_timer_queue_offset", ">i8", 24, "last_timer_queue_offset of the master of a pair"),
    ("state_version", ">i8", 32, "of the data version"),
    ("timestamp", ">i8", 40, "of the data version, ms"),
    ("counter", ">i8", 48, "of the data version"),
)

# By name, for FORMAT.md and the hex dump.
LAYOUTS: dict[str, np.dtype[np.void]] = {
    "MESSAGE_HEAD": MESSAGE_HEADS[0],
    "BLANK_HEAD": BLANK_HEAD,
    "WIRE_MESSAGE_HEAD": WIRE_MESSAGE_HEAD,
    "DLEDGER_HEAD": DLEDGER_HEAD,
    "DLEDGER_BLANK": DLEDGER_BLANK,
    "DLEDGER_INDEX_UNIT": DLEDGER_INDEX_UNIT,
    "CQ_UNIT": CQ_UNIT,
    "CQ_EXT_HEAD": CQ_EXT_HEAD,
    "BATCH_CQ_UNIT": BATCH_CQ_UNIT,
    "ROCKSDB_CQ_VALUE": ROCKSDB_CQ_VALUE,
    "ROCKSDB_OFFSET_VALUE": ROCKSDB_OFFSET_VALUE,
    "INDEX_HEADER": INDEX_HEADER,
    "INDEX_UNIT": INDEX_UNIT,
    "TIERED_INDEX_HEADER": TIERED_INDEX_HEADER,
    "TIERED_INDEX_ITEM": TIERED_INDEX_ITEM,
    "CHECKPOINT": CHECKPOINT,
    "TIMER_LOG_UNIT": TIMER_LOG_UNIT,
    "TIMER_LOG_BLANK": TIMER_LOG_BLANK,
    "TIMER_WHEEL_SLOT": TIMER_WHEEL_SLOT,
    "TIMER_CHECK": TIMER_CHECK,
}
