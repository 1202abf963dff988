"""A RocketMQ broker's work without a broker: pop, services, retries, and resending dead letters."""
