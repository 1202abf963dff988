"""Commands of mqadmin, kcat, rpk and Kafka's scripts, typed as a command of rmqlog, and what answers them.

A store is a directory, and rmqlog connects to no broker: what asks or changes a running broker has no command
here, and the answer names mqadmin's.
"""

from __future__ import annotations

from collections.abc import Sequence

# The words after `rmqlog`, in lower case -> the command of rmqlog for the same question.
OURS: dict[str, str] = {
    # mqadmin
    "brokerstatus": "info STORE",
    "clusterlist": "info STORE",
    "statsall": "ls STORE",
    "topiclist": "ls STORE",
    "topicstatus": "ls STORE -l --topic TOPIC",
    "topicroute": "ls STORE -l --topic TOPIC",
    "topicclusterlist": "ls STORE --topic TOPIC",
    "querycq": "ls STORE -l --topic TOPIC",
    "brokerconsumestats": "lag STORE -l",
    "consumerprogress": "lag STORE --group GROUP",
    "consumerstatus": "groups STORE --members",
    "consumerconnection": "groups STORE --members",
    "getconsumerconfig": "groups STORE --group GROUP",
    "resetoffsetbytime": "offsets STORE GROUP --topic TOPIC --to-time TIME",
    "skipaccumulatedmessage": "offsets STORE GROUP --topic TOPIC --to-latest",
    "clonegroupoffset": "offsets STORE GROUP --copy-from GROUP",
    "querymsgbyid": "get STORE ID",
    "querymsgbyuniquekey": "get STORE ID",
    "querymsgbyoffset": "get STORE TOPIC/QUEUE@OFFSET",
    "querymsgbykey": "find STORE KEY",
    "querymsgtracebyid": "trace STORE ID",
    "printmsg": "head STORE --topic TOPIC",
    "printmsgbyqueue": "head STORE --topic TOPIC --queue QUEUE",
    "consumemessage": "head STORE --topic TOPIC",
    "deleteexpiredcommitlog": "clean STORE --file-reserved-time HOURS",
    "cleanexpiredcq": "clean STORE --file-reserved-time HOURS",
    "exportmetadata": "groups STORE -o json",
    "exportmetrics": "info STORE -o json",
    # kcat, rpk, and the scripts of Kafka
    "-c": "tail STORE -f --topic TOPIC",
    "-l": "ls STORE",
    "-q": "ls STORE -l",
    "consume": "tail STORE -f --topic TOPIC",
    "describe": "ls STORE -l --topic TOPIC",
    "describe topic": "ls STORE -l --topic TOPIC",
    "describe group": "lag STORE -l --group GROUP",
    "list": "ls STORE",
    "topic": "ls STORE",
    "topic list": "ls STORE",
    "topic describe": "ls STORE -l --topic TOPIC",
    "topic consume": "tail STORE -f --topic TOPIC",
    "topic trim-prefix": "clean STORE --file-reserved-time HOURS",
    "group": "groups STORE",
    "group list": "groups STORE",
    "group describe": "lag STORE -l --group GROUP",
    "group seek": "offsets STORE GROUP --to-time TIME",
    "cluster": "info STORE",
    "cluster info": "info STORE",
    "cluster metadata": "info STORE",
    "cluster health": "verify STORE",
    "kafka-topics.sh": "ls STORE",
    "kafka-consumer-groups.sh": "lag STORE -l --group GROUP",
    "kafka-console-consumer.sh": "tail STORE -f --topic TOPIC",
    "kafka-get-offsets.sh": "ls STORE -l --topic TOPIC",
    "kafka-log-dirs.sh": "du STORE --files",
    "kafka-dump-log.sh": "dump STORE TOPIC/QUEUE@OFFSET",
    # usual words
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
}
_OF_A_BROKER = """
    updateTopic deleteTopic updateSubGroup deleteSubGroup updateTopicPerm updateTopicList updateSubGroupList
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
    "topic create": "updateTopic",
    "topic add-partitions": "updateTopic",
    "topic alter-config": "updateTopic",
    "topic delete": "deleteTopic",
    "topic produce": "sendMessage",
    "group delete": "deleteSubGroup",
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


def advice_for(words: Sequence[str]) -> str:
    """What to do instead of the command `words` of another tool; "" if no tool is known to have it.

    >>> advice_for(["consumerProgress", "-g", "CG"])
    'use rmqlog lag STORE --group GROUP'
    >>> advice_for(["topic", "create", "Orders"])
    'needs a running broker: mqadmin updateTopic'
    """
    for count in (2, 1):
        word = " ".join(words[:count]).lower()
        if word in OURS:
            return f"use rmqlog {OURS[word]}"
        if word in MQADMIN:
            return f"needs a running broker: mqadmin {MQADMIN[word]}"
        if word in OTHER_FILES:
            return f"rmqlog does not read these files: mqadmin {OTHER_FILES[word]}"
    return ""
