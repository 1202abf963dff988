"""One module a family of commands."""
