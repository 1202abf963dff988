"""Both versions of RocketMQ as parameters of a test: CI runs one of them, the proofs run both.

A broker of 5.5.0 costs six times the processor time of one of 4.9.7. `NEW` is for what 5.x does in a way of
its own, `OLD` for what both do alike.
"""

from __future__ import annotations

import pytest

NEW = ["5.5.0", pytest.param("4.9.7", marks=pytest.mark.whole)]
OLD = [pytest.param("5.5.0", marks=pytest.mark.whole), "4.9.7"]
