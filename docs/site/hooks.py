"""What MkDocs calls for each page of the site: the frame has the page's language, and leads to its twin."""

from __future__ import annotations

from typing import Any

_ENGLISH, _CHINESE = ".md", ".zh-CN.md"


def on_page_context(context: dict[str, Any], *, page: Any, config: Any, **_: Any) -> dict[str, Any]:
    """Sets the language of the page's frame, and the entries of the language switch.

    Material takes both from the configuration of the whole site. MkDocs renders one page after the other, so
    they can change before each page.
    """
    path = page.file.src_uri
    is_chinese = path.endswith(_CHINESE)
    stem = path.removesuffix(_CHINESE if is_chinese else _ENGLISH)
    files = {file.src_uri: file for file in context["pages"]}
    config.theme["language"] = "zh" if is_chinese else "en"
    config.extra["alternate"] = [
        {"name": name, "lang": language, "link": _page(files, stem, suffix).url}
        for name, language, suffix in (("English", "en", _ENGLISH), ("中文", "zh", _CHINESE))
    ]
    return context


def _page(files: dict[str, Any], stem: str, suffix: str) -> Any:
    """The page in this language; where no translation exists, the first page in this language."""
    return files.get(stem + suffix) or files["README" + suffix]
