"""What `verify` advises about consume queues."""

BEHIND_ADVICE = (
    "A broker that starts on this store cuts these entries off (ConsumeQueue.truncateDirtyLogicFiles)"
)
DELETED_ADVICE = "The topic was deleted; retention deletes the messages"
LOST_ADVICE = (
    "Readers scan the commitlog for this queue; a broker serves only what it writes into the queue when it "
    "starts. rmqlog recover, or a write of rmqlog to the topic, rebuilds the queue. Do not start a broker "
    "before that: howto-recover.md, section 6"
)
WRITTEN_ADVICE = (
    "Readers scan the commitlog for this queue, and a broker that starts writes the whole queue again from "
    "there. So does rmqlog recover: no message is lost"
)
LIGHT_ADVICE = "Readers scan the commitlog for this queue, a broker does not: rmqlog recover rebuilds it"
NO_LIGHT_ADVICE = (
    "Nothing needs to be done if the broker ran without enableLmq: then the properties are a producer's own. "
    "Else rmqlog recover builds the queue"
)
UNKNOWN_ADVICE = (
    "Readers and writers ask which of the two happened: unfiledQueues=read if the queue was lost, "
    "unfiledQueues=skip if the topic was deleted. rmqlog recover STORE --topic TOPIC --apply writes a lost "
    "queue"
)
HOLE_ADVICE = (
    "No message is lost: a broker that started on a blank last file counted a place too many "
    "(ConsumeQueue.truncateDirtyLogicFiles)"
)
BLANK_ADVICE = (
    "Delete the blank file before a broker starts: it would count a message that does not exist "
    "(ConsumeQueue.truncateDirtyLogicFiles)"
)
PAST_ADVICE = (
    "Retention has deleted the messages, and the files are lost: a broker gives the next messages offsets "
    "from 0, which the group does not read. rmqlog recover makes an empty file that continues the offsets"
)
AHEAD_ADVICE = (
    "Messages of this queue are lost, or the group was set too far: the next messages get these offsets "
    "again, and the group does not get them. Set the group back (mqadmin resetOffsetByTime) before that"
)
REPEATED_ADVICE = (
    "Nothing needs to be done: of two messages with one queue offset a broker serves the first "
    "(ConsumeQueue.putMessagePositionInfo); a search by key finds both"
)
LAG_ADVICE = (
    "A broker that starts on this store writes these entries (CommitLog.recoverAbnormally), and so does "
    "rmqlog recover: no message is lost"
)
