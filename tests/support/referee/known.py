"""What contradicts today: the sentences of `rules` about each case, and nothing else.

A contradiction that was ended is deleted here. The state machine leaves out what cases with sentences do.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[str, ...]] = {
    "flipped first size of a lost queue": (
        "a batch read after a write: does not say that 1 messages are lost",
        "a batch read after recover --apply: does not say that 1 messages are lost",
    ),
    "flipped size in a lost queue": (
        "a batch read after a write: does not say that 1 messages are lost",
        "a batch read after recover --apply: does not say that 1 messages are lost",
        (
            "verify after recover --apply: says 'damaged in 1 place: 129 messages readable, messages in 192 "
            "damaged or missing bytes are lost', and 1 messages are lost"
        ),
    ),
}
