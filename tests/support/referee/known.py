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
    "zeros in a queue after retention": (
        "a batch read: says that retention has deleted Orders-0 offset 83, which is kept",
        "a batch read with failOnDataLoss=false: with a warning leaves out 5 of 1003 whole messages",
        (
            "a batch read with failOnDataLoss=false: says that retention has deleted Orders-0 offset "
            "83, which is kept"
        ),
        "export: says that retention has deleted Orders-0 offset 83, which is kept",
        (
            "export --skip-damage: refuses: exit code 1: Orders-0 offset 83: the message at commitlog "
            "0 was deleted (retention); the log now begins at 196608. Start later, or set "
            "failOnDataLoss=false to continue without these messages"
        ),
        "export --skip-damage: says that retention has deleted Orders-0 offset 83, which is kept",
        "a write: leaves 5 entries of whole messages missing or wrong",
        ("a batch read after a write: says that retention has deleted Orders-0 offset 83, which is kept"),
        "verify says 1003 messages readable, and export --skip-damage refuses",
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
    "lost directory of an expired queue": (
        (
            "verify: says 'sound: 734 messages readable, none lost; nothing has to be done', and it "
            "is not: consumequeue/Old is lost"
        ),
        "lag: says -60 for G in Old-0, and 0 messages are unread",
        "a write: gives Old-0 the offset 0, and the next one was 60",
    ),
    "lost first queue file": ("a write: leaves 20 entries of whole messages missing or wrong",),
    "batch queue lacks entries": (
        (
            "a write refuses what recover mends: UnsupportedFormatError: STORE: a broker crashed, and "
            "the batch consume queue Inner-0 (queue.type=BatchCQ) lacks 1 entries. Nothing was "
            "changed. Make the entries with rmqlog recover STORE --apply, then write again"
        ),
    ),
    "directory for a commitlog file": (
        (
            "a batch read with failOnDataLoss=false: refuses: CorruptStoreError: "
            "STORE/commitlog/00000000000000196608 at byte 0: expected a regular file, found a "
            "directory, a pipe, a socket or a device"
        ),
        (
            "export --skip-damage: refuses: exit code 3: STORE/commitlog/00000000000000196608 at byte "
            "0: expected a regular file, found a directory, a pipe, a socket or a device"
        ),
        (
            "recover --into NEW --salvage --apply: refuses: exit code 3: "
            "STORE/commitlog/00000000000000196608 at byte 0: expected a regular file, found a "
            "directory, a pipe, a socket or a device"
        ),
        "verify says 878 messages readable, and export --skip-damage refuses",
    ),
    "first commitlog file is empty": (
        (
            "a batch read with failOnDataLoss=false: refuses: CorruptStoreError: "
            "STORE/commitlog/00000000000000196608 at byte 0: expected a file of 65536 bytes, like the "
            "others, found 0 bytes"
        ),
        (
            "export --skip-damage: refuses: exit code 3: STORE/commitlog/00000000000000196608 at byte "
            "0: expected a file of 65536 bytes, like the others, found 0 bytes"
        ),
        (
            "recover --into NEW --salvage --apply: refuses: exit code 3: "
            "STORE/commitlog/00000000000000196608 at byte 0: expected a file of 65536 bytes, like the "
            "others, found 0 bytes"
        ),
        "verify says 878 messages readable, and export --skip-damage refuses",
    ),
    "lost last commitlog file": (
        "scan: does not say that 78 messages are lost",
        "find 7F00000161C75FFD2B27687FB6A102F3: does not say that 2 messages are lost",
        "find 7F00000161C75FFD2B27687FAFF60074: does not say that 2 messages are lost",
        "find 7F00000161C75FFD2B27687FB5010193: does not say that 2 messages are lost",
        "info: counts 1003 messages, and 925 can be read",
        "ls: counts 1003 messages, and 925 can be read",
        (
            "recover --into NEW --salvage --apply: refuses: exit code 3: "
            "STORE/commitlog/00000000000000524288 at byte 65536: expected a commitlog file for "
            "physical offset 631769, to which consume queue %RETRY%CG_tags2-0 points at offset 0, "
            "found no later file, and the commitlog ends at 589580. Nothing was written. The copy of "
            "the store may be incomplete: copy the missing commitlog files, or give all directories "
            "of the commitlog (commit_log_paths). Or give up the messages behind 589580: rmqlog "
            "recover STORE --cut-after-damage --apply"
        ),
        "a batch read after the advice: does not say that 78 messages are lost",
        (
            "verify after the advice: says 'sound: 925 messages readable, none lost; nothing has to "
            "be done', and 78 messages are lost"
        ),
        (
            "verify after the advice: says 'sound: 925 messages readable, none lost; nothing has to "
            "be done', and it is not: 78 messages are lost"
        ),
        "verify after the advice: ends with exit code 0, and 78 messages are lost",
    ),
    "lost first commitlog file": (
        (
            "verify: says 'sound: 878 messages readable, none lost; nothing has to be done', and not "
            "that the log begins at 262144"
        ),
        (
            "verify after a write: says 'sound: 896 messages readable, none lost; nothing has to be "
            "done', and not that the log begins at 262144"
        ),
        (
            "verify after recover --into NEW --salvage --apply: says 'sound: 878 messages readable, "
            "none lost; nothing has to be done', and not that the log begins at 262144"
        ),
        (
            "verify after recover --apply: says 'sound: 878 messages readable, none lost; nothing has "
            "to be done', and not that the log begins at 262144"
        ),
    ),
    "flipped topic": (
        "scan: returns 1 messages that the store was never given",
        "scan: does not say that 1 messages are lost",
        "find id-1008: returns 1 messages that the store was never given",
        "find id-1008: does not say that 1 messages are lost",
        (
            "verify: says 'damaged in 6 places: 1,003 messages readable, the commitlog has no damaged "
            "byte', and 1002 messages of the commitlog are whole"
        ),
        (
            "verify: says 'damaged in 6 places: 1,003 messages readable, the commitlog has no damaged "
            "byte', and 1 messages are lost"
        ),
        (
            "verify after a write: says 'damaged in 6 places: 1,021 messages readable, the commitlog "
            "has no damaged byte', and 1020 messages of the commitlog are whole"
        ),
        ("a batch read after recover --into NEW --salvage --apply: does not say that 1 messages are lost"),
        (
            "verify after recover --into NEW --salvage --apply: says 'sound: 1,003 messages readable, "
            "none lost; nothing has to be done', and 1002 messages of the commitlog are whole"
        ),
        (
            "verify after recover --into NEW --salvage --apply: says 'sound: 1,003 messages readable, "
            "none lost; nothing has to be done', and 1 messages are lost"
        ),
        (
            "verify after recover --into NEW --salvage --apply: says 'sound: 1,003 messages readable, "
            "none lost; nothing has to be done', and it is not: 1 messages are lost"
        ),
        ("verify after recover --into NEW --salvage --apply: ends with exit code 0, and 1 messages are lost"),
        (
            "verify after recover --apply: says 'damaged in 1 place: 1,003 messages readable, the "
            "commitlog has no damaged byte', and 1002 messages of the commitlog are whole"
        ),
        (
            "verify after recover --apply: says 'damaged in 1 place: 1,003 messages readable, the "
            "commitlog has no damaged byte', and 1 messages are lost"
        ),
        (
            "verify after the advice: says 'damaged in 1 place: 1,003 messages readable, the "
            "commitlog has no damaged byte', and 1002 messages of the commitlog are whole"
        ),
        (
            "verify after the advice: says 'damaged in 1 place: 1,003 messages readable, the "
            "commitlog has no damaged byte', and 1 messages are lost"
        ),
    ),
    "flipped body": (
        (
            "verify after recover --into NEW --salvage --apply: says 'sound: 1,003 messages readable, "
            "none lost; nothing has to be done', and 1002 messages of the commitlog are whole"
        ),
        (
            "verify after the advice: says 'sound: 1,003 messages readable, none lost; nothing has to "
            "be done', and 1002 messages of the commitlog are whole"
        ),
    ),
    "flipped last body": (
        "a write: gives V-0 the offset 29, and the next one was 30",
        ("a batch read after recover --into NEW --salvage --apply: does not say that 1 messages are lost"),
        (
            "verify after recover --into NEW --salvage --apply: says 'damaged in 1 place: 129 "
            "messages readable, the commitlog has no damaged byte', and 1 messages are lost"
        ),
        (
            "verify after recover --apply: says 'damaged in 1 place: 129 messages readable, the "
            "commitlog has no damaged byte' of a sound store"
        ),
        "a batch read after the advice: does not say that 1 messages are lost",
        (
            "verify after the advice: says 'damaged in 1 place: 129 messages readable, the commitlog "
            "has no damaged byte', and 1 messages are lost"
        ),
    ),
    "damage without queues": (
        (
            "verify: says 'damaged in 3 places: 129 messages readable, messages in 192 damaged or "
            "missing bytes are lost', and 1 messages are lost"
        ),
        (
            "verify after recover --into NEW --salvage --apply: says 'sound: 130 messages readable, "
            "none lost; nothing has to be done', and 129 messages of the commitlog are whole"
        ),
        (
            "verify after the advice: says 'sound: 130 messages readable, none lost; nothing has to "
            "be done', and 129 messages of the commitlog are whole"
        ),
    ),
}
