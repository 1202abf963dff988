"""`index/`: one file, its geometry, key hashes, queries, coverage, entries written."""
