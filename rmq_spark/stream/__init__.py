"""Offsets of a streaming query from micro-batch to micro-batch. No pyspark."""
