"""One matrix of what people do with rmqlog, run on each Spark that the package index offers.

`environments.py` makes an environment for each Spark, `program.py` runs the cells of `*_cells.py` in it, and
`table.py` writes the result, `seen/spark-*.json`, into docs/compatibility.md. `make sparks` does all of it.
"""
