"""Copies the code blocks of English pages into their Chinese pages: `python -m docs.chinese_blocks`.

A Chinese how-to page has the blocks of its English page, with their output, in the same order. Only the text
between the blocks is translated.
"""

from __future__ import annotations

import re
from pathlib import Path

from docs.reference import PAGES

_BLOCK = re.compile(r"^```(\w*)\n.*?^```$", re.MULTILINE | re.DOTALL)


def copied(chinese: str, english: str) -> str:
    """The Chinese page with the blocks of the English page.

    Raises ValueError if the pages do not have the same number of blocks, in the same languages.
    """
    languages = [[block[1] for block in _BLOCK.finditer(page)] for page in (chinese, english)]
    if languages[0] != languages[1]:
        expected, found = (" ".join(each) for each in reversed(languages))
        raise ValueError(
            f"expected the blocks of the English page: {expected}; found: {found}. "
            "Translate the text around a new block first"
        )
    blocks = (block[0] for block in _BLOCK.finditer(english))
    return _BLOCK.sub(lambda _: next(blocks), chinese)


def main(root: Path = Path()) -> None:
    """Rewrites the Chinese pages whose blocks differ, except pages that `docs.reference` generates."""
    for path in sorted([*root.glob("*.zh-CN.md"), *root.glob("docs/*.zh-CN.md")]):
        if path.relative_to(root).as_posix() in PAGES:
            continue
        current = path.read_text(encoding="utf-8")
        english = path.with_name(path.name.replace(".zh-CN", "")).read_text(encoding="utf-8")
        try:
            new = copied(current, english)
        except ValueError as error:
            raise SystemExit(f"{path}: {error}") from None
        if new != current:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
