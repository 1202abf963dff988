"""The site: its navigation has every page, and a dead link ends the build.

The build itself needs MkDocs, which `make site` installs; `make proofs` runs this test, as the workflow does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SITE = ROOT / "docs" / "site"


def _navigation() -> list[str]:
    text = (_SITE / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"- (?:\w+: )?([\w./-]+\.md)$", text.split("\nnav:\n")[1], re.MULTILINE)


def test_the_navigation_has_every_page_once() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "notebooks/README.md"]
    pages.append(ROOT / "store_format/FORMAT.md")
    assert sorted(_navigation()) == sorted(str(page.relative_to(ROOT)) for page in pages)


def test_the_chinese_pages_are_below_their_heading() -> None:
    chinese = [page for page in _navigation() if page.endswith(".zh-CN.md")]
    assert _navigation()[-len(chinese) :] == chinese


@pytest.mark.whole
@pytest.mark.process
@pytest.mark.timeout(600)
def test_make_site_builds_without_a_network_and_a_dead_link_fails(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("needs a network namespace")
    copy = tmp_path / "rmqlog"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".venv*", ".git", "build", "golden", "__pycache__")
    )
    assert _make(copy).returncode == 0  # installs MkDocs
    done = _make(copy, "unshare", "--net")
    assert done.returncode == 0, done.stderr
    built = copy / "build" / "site" / "html"
    for page, language in (("README.zh-CN/index.html", "zh"), ("docs/read/index.html", "en")):
        html = (built / page).read_text(encoding="utf-8")
        assert re.search(r'<html lang="([\w-]+)"', html).group(1) == language  # type: ignore[union-attr]
        assert not re.search(r'(?:src|href)="https?://(?!github\.com|rmqlog\.)[^"]*\.(?:js|css|woff2?)', html)
    changed = copy / "docs" / "read.md"
    changed.write_text(
        changed.read_text(encoding="utf-8") + "\n[nowhere](nothing.md), [no heading](pop.md#no)\n"
    )
    failed = _make(copy, "unshare", "--net")
    assert failed.returncode != 0
    assert "nothing.md" in failed.stderr
    assert "pop.md#no" in failed.stderr


def _make(copy: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, "make", "-C", str(copy), "site"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
