"""What a RocketMQ producer decides for itself: what a message must be, how it is stored, which queue it goes
to.
"""

from __future__ import annotations
