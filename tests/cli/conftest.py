"""The fixture by which tests of commands run them."""

from __future__ import annotations

import pytest

from tests.support.cli_runs import Runner


@pytest.fixture
def rmqlog(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs in this process, whose output is no terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
    return Runner(capsys)
