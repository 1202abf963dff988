"""The referee: asks every caller of the product the same question about one store, and compares the answers
with a list of all messages that the store was given.

`truth` is the list, `answers` runs a caller and keeps what it said, `askers` are the callers, `followers` are
queries that run while a store changes, `rules` say what contradicts, `world` is a store with its truth, and
`cases` are damaged stores.

The other referee is the real broker. `judge` makes stores by a seed and compares what its classes serve with
what the product says: `made` writes a store as a broker does, `shapes` are what brokers leave, `harms` what
happens to files, `configs` files of `config/`, `generator` draws from them, and `law` says what is wrong.
"""
