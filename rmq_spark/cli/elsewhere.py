"""Commands of mqadmin, kcat, rpk and Kafka's scripts, typed as a command of rmqlog, and what answers them.

A store is a directory, and rmqlog connects to no broker: what asks or changes a running broker has no command
here, and the answer names mqadmin's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

# The tool -> its command -> the command of rmqlog for the same question.
BY_TOOL: dict[str, dict[str, str]] = {
    "mqadmin": {
        "brokerStatus": "info STORE",
        "clusterList": "info STORE",
        "statsAll": "ls STORE",
        "topicList": "ls STORE",
        "topicStatus": "ls STORE -l --topic TOPIC",
        "topicRoute": "ls STORE -l --topic TOPIC",
        "topicClusterList": "ls STORE --topic TOPIC",
        "queryCq": "ls STORE -l --topic TOPIC",
        "brokerConsumeStats": "lag STORE -l",
        "consumerProgress": "lag STORE --group GROUP",
        "consumerStatus": "groups STORE --members",
        "consumerConnection": "groups STORE --members",
        "getConsumerConfig": "groups STORE --group GROUP",
        "resetOffsetByTime": "offsets STORE GROUP --topic TOPIC --to-time TIME",
        "skipAccumulatedMessage": "offsets STORE GROUP --topic TOPIC --to-latest",
        "cloneGroupOffset": "offsets STORE GROUP --copy-from GROUP",
        "queryMsgById": "get STORE ID",
        "queryMsgByUniqueKey": "get STORE ID",
        "queryMsgByOffset": "get STORE TOPIC/QUEUE@OFFSET",
        "queryMsgByKey": "find STORE KEY",
        "queryMsgTraceById": "trace STORE ID",
        "printMsg": "head STORE --topic TOPIC",
        "printMsgByQueue": "head STORE --topic TOPIC --queue QUEUE",
        "consumeMessage": "head STORE --topic TOPIC --queue QUEUE --offset OFFSET",
        "updateTopic": "topic STORE TOPIC",
        "updateTopicPerm": "topic STORE TOPIC",
        "deleteTopic": "topic STORE TOPIC --delete",
        "updateSubGroup": "group STORE GROUP",
        "deleteSubGroup": "group STORE GROUP --delete",
        "deleteExpiredCommitLog": "clean STORE --file-reserved-time HOURS",
        "cleanExpiredCQ": "clean STORE --file-reserved-time HOURS",
        "exportMetadata": "groups STORE -o json",
        "exportMetrics": "info STORE -o json",
    },
    "kcat": {
        "-C": "tail STORE -f --topic TOPIC",
        "-L": "ls STORE",
        "-Q": "ls STORE -l",
    },
    "rpk": {
        "consume": "tail STORE -f --topic TOPIC",
        "describe": "ls STORE -l --topic TOPIC",
        "describe topic": "ls STORE -l --topic TOPIC",
        "describe group": "lag STORE -l --group GROUP",
        "list": "ls STORE",
        "cluster": "info STORE",
        "cluster info": "info STORE",
        "cluster metadata": "info STORE",
        "cluster health": "verify STORE",
    },
    "Kafka's scripts": {
        "kafka-topics.sh": "ls STORE",
        "kafka-consumer-groups.sh": "lag STORE -l --group GROUP",
        "kafka-console-consumer.sh": "tail STORE -f --topic TOPIC",
        "kafka-get-offsets.sh": "ls STORE -l --topic TOPIC",
        "kafka-log-dirs.sh": "du STORE --files",
        "kafka-dump-log.sh": "dump STORE TOPIC/QUEUE@OFFSET",
    },
    "a usual word": {
        "queryMessage": "find STORE KEY",
        "topics": "ls STORE",
        "queues": "ls STORE -l",
        "count": "ls STORE",
        "stats": "ls STORE",
        "status": "info STORE",
        "consumers": "groups STORE",
        "fsck": "verify STORE",
        "exporter": "metrics STORE",
        "repair": "recover STORE",
        "cat": "head STORE --topic TOPIC",
        "show": "get STORE ID",
        "grep": "find STORE --body TEXT",
        "search": "find STORE KEY",
        "query": "find STORE KEY",
        "key": "find STORE KEY",
        "keys": "find STORE KEY",
        "id": "get STORE ID",
        "tag": "find STORE --tag TAG",
        "tags": "find STORE --tag TAG",
        "sql": "find STORE --where SQL92",
        "where": "find STORE --where SQL92",
        "history": "trace STORE ID",
        "timeline": "trace STORE ID",
        "retry": "trace STORE ID",
        "retries": "trace STORE ID",
        "dead": "dlq STORE",
        "deadletter": "dlq STORE",
        "deadLetters": "dlq STORE",
        "dead-letters": "dlq STORE",
        "lastMsg": "tail STORE -n 1",
        "last": "tail STORE -n 1",
        "first": "head STORE -n 1",
        "metadata": "info STORE",
        "reset": "offsets STORE GROUP --to-time TIME",
        "consumer-groups": "groups STORE",
    },
}
# The words after `rmqlog`, in lower case -> the command of rmqlog.
OURS: dict[str, str] = {
    word.lower(): ours for commands in BY_TOOL.values() for word, ours in commands.items()
}
# Words without an answer, each with the reason.
_NO_ANSWER: dict[str, str] = {
    "schema": "a store has no schemas of bodies; docs/columns.md has the columns of messages",
}
_OF_A_BROKER = """
    updateTopicList updateSubGroupList
    setConsumeMode updateOrderConf updateStaticTopic remappingStaticTopic cleanUnusedTopic addBroker
    removeBroker updateBrokerConfig getBrokerConfig getNamesrvConfig updateNamesrvConfig updateKvConfig
    deleteKvConfig wipeWritePerm addWritePerm resetMasterFlushOffset sendMessage sendMsgStatus checkMsgSendRT
    clusterRT producerConnection producer allocateMQ haStatus getSyncStateSet getBrokerEpoch
    getControllerMetaData getControllerConfig updateControllerConfig electMaster cleanBrokerMetadata
    startMonitoring exportConfigs exportPopRecord createUser updateUser
    deleteUser getUser listUser createAcl updateAcl deleteAcl getAcl listAcl
