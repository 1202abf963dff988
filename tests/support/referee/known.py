"""What contradicts today: the sentences of `rules` about each case, and nothing else.

A contradiction that was ended is deleted here. The state machine leaves out what cases with sentences do.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[str, ...]] = {
    "zeros in the middle of a queue": (
        "a write: gives T-0 the offset 45, and the next one was 100",
        "a write: overwrites 4 valid entries of consume queues",
        "a write: leaves 6 entries of whole messages missing or wrong",
        "a batch read after a write: silently leaves out 6 of 142 whole messages",
        (
            "verify after a write: says 'sound: 142 messages readable, none lost; nothing has to be "
            "done', and it is not: 6 entries of whole messages are missing or wrong"
        ),
    ),
    "zeros in a queue after retention": ("a write: leaves 5 entries of whole messages missing or wrong",),
    "flipped queue entry": ("a write: leaves 5 entries of whole messages missing or wrong",),
    "flipped size in a queue entry": (
        "a write: gives T-0 the offset 45, and the next one was 100",
        "a write: overwrites 14 valid entries of consume queues",
        "a write: leaves 18 entries of whole messages missing or wrong",
    ),
    "lost tail of a queue": (
        "a batch read: silently leaves out 5 of 100 whole messages",
        "a batch read with failOnDataLoss=false: silently leaves out 5 of 100 whole messages",
        "export: silently leaves out 5 of 100 whole messages",
        "export --skip-damage: silently leaves out 5 of 100 whole messages",
        "info: counts 95 messages, and 100 can be read",
        "ls: counts 95 messages, and 100 can be read",
        "lag: says 90 for G in T-0, and 95 messages are unread",
        "a write: gives T-0 the offset 95, and the next one was 100",
        "a write: leaves 5 entries of whole messages missing or wrong",
        "a batch read after a write: silently leaves out 5 of 106 whole messages",
        (
            "verify after a write: says 'sound: 106 messages readable, none lost; nothing has to be "
            "done', and it is not: 5 entries of whole messages are missing or wrong"
        ),
    ),
    "lost tail of a queue after a power loss": (
        "a batch read: silently leaves out 5 of 100 whole messages",
        "a batch read with failOnDataLoss=false: silently leaves out 5 of 100 whole messages",
        "export: silently leaves out 5 of 100 whole messages",
        "export --skip-damage: silently leaves out 5 of 100 whole messages",
        "info: counts 95 messages, and 100 can be read",
        "ls: counts 95 messages, and 100 can be read",
        "lag: says 90 for G in T-0, and 95 messages are unread",
        "a write: gives T-0 the offset 95, and the next one was 100",
        "a write: leaves 5 entries of whole messages missing or wrong",
        "a batch read after a write: silently leaves out 5 of 106 whole messages",
        (
            "verify after a write: says 'sound: 106 messages readable, none lost; nothing has to be "
            "done', and it is not: 5 entries of whole messages are missing or wrong"
        ),
        "a batch read after flush: silently leaves out 5 of 100 whole messages",
    ),
    "lost directory of an expired queue": ("a write: gives Old-0 the offset 0, and the next one was 60",),
    "lost first queue file": ("a write: leaves 20 entries of whole messages missing or wrong",),
    "batch queue lacks entries": (
        (
            "a write refuses what recover mends: UnsupportedFormatError: STORE: a broker crashed, and "
            "the batch consume queue Inner-0 (queue.type=BatchCQ) lacks 1 entries. Nothing was "
            "changed. Make the entries with rmqlog recover STORE --apply, then write again"
        ),
    ),
    "flipped last body": ("a write: gives V-0 the offset 29, and the next one was 30",),
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
}
