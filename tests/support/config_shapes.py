"""The shapes in which people, editors, backups and power losses leave the files of `config/`.

`shapes` gives the bytes of each shape of each file. What RocketMQ's own managers hold after they loaded a
shape, with a good `.bak` beside it, is in `tests/vectors/config_shapes.json`: `tests/interop/test_config.py`
asks the managers again, and writes the file if RMQLOG_RECORD=1 is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "vectors" / "config_shapes.json"

# Of each file the class that loads it, the field with what it loaded, and a text: # is a number, 8 in the
# file and 5 in its .bak.
FILES = {
    "consumerOffset.json": (
        "broker.offset.ConsumerOffsetManager",
        "offsetTable",
        '{"dataVersion":{"counter":5},"offsetTable":{"T@G":{0:#}}}',
    ),
    "lmqConsumerOffset.json": (
        "broker.offset.LmqConsumerOffsetManager",
        "lmqOffsetTable",
        '{"dataVersion":{"counter":5},"offsetTable":{"T@G":{0:1}},"lmqOffsetTable":{"%LMQ%a@%LMQ%a":#}}',
    ),
    "topics.json": (
        "broker.topic.TopicConfigManager",
        "topicConfigTable",
        (
            '{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":9},"topicConfigTable":{"T":{"order":false,'
            '"perm":6,"readQueueNums":#,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
            '"writeQueueNums":4}}}'
        ),
    ),
    "subscriptionGroup.json": (
        "broker.subscription.SubscriptionGroupManager",
        "subscriptionGroupTable",
        (
            '{"dataVersion":{"counter":1},"subscriptionGroupTable":{"G":{"groupName":"G","consumeEnable":true,'
            '"retryMaxTimes":#,"retryQueueNums":1,"brokerId":0}}}'
        ),
    ),
    "delayOffset.json": (
        "broker.schedule.DelayOffsetSerializeWrapper",
        "offsetTable",
        '{"dataVersion":{"counter":9},"offsetTable":{3:#}}',
    ),
    "consumerOrderInfo.json": (
        "broker.pop.orderly.QueueLevelConsumerManager",
        "table",
        '{"table":{"T@G":{0:{"popTime":#,"i":60000,"o":[5,1],"l":0,"cm":0}}}}',
    ),
    "topicQueueMapping.json": (
        "broker.topic.TopicQueueMappingManager",
        "topicQueueMappingTable",
        (
            '{"topicQueueMappingInfoMap":{"T":{"bname":"b","currIdMap":{},"dirty":false,"epoch":#,"hostedQueues":'
            '{0:[{"gen":0,"queueId":0,"bname":"b","logicOffset":0,"startOffset":0,"endOffset":-1,"timeOfStart":-1,'
            '"timeOfEnd":-1}]},"scope":"__global__","topic":"T","totalQueues":1}},"dataVersion":{"counter":1}}'
        ),
    ),
    "messageRequestMode.json": (
        "broker.loadbalance.MessageRequestModeManager",
        "messageRequestModeMap",
        (
            '{"messageRequestModeMap":{"T":{"G":{"topic":"T","consumerGroup":"G","mode":"POP",'
            '"popShareQueueNum":#}}}}'
        ),
    ),
    "timermetrics": (
        "store.timer.TimerMetrics",
        "timingCount",
        '{"dataVersion":{"counter":1},"timingCount":{"T":{"count":#,"timeStamp":1}}}',
    ),
    "transactionMetrics": (
        "broker.transaction.TransactionMetrics",
        "transactionCounts",
        '{"dataVersion":{"counter":1},"transactionCount":{"T":{"count":#,"timeStamp":1}}}',
    ),
}
OLD_CLASSES = {  # of 4.9.7, which has no other files
    **{name: FILES[name][0] for name in list(FILES)[:4]},
    "delayOffset.json": "store.schedule.DelayOffsetSerializeWrapper",
}
# members that a table has for each entry, in Java's spelling; a topic and a group have the name of their key
_COMPARED = {
    "topics.json": "readQueueNums writeQueueNums perm order topicSysFlag topicFilterType",
    "subscriptionGroup.json": "retryMaxTimes retryQueueNums consumeEnable brokerId",
    "consumerOrderInfo.json": "popTime",
    "topicQueueMapping.json": "epoch bname totalQueues",
    "messageRequestMode.json": "mode popShareQueueNum",
    "timermetrics": "count timeStamp",
    "transactionMetrics": "count timeStamp",
}
_NUMBERS = {
    **{
        text: text
        for text in [
            "0",
            "-1",
            "8.0",
            "8.5",
            "8.",
            "8e0",
            "8E2",
            "80e-1",
            "+8",
            "08",
            "0x8",
            "8L",
            "8l",
            "8D",
            "8F",
            "8.0D",
            "8_0",
        ]
    },
    **{f'"{text}"': f'"{text}"' for text in ["8", "8.0", "+8", "-8", " 8 ", "x", "8L", "1,000", "08", "8e0"]},
    **{text: text for text in ["'8'", '""', '"null"', "null", "true", "false", "x", "NaN", "[]"]},
    **{str(number): str(number) for number in (2**31, 2**63 - 1, 2**63, 10**30)},
}


def shapes(name: str) -> dict[str, bytes]:
    """The bytes of the file by the name of their shape."""
    text = FILES[name][2]
    whole = text.replace("#", "8").encode()
    numbers = {f"number {label}": text.replace("#", number).encode() for label, number in _NUMBERS.items()}
    return dict(_around(whole)) | dict(_within(whole)) | numbers | _MORE.get(name, {})


def backup(name: str) -> bytes:
    return FILES[name][2].replace("#", "5").encode()


def _around(whole: bytes) -> Iterator[tuple[str, bytes]]:
    yield "whole", whole
    for label, head in {
        "NUL": b"\0\0",
        "BOM": b"\xef\xbb\xbf",
        "two BOM": b"\xef\xbb\xbf" * 2,
        "line comment": b"// x\n",
        "comment": b"/** x **/",
        "comments": b"/*a*//*b*/ // c\n",
        "hash": b"# x\n",
        "no end": b"/* x ",
        "U+00A0": b"\xc2\xa0",
        "0x1A": b"\x1a",
    }.items():
        yield f"{label} before", head + whole
    for label, tail in {
        "NUL": b"\0" * 50,
        "a block of NUL": b"\0" * (4096 - len(whole)),
        "line comment": b"// x",
        "comment": b"/* x */",
        "comma": b",",
        "U+00A0": b"\xc2\xa0",
        "U+3000": b"\xe3\x80\x80",
        "0x1A": b"\x1a",
        "0x1A and text": b"\x1axyz",
        "NUL and text": b"\0xyz",
        "0x01": b"\x01",
        "blanks": b" \r\n\t\n",
        "semicolon": b";",
        "word": b"x",
        "object": b"{}",
        "brace": b"}",
        "stale text": b":8}}",
    }.items():
        yield f"{label} behind", whole + tail
    yield "NUL on both sides", b"\0" * 9 + whole + b"\0" * 9
    for label, data in {
        "null": b"null",
        "blank": b"  \n",
        "array": b"[]",
        "string": b'"x"',
        "a number": b"8",
        "true": b"true",
        "zeros": b"\0" * 200,
        "nothing": b"",
        "in an array": b"[" + whole + b"]",
        "cut by one": whole[:-1],
        "cut by four": whole[:-4],
        "half": whole[: len(whole) // 2],
        "half, then NUL": whole[: len(whole) // 2] + b"\0" * 100,
        "UTF-16": whole.decode().encode("utf-16"),
    }.items():
        yield label, data


def _within(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for label, old, new in (
        *(("single quotes", b'"', b"'"), ("commas before braces", b"}", b",}"), ("CRLF", b",", b",\r\n")),
        *(("form feeds", b",", b"\f,"), ("backspaces", b",", b",\b")),
    ):
        yield label, whole.replace(old, new)
    yield "a comma before the last brace", whole[:-1] + b",}"
    yield "a comment before the last brace", whole[:-1] + b"/* x */}"
    for label, old, new in (
        *(("two commas", b",", b",,"), ("a comma first", b"{", b"{,"), ("no comma", b",", b" ")),
        *(("a comment before a comma", b",", b"/*x*/,"), ("a comment behind a comma", b",", b", // x\n")),
        *(("a comment before a colon", b":", b"/*x*/:"), ("a comment behind a colon", b":", b":/*x*/")),
        *(("a comment behind a brace", b"{", b"{/*x*/"), ("a Chinese comment", b",", ", // 注释\n".encode())),
        *(("U+00A0 before a comma", b",", b"\xc2\xa0,"), ("VT behind a comma", b",", b",\v")),
        *(("0x1A behind a comma", b",", b",\x1a"), ("a NUL before a colon", b":", b"\0:")),
        *(("a tab in a string", b'"T', b'"T\t'), ("\\x41 in a string", b'"T', b'"T\\x41')),
        *(("\\v in a string", b'"T', b'"T\\v'), ("\\q in a string", b'"T', b'"T\\q')),
        ("bytes of Latin-1", b'"T', b'"T\xe9'),
    ):
        yield label, whole.replace(old, new, 1)
    yield "unknown members", whole[:-1] + b',"x":[1,{"y":2}],"z":null}'
    yield "an unknown member with bare keys", whole[:-1] + b',"x":{0:8}}'
    yield "keys without quotes", b"{more:1," + whole[1:]
    for label, value in (("null", b"null"), ("text", b'"x"'), ("array", b"[]")):
        if b"dataVersion" in whole:
            start = whole.index(b'"dataVersion":') + 14
            stop = whole.index(b"}", start) + 1
            data = whole[:start] + value + whole[stop:]
            if value == b"null":  # a broker puts entries that the `.bak` lacks before it refuses the file
                data = data.replace(b'{"T', b'{"U').replace(b'{"G"', b'{"H"')
            yield f"dataVersion: {label}", data


def _offsets(text: str) -> bytes:
    return b'{"offsetTable":{%s}}' % text.encode()


def _topics(text: str) -> bytes:
    topic = '"T":{"order":false,"perm":6,"readQueueNums":8,"topicName":"T","writeQueueNums":8%s}'
    return ('{"dataVersion":{"counter":2},"topicConfigTable":{' + topic % text + "}}").encode()


_MORE = {
    "consumerOffset.json": {
        "a null map": _offsets('"T@G":{0:8},"U@G":null'),
        "a null offset": _offsets('"T@G":{0:8},"U@G":{0:null}'),
        "a table of null": b'{"offsetTable":null}',
        "no table": b'{"dataVersion":{}}',
        "no members": b"{}",
        "another case": _offsets('"T@G":{0:8}').replace(b"offsetT", b"OffsetT"),
        "underscores": _offsets('"T@G":{0:8}').replace(b"offsetT", b"offset_t"),
        "twice": b'{"offsetTable":{"T@G":{0:3}},"offsetTable":{"T@G":{0:8}}}',
        "a large key": _offsets('"T@G":{4294967296:8}'),
        "keys": _offsets('"T@S":{"0":"6"},"T@Q":{-1:3,"7":4,+2:1},"@G":{0:1},"NoAt":{0:1},"T@G@X":{}'),
        "an array as map": _offsets('"T@G":[8]'),
        "an empty string as map": _offsets('"T@G":""'),
        "members of 5.5": b'{"dataVersion":{"counter":565102,"stateVersion":34,"timestamp":1777529309588},'
        b'"groupTopicMap":{"G":["%RETRY%G","T"]},"offsetTable":{"T@G":{0:8}},"pullOffsetTable":{"T@G":{0:7}},'
        b'"resetOffsetTable":{},"topicGroupMap":{}}',
    },
    "delayOffset.json": {"a null offset": _offsets("3:8,4:null"), "no members": b"{}"},
    "topics.json": {
        "of 3.x": b'{"dataVersion":{"counter":2,"timestatmp":1393729865073},"topicConfigTable":{"T":{'
        b'"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T","writeQueueNums":8}}}',
        "a null topic": _topics("").replace(b"}}}", b'},"N":null}}'),
        "nothing of a topic": b'{"topicConfigTable":{"T":{}}}',
        "no members": b"{}",
        **{
            f"{name}: {value}": _topics(f',"{name}":{value}')
            for name, values in {
                "attributes": ["null", "[]", '"x"', '""', "5", '{"a":null}', '{"a":1}'],
                "topicFilterType": (
                    ["null", "0", "1", "2", "true", "{}", '"WHAT"', '"multi_tag"', "'SINGLE_TAG'", '"1"']
                ),
                "order": ["null", "0", "1", "2", '"true"', '"TRUE"', '"x"', '""', "[]"],
                "perm": ["null", '"6"', '"RW-"', "6.5"],
                "topicName": ["null", "5", '"other"'],
            }.items()
            for value in values
        },
    },
    "subscriptionGroup.json": {
        "a null group": b'{"subscriptionGroupTable":{"H":null}}',
        "forbiddenTable with null": b'{"forbiddenTable":{"G":null},"subscriptionGroupTable":{"G":{}}}',
        "consumeEnable: null": b'{"subscriptionGroupTable":{"G":{"consumeEnable":null}}}',
    },
}


def table_of(name: str, value: Any) -> Any:
    """What is compared of a table, the managers' or the project's: the members that a broker uses."""
    value = _plain(value)
    if not isinstance(value, dict):
        return {}  # a broker without a table fails later
    if name == "subscriptionGroup.json":  # a broker adds its own
        value = {key: each for key, each in value.items() if key in ("G", "H")}
    members = _COMPARED.get(name, "").split()
    return _cut(value, members) if members else value


def _cut(value: Any, members: list[str]) -> Any:
    if isinstance(value, dict) and not set(members) & set(value):
        return {key: _cut(each, members) for key, each in value.items()}
    if not isinstance(value, dict):
        return value
    found = {key: value[key] for key in members if key in value}
    return found | ({"count": 0} if found.get("count", 0) is None else {})  # a null count counts nothing


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "items"):
        pairs = {_java(each.name): getattr(value, each.name) for each in fields(value)}
        return {key: _plain(each) for key, each in pairs.items()}
    if hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


def _java(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


def answers() -> dict[str, dict[str, list[Any]]]:
    """By file and shape: what 5.5.0 holds, and 4.9.7 if that is something else."""
    found: dict[str, dict[str, list[Any]]] = json.loads(VECTORS.read_text())
    return found


def recorded(found: dict[str, dict[str, list[Any]]]) -> str:
    """The text of the file with the `answers`, a shape a line."""
    lines = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(label)}: {json.dumps(tables)}" for label, tables in each.items())
        + "\n}"
        for name, each in found.items()
    )
    return "{" + ",\n".join(lines) + "}\n"


def rows_of_old_releases() -> list[str]:
    """The rows of docs/compatibility.md: the shapes that 4.9.7 reads otherwise than 5.5.0."""
    found: dict[str, tuple[list[str], str, str]] = {}
    for name, tables in answers().items():
        for label, answer in tables.items():
            if len(answer) == 2:
                new, old = (_read_as(name, label, table, tables) for table in answer)
                found.setdefault(label, ([], new, old))[0].append(f"`{name}`")
    return [
        f"| `{label}`{'' if len(names) == len(OLD_CLASSES) else ' in ' + ', '.join(names)} | {new} | {old} |"
        for label, (names, new, old) in found.items()
    ]


def _read_as(name: str, label: str, table: Any, tables: dict[str, list[Any]]) -> str:
    if table == tables["nothing"][0]:  # of an empty file the .bak counts
        return "the `.bak`"
    if table == tables["null"][0]:
        return "nothing"
    if label.startswith("number ") and table != tables["whole"][0]:
        text = json.dumps(table)
        return "the file: " + next(each for each in ("true", "16", "1", "0") if each in text)
    return (
        "the file, otherwise"
        if label.startswith(("perm: null", 'topicFilterType: "1', "consumeEnable"))
        else "the file"
    )
