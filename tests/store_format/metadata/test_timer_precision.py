"""The precision of a wheel, read from wheels that were written with several."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.metadata.read import BrokerConf
from store_format.metadata.timer import wheel_precision_ms, with_wheel_precision
from store_format.opened.store import Opened
from tests.support import goldens


@pytest.mark.parametrize("precision", [100, 250, 1000])
def test_the_wheel_tells_its_precision(tmp_path: Path, precision: int) -> None:
    from rmq_spark.services import run_once
    from tests.support.staged import make_store
    from tests.support.waiting import BEGIN_MS, append, timed

    root = str(make_store(tmp_path / "s"))
    append(Path(root), timed("T", BEGIN_MS + 7_000, 0, 3))
    assert wheel_precision_ms(Opened(root)) is None
    run_once(root, ["timer"], BEGIN_MS, broker_conf=BrokerConf(timer_precision_ms=precision), apply=True)
    assert wheel_precision_ms(Opened(root)) == precision
    assert with_wheel_precision(Opened(root), BrokerConf()).timer_precision_ms == precision
    given = BrokerConf.of({"timerPrecisionMs": "500"}, "broker.conf")
    assert with_wheel_precision(Opened(root), given).timer_precision_ms == 500


def test_a_broker_s_wheel_has_a_precision_of_a_second(tmp_path: Path) -> None:
    root = goldens.unpack("pop-5.5.0", tmp_path)
    assert wheel_precision_ms(Opened(str(root))) == 1000
    (root / "timerwheel").write_bytes(b"\1")
    assert wheel_precision_ms(Opened(str(root))) is None
