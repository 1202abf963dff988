"""Notebooks over the demo store, kept with their outputs; `python -m notebooks.run` rewrites them."""