"""
# In lower case -> the command of mqadmin that asks a running broker or name server.
MQADMIN: dict[str, str] = {word.lower(): word for word in _OF_A_BROKER.split()} | {
    "-p": "sendMessage",
    "produce": "sendMessage",
    "publish": "sendMessage",
    "send": "sendMessage",
    "kafka-console-producer.sh": "sendMessage",
    "kafka-configs.sh": "updateBrokerConfig",
}
# In lower case -> the command of mqadmin for files that rmqlog does not read.
OTHER_FILES: dict[str, str] = {
    "dumpcompactionlog": "dumpCompactionLog",
    "rocksdbconfigtojson": "rocksDBConfigToJson",
}


# What stands behind the options of these tools: the placeholders of our commands that the value fills.
_VALUES: dict[str, tuple[str, ...]] = {
    "-t": ("TOPIC",),
    "--topic": ("TOPIC",),
    "-g": ("GROUP",),
    "--group": ("GROUP",),
    "--groupname": ("GROUP",),
    "--consumergroup": ("GROUP",),
    "-k": ("KEY",),
    "--key": ("KEY",),
    "--msgkey": ("KEY",),
    "-i": ("ID", "QUEUE"),  # of mqadmin: a message id, or a queue id
    "--msgid": ("ID",),
    "--queueid": ("QUEUE",),
    "-p": ("QUEUE",),
    "--partition": ("QUEUE",),
    "-o": ("OFFSET",),
    "--offset": ("OFFSET",),
    "-n": ("COUNT",),
    "--num": ("COUNT",),
    "-c": ("COUNT",),
    "--max-messages": ("COUNT",),
    "-s": ("TIME",),
    "--timestamp": ("TIME",),
}
_CONSUMERS = ("-c", "consume", "kafka-console-consumer.sh")
_READS_TO_END = ("-e", "--exit")
_SAFE = re.compile(r"[\w.:/%+@-]+")


def advice_for(words: Sequence[str]) -> str:
    """What to do instead of the command `words` of another tool; "" if no tool is known to have it.

    Values that were typed stand in the place of TOPIC, GROUP and others.

    >>> advice_for(["consumerProgress", "-g", "CG"])
    'use rmqlog lag STORE --group CG'
    >>> advice_for(["-C", "-t", "Orders", "-p", "2", "-o", "-5", "-e"])
    'use rmqlog tail STORE --topic Orders --queue 2 -n 5'
    >>> advice_for(["sendMessage", "-t", "Orders"])
    'needs a running broker: mqadmin sendMessage'
    """
    for count in (2, 1):
        word, more = " ".join(words[:count]).lower(), words[count:]
        if word in _CONSUMERS:
            return f"use rmqlog {_consumer(word, more)}"
        if word in OURS:
            return f"use rmqlog {_filled(OURS[word], _given(more))}"
        if word in _NO_ANSWER:
            return _NO_ANSWER[word]
        if word in MQADMIN:
            return f"needs a running broker: mqadmin {MQADMIN[word]}"
        if word in OTHER_FILES:
            return f"rmqlog does not read these files: mqadmin {OTHER_FILES[word]}"
    return ""


def _given(words: Sequence[str]) -> dict[str, str]:
    """Placeholder -> the value that the options of another tool give it."""
    return {
        place: value
        for option, value in pairwise(words)
        for place in _VALUES.get(option if len(option) == 2 else option.lower(), ())
        if _SAFE.fullmatch(value) and (not value.startswith("-") or place in ("OFFSET", "TIME"))
    }


def _filled(command: str, given: Mapping[str, str]) -> str:
    """The command with the values that are given; an option whose value is missing keeps its placeholder."""
    if command.startswith("find ") and "TOPIC" in given:
        command += " --topic TOPIC"
    return re.sub(r"\b[A-Z]+\b", lambda place: given.get(place[0], place[0]), command)


def _consumer(word: str, words: Sequence[str]) -> str:
    """The command for what a consumer of kcat, rpk or Kafka prints: the first, the last, or new messages."""
    given = _given(words)
    topics = [each for each in words[:1] if word == "topic consume" and _SAFE.fullmatch(each)]
    topic = given.get("TOPIC") or next((each for each in topics if not each.startswith("-")), "TOPIC")
    place = f"--topic {topic}" + (f" --queue {given['QUEUE']}" if "QUEUE" in given else "")
    count, offset = given.get("COUNT", ""), given.get("OFFSET", "")
    first = f" -n {count}" if count.isdecimal() else ""
    is_start = offset.isdecimal() or offset in ("beginning", "start", "earliest")
    ends = any(each in _READS_TO_END for each in words) or ":" in offset
    if re.fullmatch("-[0-9]+", offset):
        return f"tail STORE{'' if ends or first else ' -f'} {place} -n {offset[1:]}"
    if is_start or "--from-beginning" in words or first or ends:
        return f"head STORE {place}" + (f" --offset {offset}" if offset.isdecimal() else "") + first
    return f"tail STORE -f {place}"
