"""A write without pyspark: its target stores, the staging in tasks, and the commit on the driver."""
