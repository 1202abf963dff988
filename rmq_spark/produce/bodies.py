"""Message bodies as they are stored: size checks, and compression as in a client.

DefaultMQProducerImpl.tryToCompressMessage has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import WriteRows
from store_format.message.compression import compress, compression_flag

_KIND = pa.large_binary()


@dataclass(frozen=True, slots=True)
class Compression:
    """Compresses bodies of at least `size_min` bytes. `type` is ZLIB, LZ4 or ZSTD."""

    type: str
    size_min: int = 4096  # DefaultMQProducer.compressMsgBodyOverHowmuch
    level: int = 5


def checked_bodies(rows: WriteRows, message_size_max: int) -> tuple[pa.LargeBinaryArray, NDArray[np.int64]]:
    """The bodies and their sizes in bytes.

    Raises IllegalMessageError for a body that is null, empty or too large (Validators.checkMessage).
    """
    body = pa.array([], _KIND) if rows.count == 0 else rows.bytes("body")
    if body is None or body.null_count:
        rows.refuse(
            0 if body is None else body.is_null().index(pa.scalar(True)).as_py(),
            "expected a body of at least 1 byte, found null",
        )
    sizes: NDArray[np.int64] = pc.binary_length(body).to_numpy()
    if not sizes.all():
        rows.refuse((sizes == 0).argmax(), "expected a body of at least 1 byte, found an empty one")
    if int(sizes.max(initial=0)) > message_size_max:
        row = sizes.argmax()
        rows.refuse(
            row,
            f"expected a body of at most {message_size_max} bytes (maxMessageSize), found {sizes[row]} bytes",
        )
    return body, sizes


def compress_bodies(
    body: pa.LargeBinaryArray, sizes: NDArray[np.int64], compression: Compression | None
) -> tuple[pa.LargeBinaryArray, NDArray[np.int64]]:
    """The stored bodies and their compression bits of the sys flag.

    As in a client, a large body is stored compressed even if that makes it larger.
    """
    flags = np.zeros(len(sizes), np.int64)
    if compression is None:
        return body, flags
    large = sizes >= compression.size_min
    if not large.any():
        return body, flags
    flags[large] = compression_flag(compression.type)
    mask = pa.array(large)
    packed = [compress(raw, compression.type, compression.level) for raw in body.filter(mask).to_pylist()]
    return pc.replace_with_mask(body, mask, pa.array(packed, _KIND)), flags
