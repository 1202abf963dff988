"""`recover`: the plan by default, the change with --apply."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from rmq_spark.cli.commands.recover import in_words
from store_format import MessageStore
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.opened.store import Opened
from tests.store_format.commit.test_missing_stores import break_off
from tests.support import goldens
from tests.support.cli_runs import ROOT, Runner
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, messages_of, numbered


def test_recover_shows_first_and_changes_with_apply(rmqlog: Runner, copy_of: Golden, tmp_path: Path) -> None:
    """answers.txt has what it shows."""
    store = copy_of("crash-torn-5.5.0")
    queue = next((store / "consumequeue/Orders/1").iterdir())
    before = queue.read_bytes()
    shutil.rmtree(queue.parent)
    assert rmqlog("recover", store).code == 0
    assert not queue.exists()
    new = f"{tmp_path}/a copy"
    shown = rmqlog("recover", store, "--into", new, "--salvage").out
    assert shown.endswith(f"\nnext:    rmqlog recover {store} --into '{new}' --salvage --apply\n")
    assert max(map(len, rmqlog("recover", store).out.splitlines()[:-3])) <= 80  # of the table
    assert rmqlog("recover", store, "--apply").code == 0
    assert queue.read_bytes() == before
    assert rmqlog("recover", store).out.endswith("verdict: 353 whole messages; nothing has to be changed\n")
    assert MessageStore.open(str(store)).state == "clean"


def test_the_advice_about_a_sound_store_with_abort_ends(
    rmqlog: Runner, golden: Golden, tmp_path: Path
) -> None:
    """A broker was killed on a recovered copy: `verify` and `recover` do not send to each other for ever."""
    copy = tmp_path / "copy"
    assert rmqlog("recover", golden("crash-torn-5.5.0"), "--into", copy, "--salvage", "--apply").code == 0
    (copy / "abort").write_text("1")
    assert rmqlog("verify", copy).out.endswith(f"\nnext:    rmqlog recover {copy}\n")
    shown = rmqlog("recover", copy).out
    assert "; to remove: the file abort\n" in shown
    assert shown.endswith(f"\nnext:    rmqlog recover {copy} --apply\n")
    assert "; removed: the file abort\n" in rmqlog("recover", copy, "--apply").out
    assert not (copy / "abort").exists()
    assert rmqlog("verify", copy).out.endswith("; nothing has to be done\n")
    assert rmqlog("recover", copy).out.endswith("; nothing has to be changed\n")


def test_every_action_has_words(rmqlog: Runner, golden: Golden) -> None:
    """docs/services.md lists the actions."""
    page = (ROOT / "docs" / "services.md").read_text(encoding="utf-8")
    rows = page.partition("| action | meaning |")[2].partition("\n\n")[0]
    first_cells = [row.split("|")[1] for row in rows.splitlines() if row.startswith("| `")]
    actions = {name for cell in first_cells for name in re.findall("`([a-z]+)`", cell)}
    actions -= {"topics", "aside"}  # a part, and an action whose words name the file: test_broken_config.py
    assert len(actions) > 15
    for action in actions:
        assert in_words(action, "commitlog", 7)
    assert in_words("rebuild", "index", 0) == "writes index files"
    assert in_words("create", "consumequeue", 0) == "writes the queue: 0 entries"
    store = golden("crash-torn-5.5.0")
    found = rmqlog.rows("recover", store, "--columns", "what,byBroker,action")
    assert [row["what"] for row in found if row["action"] == "cut"] == ["removes 1 entry behind the end"]


def test_the_sizes_of_lost_files_come_from_broker_conf(
    rmqlog: Runner, golden: Golden, copy_of: Golden, tmp_path: Path
) -> None:
    store = copy_of("batchcq-5.5.0")
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(store / folder)
    assert "--broker-conf" in rmqlog.fails(2, "recover", store)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "mappedFileSizeConsumeQueue=2000\nmapperFileSizeBatchConsumeQueue=4600\nmaxHashSlotNum=100\n"
        "maxIndexNum=400\n"
    )
    rmqlog("recover", store, "--apply", "--broker-conf", conf)
    for folder in ("consumequeue", "batchconsumequeue"):
        for path in golden("batchcq-5.5.0").glob(f"{folder}/*/*/*"):
            assert (store / path.relative_to(golden("batchcq-5.5.0"))).read_bytes() == path.read_bytes()


def test_a_store_of_a_lost_cluster_is_recovered_without_the_others(rmqlog: Runner, tmp_path: Path) -> None:
    for name in ("x", "y", "z"):
        append(make_store(tmp_path / name), numbered("Old", 0, 1), options=CommitOptions(new_topics={"T": 4}))
    break_off(tmp_path, told=("x",))
    shutil.rmtree(tmp_path / "x")
    for more in ([], ["--apply"]):
        error = rmqlog.fails(1, "recover", tmp_path / "y", *more)
        assert "If it does not come back, recover once with --ignore-missing-stores" in error
    rows = rmqlog.rows("recover", tmp_path / "y", "--ignore-missing-stores")
    assert [(row["part"], row["action"]) for row in rows][:1] == [("commit", "drop")]
    done = rmqlog("recover", tmp_path / "y", "--ignore-missing-stores", "--apply")
    assert done.code == 0, done.err
    assert "verdict: 1 whole message; written: commit" in done.out
    assert [message.topic for message in messages_of(tmp_path / "y")] == ["Old"]
    assert "nothing has to be changed" in rmqlog("recover", tmp_path / "y").out


def test_a_recovered_copy_names_the_sizes_that_its_broker_needs(
    rmqlog: Runner, copy_of: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker with other sizes refuses the files, and a verdict that says nothing of them misleads."""
    store, new, conf = copy_of("crash-torn-5.5.0"), tmp_path / "new", tmp_path / "broker.conf"
    sizes = goldens.config("crash-torn-5.5.0")
    names = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
    needed = [f"{name}={sizes[name]}" for name in names]
    conf.write_text("fileReservedTime=48\n")
    done = rmqlog("recover", store, "--into", new, "--broker-conf", conf, "--apply")
    assert (
        f"{conf}: expected the sizes of the files of {store}, {', '.join(needed)}, found mapped"
        in caplog.text
    )
    assert [*(new / ".rmqlog/broker.conf").read_text().splitlines()[1:]] == needed
    for root in (store, new):
        assert f"settings: broker.conf needs {', '.join(needed)}\n" in rmqlog("verify", root).out
    assert f"settings: broker.conf needs {', '.join(needed)}\n" in done.out
    caplog.clear()
    conf.write_text("\n".join(needed))
    assert rmqlog("recover", store, "--broker-conf", conf).code == 0
    assert "expected the sizes" not in caplog.text
    assert broker_conf_of(Opened(str(new))).known_delay_levels_ms is None


