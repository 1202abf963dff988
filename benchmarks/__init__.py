"""What reading costs: `python -m benchmarks` fills stores, reads them with and without Spark, and prints the
figures of README.
"""
