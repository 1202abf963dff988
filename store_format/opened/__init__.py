"""The opened store: one value for its path and for what a look has read of it."""
