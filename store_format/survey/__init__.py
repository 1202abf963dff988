"""What a store holds, by all its files: one answer for readers, writers, `recover` and `verify`. Nothing here
writes.

Other rooms ask values, each made of the opened store and its log:

- `Snapshot` has the queues of a moment, and finds the end of the log that a reader keeps to; `UnfiledQueues`
  remembers which queues without files have messages.
- `LogEnd` is where a broker ends the log that starts on the store, `ReadableEnd` how far it can be read.
- `StoredTopics` are the topics as files and names show them; `Fates` says what became of messages that no
  queue file shows.
- `QueueProofs` has what the queues and the ledger prove of messages that the log lacks; `LostLog` is a
  commitlog that has none of its messages.
- `LogEntries` says to which messages entries lead, `Contradictions` which messages entries contradict.
- `LogScan` yields the log's entries in parts, `LogQueues` are the queues found so, each a `LogQueue`, and a
  `QueueComparison` compares them with the files: `StoredQueue` and `ComparedQueue`.
"""
