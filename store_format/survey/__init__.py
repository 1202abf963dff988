"""What a store holds, by all its files: one answer for readers, writers, `recover` and `verify`.

Nothing here writes.
"""
