"""The exceptions of `store_format` and `rmq_spark`. All are a `StoreError`.

Each class is also an exception of the standard library (`ValueError`, `LookupError`, `OSError` ...) and can
be pickled, because Spark sends errors between processes. A message says where the error is, what was
expected, what was found and, if the user can act, what to do. The text of each error is escaped as a whole
(`display.text.shown`), so that a name from a store cannot reach a terminal through it.
"""

from __future__ import annotations

from store_format.display.text import shown

__all__ = [
    "ChecksumError",
    "CorruptStoreError",
    "FileReplacedError",
    "IllegalMessageError",
    "InvalidReceiptHandleError",
    "OffsetOutOfRangeError",
    "OptionError",
    "StoreError",
    "StoreInUseError",
    "StoreNotFoundError",
    "StorePermissionError",
    "StoreUnreachableError",
    "StoreWriteError",
    "TruncatedRecordError",
    "UnsupportedFormatError",
]


class StoreError(Exception):
    """The base class of all errors of this project.

    `member` is the path of the store that is left out of a directory of stores by this error; else "".
    """

    member = ""

    def __str__(self) -> str:
        return shown(super().__str__())


class OptionError(StoreError, ValueError):
    """An option is unknown, malformed or contradicts another option. The message names the valid values."""


class IllegalMessageError(StoreError, ValueError):
    """A message to write breaks a limit of RocketMQ's client or broker. The message names topic and limit."""


class InvalidReceiptHandleError(StoreError, ValueError):
    """A receipt handle does not name an invisible message (RocketMQ's INVALID_RECEIPT_HANDLE).

    `handle` is the handle. `problem` is the reason: the handle has expired, is unknown, or is malformed.
    """

    def __init__(self, handle: str, problem: str) -> None:
        super().__init__(handle, problem)  # the arguments of __init__: pickle needs them
        self.handle = handle
        self.problem = problem

    def __str__(self) -> str:
        return shown(f"INVALID_RECEIPT_HANDLE: {self.handle!r} {self.problem}")


class CorruptStoreError(StoreError, ValueError):
    """Bytes of a store file do not have the expected layout.

    `file` is the store file and `position` the byte in the file (decimal). `expected` and `found` are short
    phrases, with magic codes in hex.
    """

    def __init__(self, file: str, position: int, expected: str, found: str) -> None:
        super().__init__(file, position, expected, found)  # the arguments of __init__: pickle needs them
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return shown(f"{self.file} at byte {self.position}: expected {self.expected}, found {self.found}")


class TruncatedRecordError(CorruptStoreError):
    """A record or a file ends before the length that it stores."""


class ChecksumError(CorruptStoreError):
    """The layout is right, but the CRC of the bytes is not the stored CRC."""


class FileReplacedError(StoreError, OSError):
    """A store file became shorter, or another file took its name, while it was read."""


class StoreInUseError(StoreError, RuntimeError):
    """Another process holds the store's lock. The message names the process if the system shows it."""


class OffsetOutOfRangeError(StoreError, LookupError):
    """The store has no message at this offset: retention deleted it, or it is not written yet."""


class StoreNotFoundError(StoreError, LookupError):
    """A path does not exist or is not a store directory. The message says what a store directory contains."""


class StorePermissionError(StoreError, PermissionError):
    """The user may not read a file or directory of a store. The cause has the errno."""


class StoreUnreachableError(StoreError, ConnectionError):
    """Object storage does not answer, or not as expected. The message has no part of a signed request."""


class StoreWriteError(StoreError, OSError):
    """A store file cannot be written: disk full, I/O error, no permission. The cause has the errno."""


class UnsupportedFormatError(StoreError, NotImplementedError):
    """This project does not support the kind of store or record. The message names the broker's setting."""
