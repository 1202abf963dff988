"""Options + stores -> splits, and a split -> batches. No pyspark."""
