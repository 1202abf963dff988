"""`python -m docs.site`: copies the pages to build/site/pages, where MkDocs reads them.

The pages keep their places, so that their links lead where they lead in the repository. MkDocs itself cannot
read the repository's root: it does not take a directory that holds its configuration.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = _ROOT / "build" / "site" / "pages"
# Pages, and the files that pages lead to.
_PATTERNS = (
    "*.md",
    "LICENSE",
    "NOTICE",
    "conf/spark-defaults.conf",
    "docs/*.md",
    "docs/images/*.svg",
    "docs/site/extra.css",
    "examples/*.py",
    "notebooks/*.ipynb",
    "notebooks/README.md",
    "store_format/FORMAT.md",
)


def main() -> None:
    shutil.rmtree(_PAGES, ignore_errors=True)
    for path in sorted(path for pattern in _PATTERNS for path in _ROOT.glob(pattern)):
        target = _PAGES / path.relative_to(_ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


if __name__ == "__main__":
    main()
