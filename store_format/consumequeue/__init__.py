"""`consumequeue/`, `batchconsumequeue/`, `consumequeue_ext/`: bounds, ranges, search by time, dispatch, units
written.
"""
