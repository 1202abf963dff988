"""What a write does, Spark aside: target, stage, commit."""
