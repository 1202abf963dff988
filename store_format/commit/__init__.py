"""The one way messages get into a store: stage, commit, undo, roll forward, repair.

`append` has the list of steps, for one store and for a cluster.
"""
