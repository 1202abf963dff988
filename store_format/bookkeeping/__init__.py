"""What this project itself keeps in a store (`.rmqlog/` and the mark in `abort`): journal, ledger, settings,
staged-file handles; and from them the store's state.
"""
