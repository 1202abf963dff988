"""From options and stores to splits (`batch`), and from a split to record batches (`scan`). No pyspark."""
