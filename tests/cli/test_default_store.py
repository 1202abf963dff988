"""RMQLOG_STORE: the store of a command line that names none. An argument wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_spark.cli.exit_codes import OK, USAGE
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE, OTHER = "basic-5.5.0", "retry-dlq-5.5.0"
PLACE = "Orders/0@3"


@pytest.fixture
def default(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RMQLOG_STORE", str(golden(STORE)))
    return golden(STORE)


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("head", "--topic", "Orders", "-n", 2),
        ("find", "--key", "AaBB"),
        ("find", "AaBB"),
        ("find", "AaBB", "BB"),
        ("get", PLACE),
        ("get", "-o", "json", "--", PLACE),
        ("trace", PLACE),
        ("dump", PLACE),
        ("export", "-", "--format", "jsonl", "--topic", "Orders", "-n", 2),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_the_default_is_used_where_the_store_is_left_out(
    words: tuple[object, ...], rmqlog: Runner, default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = rmqlog(*words)
    monkeypatch.delenv("RMQLOG_STORE")
    assert left_out == rmqlog(words[0], default, *words[1:])
    assert left_out.code == OK
    assert rmqlog(*words).code != OK


def test_an_argument_wins(
    rmqlog: Runner, golden: Golden, default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = golden(OTHER)
    monkeypatch.chdir(other.parent)
    for words in (
        ("ls", other),
        ("ls", other.name),
        ("offsets", other),
        ("find", other.name, "--topic", "*"),
    ):
        with_default = rmqlog(*words)
        assert str(default) not in with_default.out + with_default.err
        monkeypatch.delenv("RMQLOG_STORE")
        assert with_default == rmqlog(*words)
        assert with_default.code == OK
        monkeypatch.setenv("RMQLOG_STORE", str(default))


def test_several_ids_are_not_a_store_and_an_id(rmqlog: Runner, default: Path) -> None:
    several = "for several, write -k AaBB -k id-2003"
    assert several in rmqlog.fails(USAGE, "trace", "AaBB", "id-2003")
    assert rmqlog("trace", "-k", "AaBB", "-k", "id-2003").code == OK
    assert "rmqlog get takes one ID, call it for each" in rmqlog.fails(USAGE, "get", "A-1", "A-2")
    assert "nowhere/store does not exist" in rmqlog.fails(1, "trace", "nowhere/store", "AaBB")


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_store_is_wrong_usage(
    value: str | None, rmqlog: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RMQLOG_STORE", raising=False)
    if value is not None:
        monkeypatch.setenv("RMQLOG_STORE", value)
    assert rmqlog.fails(USAGE, "lag") == (
        "STORE is missing: give the store directory, or set RMQLOG_STORE; see rmqlog lag --help"
    )
    assert "Missing argument 'ID'" in rmqlog.fails(USAGE, "get", "x")


def test_doctor_and_help_name_the_variable(rmqlog: Runner, default: Path) -> None:
    rows = {row["check"]: row for row in rmqlog.rows("doctor")}
    assert rows["RMQLOG_STORE"]["found"].startswith(f"{default}, ")
    assert rows["store"]["found"].startswith(f"{default}: ")
    assert "RMQLOG_STORE" in rmqlog("--help").out
