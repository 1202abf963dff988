"""Notebooks over stores that real brokers wrote, kept with their outputs; `python -m notebooks.run` runs and
rewrites them.
"""
