"""A broker's own managers load the shapes of `config/` that `tests/vectors/config_shapes.json` records."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.harness import RocketMQ
from tests.support import config_shapes
from tests.support.config_shapes import FILES, OLD_CLASSES, VECTORS, backup, shapes, table_of


def _answers(rocketmq: RocketMQ, directory: Path) -> dict[str, dict[str, Any]]:
    is_old = rocketmq.version == "4.9.7"
    program = rocketmq.program("ConfigFiles", [])
    found: dict[str, dict[str, Any]] = {}
    for name, (main, field, _) in FILES.items():
        if is_old and name not in OLD_CLASSES:
            continue
        path = directory / name
        for label, data in shapes(name).items():
            path.write_bytes(data)
            path.with_name(f"{name}.bak").write_bytes(backup(name))
            program.say(f"org.apache.rocketmq.{OLD_CLASSES[name] if is_old else main}", field, path)
            line = program.line(60.0)
            assert line["loaded"], (name, label, line)
            found.setdefault(name, {})[label] = table_of(name, line["table"])
    program.close()
    return found


def test_the_recorded_answers_are_those_of_the_managers(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """All shapes of all files in one JVM of each release."""
    new, old = (_answers(rocketmq(version), tmp_path) for version in ("5.5.0", "4.9.7"))
    answers = {
        name: {
            label: [table, *([old[name][label]] if old.get(name, {}).get(label, table) != table else [])]
            for label, table in tables.items()
        }
        for name, tables in new.items()
    }
    if os.environ.get("RMQLOG_RECORD") == "1":
        VECTORS.write_text(config_shapes.recorded(answers))
    assert answers == config_shapes.answers()
