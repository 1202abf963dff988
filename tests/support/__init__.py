"""What several tests share: stores, the scalar oracle, strategies, processes that are killed."""
