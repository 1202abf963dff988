"""The pictures of the README show what the commands print now."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from store_format.store import MessageStore
from tests.support.pictures import (
    DIRECTORY,
    TERMINALS,
    Terminal,
    chart_of,
    picture_of,
    recorded,
    text_of,
    without_controls,
)

pytestmark = pytest.mark.slow

_SGR = re.compile(r"\x1b\[[\d;]*m")


def _texts(picture: str) -> list[str]:
    return [text for each in ElementTree.fromstring(picture).itertext() if (text := each.strip())]


@pytest.mark.process
@pytest.mark.parametrize("terminal", TERMINALS, ids=lambda terminal: terminal.name)
def test_a_terminal_is_current(terminal: Terminal, demo_shop: Path) -> None:
    kept = (DIRECTORY / f"{terminal.name}.svg").read_text(encoding="utf-8")
    now = [line.rstrip() for line in _SGR.sub("", recorded(terminal, str(demo_shop))).splitlines()]
    assert text_of(kept).splitlines() == [line for line in now if line], "run: make images"


@pytest.mark.process
def test_the_chart_is_current(demo_shop: Path) -> None:
    kept = (DIRECTORY / "rate.svg").read_text(encoding="utf-8")
    assert _texts(kept) == _texts(chart_of(MessageStore.open(str(demo_shop)))), "run: make images"


def test_a_picture_has_colours_and_loads_nothing() -> None:
    picture = picture_of("a \x1b[31mred\x1b[0m & \x1b[1m名字\x1b[0m", "some", 40)
    assert text_of(picture) == "a red & 名字"
    assert "#ff7b72" in picture
    assert "font-weight: bold" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )


def test_hostile_text_is_text() -> None:
    hostile = (
        "<script>alert(1)</script> \x1b]8;;javascript:alert(1)\x07x\x1b]8;;\x07 \x1b[2J\x00\x9b]]> \"'&lt;"
    )
    picture = picture_of(hostile, "some", 80)
    root = ElementTree.fromstring(picture)
    assert {each.tag.rpartition("}")[2] for each in root.iter()} <= {
        *("svg", "style", "defs", "clipPath", "rect", "g", "circle", "text")
    }
    assert text_of(picture) == "<script>alert(1)</script> x ]]> \"'&lt;"
    assert "javascript" not in picture
    assert without_controls("\x1b[31ma\x1b[0m\nb") == "\x1b[31ma\x1b[0m\nb"


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.svg")), ids=lambda path: path.name)
def test_the_pictures_are_small_and_harmless(path: Path) -> None:
    """A background of its own makes a picture readable on light and dark pages."""
    text = path.read_text(encoding="utf-8")
    assert re.search(r'<rect fill="#161b22"|<rect [^>]*fill="white"', text)
    assert len(text) < 100_000
    assert not re.search(r"<script|\bon\w+=|href=|@import|url\((?!#)", text)
