"""The referee: asks every caller of the product the same question about one store, and compares the answers
with a list of all messages that the store was given.

`truth` is the list, `answers` runs a caller and keeps what it said, `askers` are the callers, `followers` are
queries that run while a store changes, `rules` say what contradicts, `world` is a store with its truth, and
`cases` are damaged stores.
"""
