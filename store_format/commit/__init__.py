"""The one way messages get into a store: stage, commit, undo, roll forward, repair, cluster."""
