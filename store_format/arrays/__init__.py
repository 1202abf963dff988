"""numpy and Arrow helpers without any knowledge of RocketMQ: gather byte ranges, search for bytes."""
