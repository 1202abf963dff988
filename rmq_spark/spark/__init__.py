"""Spark's data source classes: the only modules that import pyspark. They pass calls on to other rooms."""
