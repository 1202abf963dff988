"""What is in a store, as tables: topics, queues, groups, files, and messages that wait. One room a kind, all
listed in `table`.
"""
