"""Configured groups without a committed offset: `lag`, `retention`, `groups` and `check` name them, and what
shows that their offsets were lost.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmq_spark.cli.exit_codes import OK, PARTIAL
from store_format.java.fastjson import loads
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

UNKNOWN = 3  # of check
WITHOUT = "3 configured groups have no committed offset: CG_all, CG_tags, CG_tags2"
VERBS = (("lag",), ("lag", "-l"), ("retention",), ("groups",))


@pytest.fixture
def store(golden: Golden, tmp_path: Path) -> Path:
    """Of four groups, only CG_some has offsets; %RETRY%CG_tags has messages."""
    store = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    path = store / "config" / "consumerOffset.json"
    whole = loads(path.read_bytes(), str(path))
    table = {key: value for key, value in whole["offsetTable"].items() if key.endswith("@CG_some")}
    path.write_text(json.dumps({"offsetTable": table, "dataVersion": whole["dataVersion"]}))
    return store


def test_a_message_sent_back_shows_that_offsets_are_lost(rmqlog: Runner, store: Path) -> None:
    for verb, *more in VERBS:
        done = rmqlog(verb, store, *more)
        assert done.code == PARTIAL, verb
        assert f"{WITHOUT}; but %RETRY%CG_tags has messages" in done.err, verb
    done = rmqlog("check", store, "--max-lost", 0)
    assert done.code == UNKNOWN
    assert WITHOUT in done.out


def test_a_file_that_was_put_aside_shows_it(rmqlog: Runner, store: Path) -> None:
    (store / "config" / "consumerOffset.json.broken1").write_bytes(bytes(64))
    done = rmqlog("lag", store)
    assert done.code == PARTIAL
    assert f"{WITHOUT}; config/consumerOffset.json.broken1 had the offsets of groups" in done.err
    for group, code in (("CG_all", UNKNOWN), ("CG_some", OK)):
        assert rmqlog("check", store, "--max-lost", 0, "-g", group).code == code
    assert "no committed offset" not in rmqlog("lag", store, "-g", "CG_some").err


def test_a_new_group_is_no_alarm(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    path = store / "config" / "subscriptionGroup.json"
    whole = loads(path.read_bytes(), str(path))
    whole["subscriptionGroupTable"]["CG_new"] = {"groupName": "CG_new"}
    path.write_text(json.dumps(whole))
    for verb, *more in VERBS:
        done = rmqlog(verb, store, *more)
        assert done.code == OK, verb
        assert "1 configured group has no committed offset: CG_new\n" in done.err, verb
    done = rmqlog("check", store, "--max-lost", 0)
    assert (done.code, "CG_new" in done.out) == (OK, False)
