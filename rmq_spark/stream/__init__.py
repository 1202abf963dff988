"""The offsets of a streaming query from micro-batch to micro-batch, and their splits, without pyspark."""
