"""What a store contains, as Arrow tables. One module a view; `registry.VIEWS` lists them."""
