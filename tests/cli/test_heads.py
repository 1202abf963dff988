"""One set of names: what the head of a table shows is what `--columns` and `--sort` take."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rmq_spark.cli.cells import TITLES, column_of
from rmq_spark.cli.main import COMMANDS
from store_format.views.registry import ALL_VIEWS
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden
from tests.support.text_terminal import seen

NOW = ("--now", "2026-11-22T04:00:00Z")

# (store, first head, verb, other arguments)
TABLES: tuple[tuple[str, ...], ...] = (
    ("basic-5.5.0", "topic", "ls"),
    ("basic-5.5.0", "topic", "ls", "-l"),
    ("basic-5.5.0", "topic", "du"),
    ("basic-5.5.0", "topic", "du", "--by", "both"),
    ("basic-5.5.0", "kind", "du", "--files"),
    ("basic-5.5.0", "stored", "head"),
    ("basic-5.5.0", "stored", "tail"),
    ("basic-5.5.0", "stored", "find", "-t", "Orders", "-n", "3"),
    ("cluster-5.5.0", "broker", "head", "-n", "3"),
    ("basic-5.5.0", "difference", "diff", "basic-4.9.7", "-n", "3"),
    ("cleaned-5.5.0", "group", "lag", *NOW),
    ("cleaned-5.5.0", "group", "lag", *NOW, "-l"),
    ("pop-5.5.0", "group", "lag", *NOW),
    ("pop-5.5.0", "group", "lag", *NOW, "--in-flight"),
    ("cleaned-5.5.0", "group", "retention", *NOW),
    ("cleaned-5.5.0", "group", "retention", *NOW, "-l"),
    ("basic-5.5.0", "group", "groups", *NOW),
    ("basic-5.5.0", "group", "offsets"),
    ("basic-5.5.0", "topic", "offsets", "CG_some", "--to-latest"),
    ("retry-dlq-5.5.0", "group", "dlq"),
    ("retry-dlq-5.5.0", "group", "dlq", "-g", "CG_fail", "--resend"),
    ("retry-dlq-5.5.0", "time", "trace", "7F00000129765FFD2B2768793AFE0009"),
    ("delay-tx-5.5.0", "kind", "delay", *NOW),
    ("delay-tx-5.5.0", "state", "half", *NOW),
    ("crash-torn-5.5.0", "part", "recover"),
    ("basic-5.5.0", "file", "topic", "Orders", "--delete"),
    ("basic-5.5.0", "field", "group", "CG_some"),
    ("delay-tx-5.5.0", "service", "services", "--once"),
    ("cleaned-5.5.0", "kind", "clean", "--file-reserved-time", "1"),
    ("cleaned-5.5.0", "group", "clean", "--file-reserved-time", "1", "--unread"),
)
# Verbs without a table: records, reports, files.
OTHERS = {"info", "get", "export", "metrics", "check", "verify", "report", "dump", "doctor", "completion"}


def test_every_verb_has_its_table_here() -> None:
    assert {words[2] for words in TABLES} | OTHERS == set(COMMANDS)


def _heads(text: str, first: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.split("  ")[0].strip() == first)
    return re.split(" {2,}", line.strip())


@pytest.mark.parametrize("words", TABLES, ids=" ".join)
def test_every_head_is_a_name_of_columns_and_sort(
    rmqlog: Runner, golden: Golden, words: tuple[str, ...]
) -> None:
    store, first, verb, *more = words
    asked = (verb, golden(store), *(golden(word) if word in goldens.NAMES else word for word in more))
    heads = _heads(seen(400, *asked)[1], first)
    assert len(heads) > 1
    plain = rmqlog(*asked, "-o", "jsonl")
    rows = [json.loads(line) for line in plain.out.splitlines()]
    picked = rmqlog(*asked, "-o", "jsonl", "--columns", ",".join(heads))
    assert picked.code == plain.code
    for row, whole in zip(map(json.loads, picked.out.splitlines()), rows, strict=True):
        assert [TITLES.get(name, name) if name not in heads else name for name in row] == heads
        assert row == {name: whole[name] for name in row} or verb == "services"  # it has no --now
    if verb == "lag" and "--in-flight" not in more:
        for head in heads if store.startswith("cleaned") else ("ready", "in flight", "oldest pop"):
            assert rmqlog(*asked, "--sort", head.replace(" ", "-").upper()).code == 0


@pytest.mark.parametrize("view", ALL_VIEWS, ids=lambda view: view.name)
def test_no_title_is_the_name_of_another_column(view: object) -> None:
    names = [column.name for column in view.columns]  # type: ignore[attr-defined] # mypy: an object
    for name in names:
        title = TITLES.get(name, name)
        assert column_of(title, names, (name,)) == name


def test_sort_orders_amounts_down_and_names_up(rmqlog: Runner, golden: Golden) -> None:
    asked = ("lag", golden("cleaned-5.5.0"), *NOW, "-o", "jsonl")

    def values(sort: str, *names: str) -> list[object]:
        lines = rmqlog(*asked, "--sort", sort, "--columns", ",".join(names)).out.splitlines()
        return [value for line in lines for value in json.loads(line).values() if value is not None]

    for sort in ("lost", "lagMessages", "next loss"):
        found = [int(str(value)) for value in values(sort, sort)]
        assert found == sorted(found, reverse=True)
        assert len(set(found)) > 1
    assert values("topic", "topic") == sorted(values("topic", "topic"), key=str)
    assert len(values("queue", "queue")) > len(values("lag", "group"))  # rows of queues


def test_a_typo_names_the_right_column(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    for verb, typo, meant in (
        ("lag", "lagg", "lag"),
        ("lag", "next lost", "next loss"),
        ("lag", "lagMessage", "lagMessages"),
        ("head", "stord", "stored"),
        ("ls", "messges", "messages"),
        ("services", "servce", "service"),
    ):
        said = rmqlog.fails(2, verb, golden("basic-5.5.0"), "--columns", typo)
        assert said == f"--columns: unknown column '{typo}'; did you mean {meant}?"
    said = rmqlog.fails(2, "lag", golden("basic-5.5.0"), "--sort", "agee")
    assert said == "--sort: unknown column 'agee'; did you mean age?"
