"""What a store contains, as Arrow tables. One module a view, or a few views of one subject; `registry.VIEWS`
lists them.
"""
