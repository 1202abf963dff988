"""The Chinese pages: the translations fit the texts of the code, and the typography is Chinese.

A text without a translation is shown in English; that is no failure.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import reference

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ["README.zh-CN.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.zh-CN.md"))]
READMES = ("README.md", "README.zh-CN.md")
TRANSLATIONS = reference.translations("zh-CN")
HAN = r"[\u4e00-\u9fff]"
# What is never translated: code, options of a command, names of files and of properties.
KEPT = re.compile(r"`[^`]+`|--[a-z][a-z-]+|\b[A-Z][A-Z_]{3,}\b")


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _outline(name: str) -> list[str]:
    """What is the same in all languages: levels of headings, blocks, list items, the first cells of rows."""
    return re.findall(r"^(#+ |<!-- .*? -->|```\w*|- |!\[|\| `[^`]+`|\|)", _read(name), re.MULTILINE)


def _code_spans(name: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", _read(name), flags=re.M | re.S)))


def _prose(markdown: str) -> str:
    """The text without code blocks, link targets, comments and the addresses below it; code spans are `C`."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^\[[^]]+\]: .*$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^]]*)\](\([^)]*\)|\[[^]]*\])", r"\1", text)
    return re.sub(r"`[^`\n]+`", "C", re.sub(r"(?<=[。：，])\*\* |\*\*", "", text))


def test_every_translation_has_a_generated_text() -> None:
    generated = {text for name in reference.PAGES if ".zh-CN." in name for text in reference.texts_of(name)}
    unused = sorted(TRANSLATIONS.keys() - generated)
    assert unused == [], "the code no longer has these texts: change or delete their pairs"


def test_a_text_without_a_translation_is_english_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "translations", lambda language: {"meaning": "说明"})
    page = tmp_path / "page.zh-CN.md"
    page.write_text("<!-- options --><!-- /options --><!-- columns --><!-- /columns -->", encoding="utf-8")
    reference.main([str(page)])
    lines = page.read_text(encoding="utf-8").splitlines()
    assert "| column | type | default | 说明 |" in lines
    heading, *missing = capsys.readouterr().out.splitlines()
    assert missing == [text for text in reference.texts_of(str(page)) if text != "meaning"]
    assert heading == f"{page}: texts without a translation, shown in English: {len(missing)}"


def test_a_translation_keeps_code_and_names() -> None:
    assert {
        english: chinese
        for english, chinese in TRANSLATIONS.items()
        if set(KEPT.findall(english)) != set(KEPT.findall(chinese))
    } == {}


def test_a_translation_is_chinese() -> None:
    # Only formats such as `yyyyMMddHHmmss` are the same in all languages.
    assert [
        english
        for english, chinese in TRANSLATIONS.items()
        if not re.search(HAN, chinese) and (chinese != english or " " in english)
    ] == []


@pytest.mark.parametrize("chinese", [name for name in PAGES if name.startswith("docs/")])
def test_a_page_has_the_same_outline_in_both_languages(chinese: str) -> None:
    english = chinese.replace(".zh-CN", "")
    assert _outline(chinese) == _outline(english)
    assert _code_spans(chinese) >= _code_spans(english)


def test_the_readme_has_the_same_outline_and_code_in_both_languages() -> None:
    assert _outline("README.zh-CN.md") == _outline("README.md")
    # Code spans are not translated; how often a page names one is its own matter.
    assert _code_spans("README.zh-CN.md") == _code_spans("README.md")
    english, chinese = (re.findall(r"^```.*?^```$", _read(name), re.M | re.S) for name in READMES)
    assert chinese == english != []


def test_the_readme_leads_to_the_same_pages_in_both_languages() -> None:
    english, chinese = (dict(re.findall(r"^\[([^]]+)\]: (\S+)$", _read(name), re.M)) for name in READMES)
    assert chinese.keys() == english.keys() != set()
    for label, link in chinese.items():
        page = link.partition("#")[0]
        assert page.replace(".zh-CN", "") == english[label].partition("#")[0]
        # A page that exists in Chinese is preferred.
        assert page == english[label] or not (ROOT / page).with_suffix(".zh-CN.md").exists()


def test_the_readme_has_at_most_8_kb() -> None:
    text = re.sub(r"^\[[^]]+\]: \S+\n", "", _read("README.zh-CN.md"), flags=re.MULTILINE)
    assert len(text.encode()) <= 8192


@pytest.mark.parametrize("name", PAGES)
def test_a_space_stands_between_chinese_and_latin(name: str) -> None:
    prose = _prose(_read(name))
    assert re.findall(rf".{{0,8}}(?:{HAN}[A-Za-z0-9]|[A-Za-z0-9%]{HAN}).{{0,8}}", prose) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_paragraph_is_one_line(name: str) -> None:
    # A browser shows the end of a line as a space, which is wrong between Chinese words.
    assert re.findall(rf".{{0,8}}(?:{HAN}|[，。；：、）”])\n[^\n|\-].{{0,8}}", _prose(_read(name))) == []


@pytest.mark.parametrize("name", PAGES)
def test_punctuation_beside_chinese_is_full_width(name: str) -> None:
    prose = _prose(_read(name))
    assert re.findall(rf".{{0,8}}(?:{HAN} ?[,;:!?()]|[,;:!?()] ?{HAN}|{HAN}\.).{{0,8}}", prose) == []
    assert re.findall(rf".{{0,8}}(?: [，。；：、）]|[，。；：、（] (?:{HAN}|\w)).{{0,8}}", prose) == []


@pytest.mark.parametrize("text", ["# heading\n\na\nb\n\nc\n", "a\nb\nc\n", "a\nb\n\na\nd\n"])
def test_a_line_without_its_pair_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reference.xx-XX.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr(reference, "__file__", str(tmp_path / "reference.py"))
    with pytest.raises(ValueError, match=r"^reference\.xx-XX\.txt: expected two lines, and once, found '"):
        reference.translations("xx-XX")
