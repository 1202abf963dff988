"""What contradicts today: the sentences of `rules` about each case, and nothing else.

A contradiction that was ended is deleted here. The state machine leaves out what cases with sentences do.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[str, ...]] = {
    "flipped first size of a lost queue": (
        "a batch read after a write: does not say that 1 messages are lost",
        "a batch read after recover --apply: does not say that 1 messages are lost",
    ),
    "flipped length that a running query has not read": (
        "a running stream with failOnDataLoss=false: silently leaves out 2 of 139 whole messages",
        "a running stream with failOnDataLoss=false: does not say that 1 messages are lost",
        "a running stream: silently leaves out 2 of 139 whole messages",
        "a running stream: does not say that 1 messages are lost",
        "a group with failOnDataLoss=false: silently leaves out 2 of 139 whole messages",
        "a group with failOnDataLoss=false: does not say that 1 messages are lost",
    ),
    "expired queue": (
        (
            "verify after recover --into NEW --salvage --apply: says 'damaged in 1 place: 134 messages "
            "readable, the commitlog has no damaged byte; the log begins at 24576: earlier messages were "
            "deleted (by retention or by hand)' of a sound store"
        ),
    ),
    "flipped last entry": (
        "a batch read: with a warning leaves out 1 of 130 whole messages",
        "a batch read with failOnDataLoss=false: with a warning leaves out 1 of 130 whole messages",
        "export: with a warning leaves out 1 of 130 whole messages",
        "export --skip-damage: with a warning leaves out 1 of 130 whole messages",
        "info: counts 129 messages, and 130 can be read",
        "ls: counts 129 messages, and 130 can be read",
        "lag: says 94 for G in T-0, and 95 messages are unread",
        "a write: gives T-0 the offset 99, and the next one was 100",
        "a write: leaves 1 entries of whole messages missing or wrong",
        "a batch read after a write: silently leaves out 1 of 142 whole messages",
        (
            "verify after a write: says 'sound: 142 messages readable, none lost; nothing has to be "
            "done', and it is not: 1 entries of whole messages are missing or wrong"
        ),
    ),
}
