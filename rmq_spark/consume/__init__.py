"""What a RocketMQ client decides for itself: which messages it filters out, which queues it reads and from
where.
"""

from __future__ import annotations

__all__: list[str] = []
