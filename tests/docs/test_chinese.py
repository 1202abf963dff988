"""The Chinese pages: they fit the texts of the code and the English pages, and the typography is Chinese.

A text of the reference without a translation is shown in English; that is no failure. A how-to page has the
headings, the blocks and the links of its English page: the test that runs the English page proves both.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from docs import reference
from tests.support.doc_pages import anchors

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ["README.zh-CN.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.zh-CN.md"))]
READMES = ("README.md", "README.zh-CN.md")
HOWTOS = [name for name in PAGES if name not in ("README.zh-CN.md", *reference.PAGES)]
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
    assert "| column | type | by default | 说明 |" in lines
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


def test_the_howto_pages_are_there() -> None:
    names = ("deploy", "howto-find", "howto-lag", "howto-recover")
    assert {f"docs/{name}.zh-CN.md" for name in names} <= set(HOWTOS)


@pytest.mark.parametrize("chinese", HOWTOS)
def test_a_page_has_the_same_blocks_and_links_in_both_languages(chinese: str) -> None:
    english = _english(chinese)
    assert _blocks(chinese) == _blocks(english) != []
    assert _levels(chinese) == _levels(english)
    # A sentence may put its links in another order.
    expected = Counter(_in_chinese(link, english) for link in _links(english))
    assert Counter(_links(chinese)) == expected


@pytest.mark.parametrize("chinese", HOWTOS)
def test_a_page_leads_to_the_other_language_below_its_title(chinese: str) -> None:
    english = _english(chinese)
    assert _read(chinese).splitlines()[2] == f"[English]({Path(english).name})"
    assert _read(english).splitlines()[2] == f"[中文]({Path(chinese).name})"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n## Move a group\n", "\n## A new section\n\nText.\n\n## Move a group\n"),
        ("rmqlog lag /data/store --now", "rmqlog lag /data/store -a --now"),
        ("(README.md#the-stores-of-the-examples)", "(concepts.md)"),
        ("(#move-a-group)", "(#now)"),
    ],
    ids=["section", "command", "link", "anchor"],
)
def test_a_change_of_the_english_page_is_noticed(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chinese, english = "docs/howto-lag.zh-CN.md", "docs/howto-lag.md"
    text = _read(english)
    assert text.count(old) == 1
    (tmp_path / "docs").mkdir()
    for page in ROOT.glob("docs/*.md"):
        shutil.copy(page, tmp_path / "docs")
    monkeypatch.setattr("tests.docs.test_chinese.ROOT", tmp_path)
    test_a_page_has_the_same_blocks_and_links_in_both_languages(chinese)
    (tmp_path / english).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(AssertionError):
        test_a_page_has_the_same_blocks_and_links_in_both_languages(chinese)


def _english(chinese: str) -> str:
    return chinese.replace(".zh-CN", "")


def _blocks(name: str) -> list[str]:
    return re.findall(r"^```.*?^```$", _read(name), re.MULTILINE | re.DOTALL)


def _levels(name: str) -> list[str]:
    return re.findall(r"^#+ ", _without_blocks(name), re.MULTILINE)


def _without_blocks(name: str) -> str:
    return re.sub(r"^```.*?^```$", "", _read(name), flags=re.MULTILINE | re.DOTALL)


def _links(name: str) -> list[str]:
    """The targets of a page's links, without the link to the other language."""
    targets = re.findall(r"\]\(([^)\s]+)\)", _without_blocks(name))
    return [target for target in targets if target not in (Path(_english(name)).name, _twin(Path(name)).name)]


def _in_chinese(link: str, english: str) -> str:
    """The target that a Chinese page links to where `english` links to `link`: a Chinese page if one exists.

    The anchor is that of the heading at the same place of the Chinese page.
    """
    target, _, anchor = link.partition("#")
    page = Path(english).parent / target if target else Path(english)
    twin = _twin(page)
    if target.startswith("http") or not (ROOT / twin).exists():
        return link
    if anchor:
        anchor = f"#{anchors(_read(str(twin)))[anchors(_read(str(page))).index(anchor)]}"
    return f"{_twin(Path(target)) if target else ''}{anchor}"


def _twin(page: Path) -> Path:
    return page.with_name(page.name.replace(".md", ".zh-CN.md")) if ".zh-CN." not in page.name else page


def test_the_readme_has_the_same_outline_and_code_in_both_languages() -> None:
    assert _outline("README.zh-CN.md") == _outline("README.md")
    # Code spans are not translated; how often a page names one is its own matter.
    assert _code_spans("README.zh-CN.md") == _code_spans("README.md")
    assert _blocks("README.zh-CN.md") == _blocks("README.md") != []


def test_the_readme_leads_to_the_same_pages_in_both_languages() -> None:
    english, chinese = (dict(re.findall(r"^\[([^]]+)\]: (\S+)$", _read(name), re.M)) for name in READMES)
    assert chinese == {label: _in_chinese(link, "README.md") for label, link in english.items()} != {}


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
    assert (
        re.findall(rf".{{0,8}}(?:{HAN}|[，。；：、）”])\n(?!\d+\. )[^\n|\-].{{0,8}}", _prose(_read(name)))
        == []
    )


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
