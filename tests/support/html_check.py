"""Reads a page as a browser would and refuses everything that the project did not make: elements, attributes,
values, characters.

What a store says may only be text; `read_page` gives that text, as a reader sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser

from store_format.display.page import SIZE_MAX

_CLASS = r"rmqlog|[a-z]|r|n z"
_STYLE = r"[a-z0-9#:;.%(), -]*"

# Element -> attribute -> what its value may be, as a whole. A tooltip of a column's head is a sentence of the
# project's.
_ALLOWED: dict[str, dict[str, str]] = {
    **{name: {} for name in ("style", "dt", "dd", "thead", "tbody", "tr", "b", "bdi", "br", "wbr")},
    "div": {"class": _CLASS, "style": _STYLE},
    "span": {"class": _CLASS, "style": _STYLE},
    "dl": {"class": "f"},
    "pre": {"class": "b"},
    "table": {"class": "r"},
    "th": {"class": "n", "title": r"[^<>]*"},
    "td": {"class": _CLASS},
}
# What a page of its own has besides: the report.
_REPORT: dict[str, dict[str, str]] = {
    **{name: {} for name in ("head", "title", "body", "main", "nav")},
    "html": {"lang": "en"},
    "meta": {
        "charset": "utf-8",
        "name": "viewport",
        "http-equiv": "Content-Security-Policy",
        "content": r"width=device-width,initial-scale=1|default-src 'none'; img-src data:; "
        r"style-src 'unsafe-inline'",
    },
    "h2": {"id": "[a-z]+"},
    "a": {"href": "#[a-z]+"},
    "code": {"class": "command"},
    "i": {"style": _STYLE},
    "img": {"alt": "topics|lag", "src": r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+"},
    "div": {
        "class": rf"{_CLASS}|answer|answer (yes|no|unknown)|scroll|legend|map|bar|meanings",
        "style": _STYLE,
        "title": r"[^<>]*",
    },
}
_EMPTY = {"br", "wbr", "meta", "img"}
_ISOLATES = "\u2068\u2069"


@dataclass
class Page:
    """The text that is seen, and how often each class occurs."""

    text: str = ""
    classes: dict[str, int] = field(default_factory=dict)
    rows: int = 0


class _Reader(HTMLParser):
    def __init__(self, allowed: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(convert_charrefs=True)
        self.allowed = allowed
        self.page = Page()
        self.open: list[str] = []
        self.styles: list[str] = []
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.allowed, f"<{tag}>"
        for name, value in attrs:
            assert name in self.allowed[tag], f"<{tag} {name}={value!r}>"
            assert re.fullmatch(self.allowed[tag][name], value or ""), f"<{tag} {name}={value!r:.300}>"
            if name == "class":
                self.page.classes[value or ""] = self.page.classes.get(value or "", 0) + 1
        self.page.rows += tag == "tr"
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.styles if self.open and self.open[-1] == "style" else self.parts).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        assert (decl, self.open) == ("doctype html", []), f"<!{decl}>"

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"<![{data}]>")


def read_report(source: str) -> Page:
    """Checks the page of a report, which is below 2 MB."""
    assert len(source.encode()) < 2_000_000
    assert source.startswith("<!doctype html>")
    return _read(source, {**_ALLOWED, **_REPORT})[0]


def read_page(source: str, *, is_whole: bool = True) -> Page:
    """Checks the page. `is_whole=False`: a piece of one, without its style."""
    assert len(source.encode()) <= SIZE_MAX
    page, styles = _read(source, _ALLOWED)
    assert page.classes.get("rmqlog", 0) == is_whole
    assert (".rmqlog .e{" in styles) == is_whole
    assert len(styles) < 5000
    return page


def _read(source: str, allowed: Mapping[str, Mapping[str, str]]) -> tuple[Page, str]:
    """The page, and its styles."""
    unseen = {char for char in source if not char.isprintable() and char not in "\n" + _ISOLATES}
    assert not unseen
    reader = _Reader(allowed)
    reader.feed(source)
    reader.close()
    assert reader.open == []
    styles = "".join(reader.styles)
    assert "url" not in styles
    assert "@import" not in styles
    reader.page.text = "".join(reader.parts)
    return reader.page, styles
