"""`commitlog/`: the files as one byte sequence, walked, resynchronised, placed, written."""
