"""The only room that imports pyspark: Spark's classes, each a screen, each delegating."""
