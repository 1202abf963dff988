"""Pop: messages of a store shared one by one, without a broker (RocketMQ 5's SimpleConsumer)."""

from __future__ import annotations

__all__: list[str] = []
