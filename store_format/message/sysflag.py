"""The broker's flag bits of a message unit (org.apache.rocketmq.common.sysflag.MessageSysFlag, spec 2.6)."""

from __future__ import annotations

COMPRESSED = 0x001  # the stored body is compressed
MULTI_TAGS = 0x002  # the topic's filter type; no effect on the bytes
TRANSACTION_MASK = 0x00C
TRANSACTION_NONE = 0x000
TRANSACTION_PREPARED = 0x004
TRANSACTION_COMMIT = 0x008
TRANSACTION_ROLLBACK = 0x00C
BORN_HOST_V6 = 0x010  # the born host is 16 + 4 bytes
STORE_HOST_V6 = 0x020  # the store host is 16 + 4 bytes
NEED_UNWRAP = 0x040  # the consumer has to split the body
INNER_BATCH = 0x080  # the body is a batch of wire messages
COMPRESSION_MASK = 0x700
COMPRESSION_SHIFT = 8  # 1 LZ4, 2 ZSTD, 3 ZLIB; 0 with COMPRESSED set is ZLIB of clients before 4.9.4

# (name, mask, value): what `describe` prints.
FLAGS = (
    ("COMPRESSED", COMPRESSED, COMPRESSED),
    ("MULTI_TAGS", MULTI_TAGS, MULTI_TAGS),
    ("PREPARED", TRANSACTION_MASK, TRANSACTION_PREPARED),
    ("COMMIT", TRANSACTION_MASK, TRANSACTION_COMMIT),
    ("ROLLBACK", TRANSACTION_MASK, TRANSACTION_ROLLBACK),
    ("BORNHOST_V6", BORN_HOST_V6, BORN_HOST_V6),
    ("STOREHOST_V6", STORE_HOST_V6, STORE_HOST_V6),
    ("NEED_UNWRAP", NEED_UNWRAP, NEED_UNWRAP),
    ("INNER_BATCH", INNER_BATCH, INNER_BATCH),
    ("LZ4", COMPRESSION_MASK, 1 << COMPRESSION_SHIFT),
    ("ZSTD", COMPRESSION_MASK, 2 << COMPRESSION_SHIFT),
    ("ZLIB", COMPRESSION_MASK, 3 << COMPRESSION_SHIFT),
)


def describe(sys_flag: int) -> str:
    """The names of the bits set, joined by `|`; `0` for none. Unknown bits as hex.

    >>> describe(0x311)
    'COMPRESSED|BORNHOST_V6|ZLIB'
    """
    names = [name for name, mask, value in FLAGS if sys_flag & mask == value]
    unknown = sys_flag & 0xFFFFFFFF & ~0x7FF
    return "|".join(names + ([f"0x{unknown:X}"] if unknown else [])) or "0"
