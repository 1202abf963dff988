"""Rows, columns and hostile text of a store, made fit for terminals, HTML pages and JSON.

Every text of a store is escaped. The HTML pages have no scripts and load nothing, and no page is larger than
`page.SIZE_MAX`.
"""
