"""The opened store: one value that functions take in place of a path."""
