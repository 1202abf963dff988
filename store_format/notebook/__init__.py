"""Cards of stores for notebooks, and the numbers of the files that charts draw."""
