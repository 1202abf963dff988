"""Index files: one file, its geometry, the hashes of keys, queries, coverage, and how new entries are
written.
"""
