"""Spark queries as members of one consumer group: the group's state, leases, queue ownership and offsets.

Start at `member.GroupMember`; `state` has the file `group.json`, `member` the rules for the offset file.
"""
