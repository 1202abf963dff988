"""The pictures of the README: terminals and a chart of the demo store, as SVG.

`make images` runs this module and keeps the pictures in docs/images. tests/docs/test_images.py compares their
text with what the commands print now. The demo store has a fixed end, so every run makes the same pictures.
"""

from __future__ import annotations

import io
import re
import tempfile
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from rmq_spark import charts
from rmq_spark.demo import create
from store_format.store import MessageStore
from tests.support.terminals import screen, without_progress
from tests.support.text_terminal import short_path

DIRECTORY = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
END, _END_MS = "2026-11-22T12:00:00Z", 1_795_348_800_000
SHOP = "/tmp/shop"  # what the README calls the demo store

_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_BACKGROUND, _TEXT = (22, 27, 34), (230, 237, 243)  # GitHub's dark theme: readable on its light one, too
_COLOURS = [  # black to white
    (72, 79, 88),
    (255, 123, 114),
    (63, 185, 80),
    (210, 153, 34),
    (88, 166, 255),
    (188, 140, 255),
    (57, 197, 207),
    (177, 186, 196),
]


@dataclass(frozen=True, slots=True)
class Terminal:
    """A command in a terminal of this width. `clock` are arguments that are run and not shown."""

    name: str
    columns: int
    arguments: tuple[str, ...]
    clock: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(("rmqlog", *(f"'{each}'" if "%" in each else each for each in self.arguments)))


TERMINALS = (
    Terminal("lag", 86, ("lag", SHOP), ("--now", END)),
    Terminal("trace", 110, ("trace", SHOP, "%DLQ%CG_mail/0@0")),
)


def recorded(terminal: Terminal, shop: str) -> str:
    """What the terminal shows, with its colours: the command, and its output on the demo store at `shop`."""
    with short_path(Path(shop), SHOP) as path:
        arguments = [path if each == SHOP else each for each in terminal.arguments]
        code, seen = screen(terminal.columns, *arguments, *terminal.clock)
    assert code == 0, seen
    seen = without_progress(seen).replace(path, SHOP)
    return f"\x1b[2m$\x1b[0m {terminal.command}\n{seen.rstrip()}\n"  # an empty line at the end, as a margin


def picture_of(text: str, name: str, columns: int) -> str:
    """The text of a terminal as SVG. Of its control characters only colours and weights have an effect."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    console = Console(width=columns, record=True, file=io.StringIO(), color_system="standard")
    console.print(Text.from_ansi(without_controls(text)), soft_wrap=True)
    theme = TerminalTheme(_BACKGROUND, _TEXT, _COLOURS)
    return console.export_svg(title="", theme=theme, code_format=_template(), unique_id=name)


def without_controls(text: str) -> str:
    """Keeps SGR sequences (colours, weights) and line breaks; removes all other control characters."""
    text = re.sub(r"\x1b\][^\x07\x1b\n]*(\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b(?!\[)", "", text)
    return re.sub(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f]", "", text)


def _template() -> str:
    """rich's template, without the fonts that it loads from the network: a picture in a page may not."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return template.replace("Fira Code, monospace", _FONTS)


def chart_of(store: MessageStore) -> str:
    """The rate of the store's topics as SVG, without the labels for screen readers, which are two thirds of
    the file: the page has a text for the whole picture.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rate.svg"
        charts.rate(store).save(path)
        return re.sub(r' (aria-[a-z]+|role)="[^"]*"', "", path.read_text(encoding="utf-8")) + "\n"


def text_of(picture: str) -> str:
    """The text of a picture of a terminal, line by line, without spaces at the ends."""
    rows: dict[str, str] = {}
    for row, text in re.findall(
        r'<text class="[\w-]+-r\d+" [^>]*clip-path="url\(#[\w-]+?-(line-\d+)\)">(.*?)</text>', picture
    ):
        rows[row] = rows.get(row, "") + unescape(text).replace("\xa0", " ")
    return "\n".join(row.rstrip() for row in rows.values())


def main() -> None:
    """Makes all pictures."""
    DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        store = create(f"{directory}/shop", end_ms=_END_MS)
        made = {
            each.name: picture_of(recorded(each, store.path), each.name, each.columns) for each in TERMINALS
        }
        for name, picture in {**made, "rate": chart_of(store)}.items():
            (DIRECTORY / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
