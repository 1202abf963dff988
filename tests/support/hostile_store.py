"""A small store in which every text is hostile: names, tags, keys, properties and bodies, and one body of 4
MB.

What is meant for a terminal, what is meant for a browser, what turns the direction of writing, and bytes that
are no UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.support import oracle
from tests.support.oracle import Message
from tests.support.store_files import write_log, write_queue

HOSTILE_TOPIC = "T\x1b[2J\u202e<svg onload=x>"  # a directory has to have this name
HOSTILE_ID = "U\x1b]0;x\x07"
HOSTILE_PROPERTIES = [
    ("TAGS", "t\x1b[31m<b>"),
    ("KEYS", "k\u202e \x07 </td>"),
    ("UNIQ_KEY", HOSTILE_ID),
    ("<script>alert(1)<", '\x9b1m" onmouseover="alert(1)'),
    ("&lt;img src=x onerror=alert(1)>", "</style><script>alert(2)<"),
]
MARKUP_BODY = (
    b"\xff\xfe\x1b[2J</pre></style><script>alert('body')</script><img src=x "
    b'onerror="alert(1)">\xe2\x80\xaetxt.exe\n\r\x00'
)
LARGE_BODY_SIZE = 4 << 20
FILE_SIZE = 8 << 20


def write_hostile_store(root: Path) -> Path:
    """Writes it, and returns `root`."""
    bad = oracle.encode_properties(HOSTILE_PROPERTIES)
    messages = [
        Message(HOSTILE_TOPIC.encode(), MARKUP_BODY, bad, 0, 0),
        Message(HOSTILE_TOPIC.encode(), b"z" * LARGE_BODY_SIZE, b"", 0, 1),
    ]
    write_queue(root, write_log(root, messages, FILE_SIZE), 100, f"{HOSTILE_TOPIC}/0")
    return root


def damage_files(files: Sequence[Path], chance: Random) -> None:
    """Changes some bytes of six of the files, and cuts some of them in half."""
    for path in chance.sample(files, 6):
        data = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 40)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice((len(data), len(data), len(data) // 2))])
