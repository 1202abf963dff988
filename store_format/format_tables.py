"""The layout tables of FORMAT.md, made from `layouts.py`: offsets from the dtypes, meanings from the comments beside the fields.

`python -m store_format.format_tables` writes them into FORMAT.md between its markers. A comment that names a wrong offset
is an error, so the tables and the comments cannot part.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from pathlib import Path

import numpy as np

from store_format import layouts
from store_format.layouts import LAYOUTS

__all__ = ["FORMAT_FILE", "field_meanings", "fill", "main", "render"]

FORMAT_FILE = Path(__file__).with_name("FORMAT.md")

_COMMENT = re.compile(r"#\s*(\d+)\s*(.*)")
_TABLE = re.compile(r"<!-- layout (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_TYPES = {"i": "int", "u": "uint"}


def render(source: str | None = None) -> dict[str, str]:
    """Layout name -> Markdown table, a row for each field. `source` is the text to take the comments from, normally layouts.py's own.

    Raises ValueError when a field has no comment, or one with another offset than its own.
    """
    calls, comments = _told(inspect.getsource(layouts) if source is None else source)
    return {name: _table(name, layout, calls[name], comments) for name, layout in LAYOUTS.items()}


def field_meanings(name: str) -> dict[str, str]:
    """Field -> meaning of one layout, for whoever shows its bytes."""
    calls, comments = _told(inspect.getsource(layouts))
    return {field: meaning for field, (_, meaning) in _meanings(name, calls[name], comments).items()}


def _told(source: str) -> tuple[dict[str, ast.Call], dict[int, str]]:
    """The `unit(...)` of each layout, and the comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return _unit_calls(ast.parse(source)), {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def _unit_calls(module: ast.Module) -> dict[str, ast.Call]:
    """The `unit(...)` that defines each layout: assigned to its name, or returned by the function of that name in small letters."""
    calls = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        elif isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return) and node.body[-1].value is not None:
            name, value = node.name.upper(), node.body[-1].value
        else:
            continue
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "unit":
            calls[name] = value
    return calls


def _table(name: str, layout: np.dtype[np.void], call: ast.Call, comments: dict[int, str]) -> str:
    lines = ["| offset | bytes | type | field | meaning |", "|---:|---:|---|---|---|"]
    fields = dict(layout.fields or {})
    for field, (told, meaning) in _meanings(name, call, comments).items():
        kind, offset = fields[field][:2]
        if told != offset:
            raise ValueError(f"layouts.py: {name}.{field} stands at {offset}, its comment says {told}")
        text = f"{_TYPES[kind.kind]}{kind.itemsize * 8}" if kind.kind in _TYPES else "bytes"
        lines.append(f"| {offset} | {kind.itemsize} | {text} | `{field}` | {meaning} |".replace("|  |", "| |"))
    return "\n".join(lines)


def _meanings(name: str, call: ast.Call, comments: dict[int, str]) -> dict[str, tuple[int, str]]:
    """Field -> (offset, meaning) as its comment tells."""
    meanings = {}
    for argument in call.args[1:]:
        assert isinstance(argument, ast.Tuple)
        field = ast.literal_eval(argument.elts[0])
        match = _COMMENT.fullmatch(comments.get(argument.lineno, ""))
        if match is None:
            raise ValueError(f"layouts.py, line {argument.lineno}: {name}.{field} needs a comment, offset first")
        meanings[field] = (int(match[1]), match[2].replace("|", "\\|"))
    return meanings


def fill(text: str) -> str:
    """`text` with the table between each pair of markers replaced by the current one.

    Raises ValueError when a layout has no place in the text, two, or a place no layout.
    """
    tables = render()
    places = sorted(match[1] for match in _TABLE.finditer(text))
    if places != sorted(tables):
        raise ValueError(f"FORMAT.md has places for {places}, layouts.py has {sorted(tables)}")
    return _TABLE.sub(lambda match: f"<!-- layout {match[1]} -->\n{tables[match[1]]}\n<!-- end -->", text)


def main() -> None:
    """Writes the current tables into FORMAT.md."""
    FORMAT_FILE.write_text(fill(FORMAT_FILE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
