"""A commitlog with the right id and other bytes: a commit that was broken off is not completed there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import LogPlace
from store_format.commit import append as append_module
from store_format.commit.append import recover
from store_format.errors import StoreNotFoundError
from tests.support.moved_commits import make_place, options_of, write
from tests.support.unchanged import unchanged


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_commitlog_with_other_messages_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(tmp_path / "place", "elsewhere")
    other = make_place(tmp_path / "other", "elsewhere", "Other")
    with monkeypatch.context() as patched:
        patched.setattr(append_module, "carry_out", _die)
        with pytest.raises(KeyboardInterrupt):
            write(place, None, "elsewhere")
    shutil.copy(LogPlace.id_path(str(place / "log")), LogPlace.id_path(str(other / "log")))
    with (
        unchanged(place),
        unchanged(other),
        pytest.raises(
            StoreNotFoundError, match=r"with the messages before physical offset .* found other bytes"
        ),
    ):
        recover(str(place / "store"), options=options_of("elsewhere", other / "log"))
    recover(str(place / "store"), options=options_of("elsewhere", place / "log"))
