"""The report in a real browser: what a store says does not run, and the page fits a telephone.

`make proofs` runs this module, which needs Chromium; the elements of the page are checked in test_report.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_spark.report import report
from tests.support import oracle
from tests.support.browser import Browser, PageSeen, browser
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.store_files import write_log, write_queue

NOW_MS = 1_795_500_000_000
_RUNS = "document.title='ran';console.log('ran');alert('ran');fetch('http://127.0.0.1:9/ran')"
# No "/" in what has to be the name of a directory.
_NAME = "<img src=x onerror=document.title='ran'><svg onload=console.log('ran')>"
_TEXT = f'</title></style></td><script>{_RUNS}</script><img src=http://127.0.0.1:9/ran onerror="{_RUNS}">'
_FILE_SIZE = 1 << 16


def _hostile_store(root: Path) -> Path:
    """Topics, groups, keys, tags, properties and bodies are markup, and so is the store's own path."""
    properties = oracle.encode_properties(
        [("TAGS", _TEXT), ("KEYS", _NAME.replace(" ", "\t")), ("UNIQ_KEY", _TEXT), (_NAME, _TEXT)]
    )
    messages = [Message(_NAME.encode(), _TEXT.encode(), properties, 0, i) for i in range(5)]
    write_queue(root, write_log(root, messages, _FILE_SIZE), 100, f"{_NAME}/0")
    log = next((root / "commitlog").iterdir())
    overwrite(log, 400, b"\xff" * 40)  # lost messages are named
    (root / "config").mkdir()
    offsets = {f"{_NAME}@{_TEXT}": {"0": 2}, f"%RETRY%{_TEXT}@{_TEXT}": {"0": 0}}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    (root / "config/topics.json").write_text(f'{{"topicConfigTable": {{"{_TEXT!r}"')
    return root


def _page(root: Path, path: Path) -> Path:
    found = report(str(root), now_ms=NOW_MS, next_command=lambda _: f"rmqlog recover '{_TEXT}'")
    path.write_text(found.html(), encoding="utf-8")
    return path


def _is_quiet(opened: PageSeen) -> bool:
    return not (opened.requests or opened.console or opened.dialogs) and opened.title != "ran"


def test_a_proof_without_a_browser_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    said = r"needs Chromium.* apt-get install chromium"
    with pytest.raises(pytest.fail.Exception, match=said), browser(tmp_path / "profile"):
        pass


@pytest.mark.whole
@pytest.mark.process
@pytest.mark.timeout(600)
def test_nothing_of_a_hostile_store_runs_and_the_page_fits_the_window(
    copy_of: Golden, tmp_path: Path
) -> None:
    damaged = copy_of("basic-5.5.0")
    overwrite(damaged / "commitlog" / oracle.file_name(262_144), 39_000, bytes(2_000))
    hostile = _page(_hostile_store(tmp_path / _NAME), tmp_path / "hostile.html")
    text = hostile.read_text()
    assert text.count("onerror") > 5
    pages = [hostile, _page(damaged, tmp_path / "damaged.html")]
    with browser(tmp_path / "profile") as chromium:
        _check_that_the_browser_would_tell(chromium, text, tmp_path)
        for page in pages:
            for width in (360, 1200):
                opened = chromium.open(page, width)
                assert _is_quiet(opened), (page.name, width, opened)
                assert opened.title.startswith("rmqlog report")
                assert opened.width <= width, (page.name, width)
                page.with_suffix(f".{width}.png").write_bytes(opened.picture)
            page.with_suffix(".pdf").write_bytes(chromium.pdf())


def _check_that_the_browser_would_tell(chromium: Browser, text: str, directory: Path) -> None:
    """The same page without its policy and with a script, and one that is too wide, are found out."""
    policy = text.index("<meta http-equiv"), text.index(">", text.index("<meta http-equiv")) + 1
    planted = directory / "planted.html"
    planted.write_text(f"{text[: policy[0]]}{text[policy[1] :]}<script>{_RUNS}</script>", encoding="utf-8")
    opened = chromium.open(planted, 360)
    assert (opened.title, opened.dialogs, opened.requests) == ("ran", ["ran"], ["http://127.0.0.1:9/ran"])
    assert "ran" in opened.console[0]
    planted.write_text(f"{text}<script>{_RUNS}</script><img src=http://127.0.0.1:9/ran>", encoding="utf-8")
    opened = chromium.open(planted, 360)
    assert opened.title != "ran"
    assert len(opened.console) >= 2  # the policy forbids both, and the console says so
    planted.write_text(f"{text}<div style='width:2000px'>x</div>", encoding="utf-8")
    assert chromium.open(planted, 360).width == 2000
