"""Pictures and cards of stores for notebooks."""
