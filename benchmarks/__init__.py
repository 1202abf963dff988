"""What reading and writing cost. `python -m benchmarks` prints the figures of docs/benchmarks.md, `python -m
benchmarks.compare` those of an older commit and of this checkout side by side, `python -m benchmarks.peers`
those of Kafka, Parquet and rmqlog.
"""
