"""Messages by key, id, tag and time."""
