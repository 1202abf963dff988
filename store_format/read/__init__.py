"""From a store directory to record batches.

The handles `Store` and `Queue`, snapshots, recovery in memory, and the readers of queues and of the
commitlog.
"""
