"""numpy and Arrow tricks that know nothing of RocketMQ: gather byte ranges, memmem."""
