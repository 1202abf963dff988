"""Spark queries as members of one consumer group: state, leases, ownership."""
