"""The command `rmqlog`: a store looked at from the shell. One room a few commands; numpy and pyarrow are
imported when one runs.
"""
