"""Programs and frames that tests with Spark share."""
