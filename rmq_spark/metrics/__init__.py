"""Metrics of stores in the text format of Prometheus, and the limits of a monitoring check.

`families.py` has each metric as a row of one table. A collector keeps between two looks what did not change.
"""
