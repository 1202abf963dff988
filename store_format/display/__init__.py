"""What notebooks show of a store, as HTML: cards, tables, a timeline, a picture of its files. Everything a
store says is escaped.

`page` has the pieces all others are made of; no script, nothing from outside, and no page larger than
`page.SIZE_MAX`.
"""
