"""Option text -> frozen values; every option once, in a table."""
