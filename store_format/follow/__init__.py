"""A store watched while a broker writes: what came since the last look."""
