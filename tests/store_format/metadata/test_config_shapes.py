"""The files of `config/` in the shapes in which people, editors, backups and power losses leave them, against
what RocketMQ's own managers hold (ConfigManager.load); see tests/support/config_shapes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store_format.metadata.read import DECODERS, config_path, read_config
from store_format.opened.store import Opened
from tests.support.config_shapes import FILES, answers, backup, shapes, table_of

ANSWERS = answers()


@pytest.mark.parametrize("name", FILES)
def test_every_shape_is_read_as_by_a_broker(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config" / name
    path.parent.mkdir()
    path.with_name(f"{name}.bak").write_bytes(backup(name))
    expected = {label: tables[0] for label, tables in ANSWERS[name].items()}
    assert {label: _read(path, data) for label, data in shapes(name).items()} == expected


def _read(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    found = read_config(config_path(Opened(str(path.parents[1])), path.name), DECODERS[path.name])
    if path.name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        assert found is not None
        found = getattr(found, "offsets" if path.name == "consumerOffset.json" else "lmq_offsets")
    return table_of(path.name, found)
