"""`report`: the forms and their files, and the exit codes, which are those of `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.file_edits import harm, overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.html_check import read_report


def test_each_form_goes_into_its_file(
    rmqlog: Runner, copy_of: Golden, tmp_path: Path, unchanged: Unchanged
) -> None:
    root = copy_of("basic-5.5.0")
    harm(root, "remove consumequeue/Orders/1")
    written = {}
    with unchanged(root):
        for suffix in ("html", "md", "json"):
            done = rmqlog("report", root, "-o", tmp_path / f"report.{suffix}")
            assert done.code == 3
            assert "a broker may not start: it does not serve 332 messages of Orders-1" in done.err
            assert f"next: rmqlog recover {root}" in done.err
            written[suffix] = (tmp_path / f"report.{suffix}").read_text()
    document = json.loads(written["json"])
    assert (document["mayStart"], document["next"]) == ("no", f"rmqlog recover {root}")
    assert document["next"] in read_report(written["html"]).text
    assert document["next"] in written["md"]


def test_the_answers_go_to_stdout(rmqlog: Runner, golden: Golden, copy_of: Golden) -> None:
    now = ("--now", "2026-11-21T08:00:00Z")  # retention deletes nothing for a day
    done = rmqlog("report", golden("basic-5.5.0"), *now)
    assert done.code == 0
    assert "\nbroker:  a broker may start\nverdict: sound: " in done.out
    root = copy_of("basic-5.5.0")
    overwrite(root / "commitlog/00000000000000262144", 39_000, bytes(2_000))
    lost, *_, start, verdict, _ = rmqlog("report", root, *now).out.splitlines()
    assert lost == "8 messages are known to be lost."
    why = "without it a broker serves every message that can be read"
    assert start == f"broker:  a broker may start; rmqlog recover is optional: {why}"
    assert verdict.startswith("verdict: damaged in 1 place: ")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("-o", "report.pdf"),
            "-o report.pdf: expected a name that ends with .html, .md or .json, found .pdf",
        ),
        (("-o", "report"), "-o report: expected a name that ends with .html, .md or .json, found no suffix"),
        (("-o", "there.md"), "there.md exists; give another name, or --force to replace it"),
    ],
)
def test_a_wrong_file_is_an_error(
    rmqlog: Runner, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], error: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.md").write_text("kept")
    done = rmqlog("report", golden("basic-5.5.0"), *words)
    assert done.code == 2
    assert error in done.err
    assert (tmp_path / "there.md").read_text() == "kept"


def test_a_cluster_needs_one_of_its_stores(rmqlog: Runner, golden: Golden) -> None:
    done = rmqlog("report", golden("cluster-5.5.0"))
    assert done.code == 2
    assert "give one of its stores" in done.err


def test_nothing_is_written_into_a_store(rmqlog: Runner, copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    done = rmqlog("report", root, "-o", root / "config/report.html")
    assert done.code == 2
    assert f"is inside the store {root}" in done.err
    assert not [*root.rglob("report.html*")]


def test_missing_messages_of_the_earlier_store_are_an_exit_code(
    rmqlog: Runner, golden: Golden, copy_of: Golden
) -> None:
    root = copy_of("basic-5.5.0")
    (root / "commitlog" / f"{0:020}").unlink()
    for path in (root / "consumequeue").rglob("0" * 20):
        assert path.stat().st_size
    done = rmqlog("report", root, "--before", golden("basic-5.5.0"))
    assert done.code in (1, 3)
    first = done.out.splitlines()[0]
    assert (
        " messages of the earlier store are missing or changed here. The log of this store begins at" in first
    )
    same = rmqlog("report", golden("basic-5.5.0"), "--before", golden("basic-5.5.0"))
    assert same.code == 0
