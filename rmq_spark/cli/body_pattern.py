"""Bodies that `find --body` selects with --ignore-case or --regex."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from store_format.errors import OptionError


@dataclass(frozen=True, slots=True)
class BodyPattern:
    """Bodies that contain a text, or a match of a regular expression of RE2.

    Bodies are compared as UTF-8. Raises OptionError for a text that is no regular expression.
    """

    text: str
    ignore_case: bool
    is_regex: bool

    def __post_init__(self) -> None:
        try:
            self.mask(pa.array([b""], pa.large_binary()))
        except pa.ArrowInvalid as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            raise OptionError(f"--body: expected a regular expression (RE2), found {reason}") from error

    def mask(self, bodies: pa.LargeBinaryArray) -> pa.BooleanArray:
        """Which bodies match."""
        texts = bodies.cast(pa.large_string(), safe=False)  # bytes that are not UTF-8 match nothing
        match = pc.match_substring_regex if self.is_regex else pc.match_substring
        return match(texts, self.text, ignore_case=self.ignore_case)
