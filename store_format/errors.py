"""Every error this project raises. Whose fault it is decides the class: the caller's, the bytes', or the
world's.

Each class is also the fitting one of the standard library, survives pickling (Spark sends errors between
processes), and its message says where, what was expected, what was found and, where a person can act, what to
do.
"""

from __future__ import annotations

__all__ = [
    "ChecksumError",
    "CorruptStoreError",
    "IllegalMessageError",
    "OffsetOutOfRangeError",
    "OptionError",
    "StoreError",
    "StoreInUseError",
    "StoreNotFoundError",
    "StorePermissionError",
    "StoreWriteError",
    "TruncatedRecordError",
    "UnsupportedFormatError",
]


class StoreError(Exception):
    """The root: catch this to catch everything the project raises on purpose."""


class OptionError(StoreError, ValueError):
    """The caller's options are unknown, malformed or contradict each other. One sentence, with the nearest
    right answer.
    """


class IllegalMessageError(StoreError, ValueError):
    """A message handed to a writer breaks a limit of the client or of the broker. Names the topic and the
    limit.
    """


class CorruptStoreError(StoreError, ValueError):
    """Bytes on disk disagree with the layout.

    `file` is the store file and `position` the byte in it (decimal); `expected` and `found` are short
    phrases, magic codes in hex.
    """

    def __init__(self, file: str, position: int, expected: str, found: str) -> None:
        super().__init__(file, position, expected, found)  # same as the signature: it pickles
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        # A hostile file name must not print escape sequences or line breaks.
        file = "".join(char if char.isprintable() else repr(char)[1:-1] for char in self.file)
        return f"{file} at byte {self.position}: expected {self.expected}, found {self.found}"


class TruncatedRecordError(CorruptStoreError):
    """A record or a file ends before its own length says it should."""


class ChecksumError(CorruptStoreError):
    """The bytes are laid out rightly, but their CRC is not the stored one."""


class StoreInUseError(StoreError, RuntimeError):
    """Another process holds the store's lock. Says who, where the system tells."""


class OffsetOutOfRangeError(StoreError, LookupError):
    """A queue offset that the store does not hold: deleted by retention, or not written yet."""


class StoreNotFoundError(StoreError, LookupError):
    """A path that does not exist or is no store root. Says what a store root looks like and what was there."""


class StorePermissionError(StoreError, PermissionError):
    """This user may not read a file or a directory of a store. Names it, its owner and what to do; the cause
    has the errno.
    """


class StoreWriteError(StoreError, OSError):
    """A file of the store could not be written: disk full, I/O error, no permission. Names the file; the
    cause has the errno.
    """


class UnsupportedFormatError(StoreError, NotImplementedError):
    """A kind of store or record this project does not read or write. Names the broker setting that made it."""
