"""Consume queues: `consumequeue/`, `batchconsumequeue/` and `consumequeue_ext/`.

Where each queue begins and ends, its units, the offset for a time, the entries that messages have, and how
new units are written.
"""
