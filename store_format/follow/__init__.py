"""A store that is followed while a broker writes: what is new since the last look."""
