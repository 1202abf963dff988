"""One message record: bytes <-> Arrow columns, checked."""
