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
    ),
    "created again and lost": (
        (
            "verify: says 'damaged in 33 places: 171 messages readable, 4 messages lost, with the last "
            "commitlog files: copy those back if you have them', and 34 messages are lost"
        ),
        "a batch read after recover --into NEW --salvage --apply: returns 30 messages of a deleted topic",
        "a batch read after the advice: returns 30 messages of a deleted topic",
    ),
}
