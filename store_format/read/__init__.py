"""From a store directory to record batches: the handle `Store`/`Queue`, snapshot, recovery in memory, queue
reader, log reader.
"""
