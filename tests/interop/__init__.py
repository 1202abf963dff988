"""What a real broker says: the released RocketMQ on stores that brokers and we wrote.

Marker `interop`; the Java side is the Maven project in `java/`, built once for each version.
"""
