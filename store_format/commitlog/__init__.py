"""`commitlog/`: its files as one sequence of bytes, walked, searched behind damage, appended to."""