def test_the_copy_of_a_crashed_store_has_no_abort_file(
    rmqlog: Runner, copy_of: Golden, tmp_path: Path
) -> None:
    store, new = copy_of("crash-torn-5.5.0"), tmp_path / "new"
    for more in ([], ["--apply"]):
        done = rmqlog("recover", store, "--into", new, *more).out
        assert "checkpoint" in done
        assert "abort" not in done
    assert not (new / "abort").exists()


def test_a_recovered_copy_keeps_the_times_of_the_commitlog(
    rmqlog: Runner, copy_of: Golden, tmp_path: Path
) -> None:
    """Retention deletes the files of the copy when it would have deleted the originals."""
    store, new = copy_of("basic-5.5.0"), tmp_path / "new"
    overwrite(store / "commitlog" / "00000000000000262144", 39043, b"X")
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        os.utime(path, (1_795_000_000 + 3600 * number,) * 2)
    assert rmqlog("recover", store, "--into", new, "--salvage", "--apply").code == 0
    times = {path.name: path.stat().st_mtime for path in (store / "commitlog").iterdir()}
    assert {path.name: path.stat().st_mtime for path in (new / "commitlog").iterdir()} == times


def test_the_next_command_has_no_option_of_the_output(rmqlog: Runner, copy_of: Golden) -> None:
    store = copy_of("crash-torn-5.5.0")
    wide = rmqlog("recover", store, "--index", "--columns", "part,what", "--wide", "-o", "table").err
    assert wide.splitlines()[-1] == f"rmqlog: next: rmqlog recover {store} --index --apply"
    assert rmqlog("recover", store, "-ojson").err.endswith(f"next: rmqlog recover {store} --apply\n")


def test_a_copy_says_what_it_leaves_out_and_keeps_the_age_of_a_bak(
    rmqlog: Runner, copy_of: Golden, tmp_path: Path
) -> None:
    root, new = copy_of("tiered-5.5.0"), tmp_path / "new"
    said = rmqlog("recover", root, "--into", new, "--apply")
    assert (said.code, said.out.count("; not copied: tiered, tiered_index_file\n")) == (0, 1)
    kept = {
        path.name: path.stat().st_mtime_ns for path in (root / "config").iterdir() if path.suffix == ".bak"
    }
    assert "consumerOffset.json.bak" in kept
    assert {name: (new / "config" / name).stat().st_mtime_ns for name in kept} == kept
