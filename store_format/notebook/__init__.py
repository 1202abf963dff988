"""HTML cards and timelines of a store for notebooks."""
