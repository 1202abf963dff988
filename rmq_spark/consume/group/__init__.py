"""The members of one consumer group: the group's state, leases, queue ownership and offsets.

Start at `member.GroupMember`; `directory` has the file `group.json`. Consumers that pop share two modules
with the queries: `directory` says who is alive, and `offset_mirror` has the rules for the offset file.
"""
