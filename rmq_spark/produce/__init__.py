"""What a RocketMQ producer decides itself: properties, queue, delay, ids and compression of a message.

Start at `messages.Producer`, which makes messages of Arrow batches.
"""

from __future__ import annotations
