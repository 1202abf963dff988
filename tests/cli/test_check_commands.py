"""`check`: one line and the exit codes of monitoring plugins, for stores and limits."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden, Unchanged

# In basic-5.5.0 CG_tags is 1,137 messages behind, CG_some 1,076, CG_tags2 300 and CG_all none. In
# cleaned-5.5.0 CG_some has lost 123 messages, and groups lose more at 04:00 on 25 November.
NOW = ("--now", "2026-11-22T04:00:00Z")
OK, WARNING, CRITICAL, UNKNOWN = range(4)

CASES: dict[str, list[tuple[str, int]]] = {
    "basic-5.5.0": [
        ("--max-lag 1137", OK),
        ("--max-lag 1136", CRITICAL),
        ("--max-lag 1136:2000", WARNING),
        ("--max-lag 1000:1136", CRITICAL),
        ("--max-lag 1136:", WARNING),
        ("--max-lag 0 --group CG_all", OK),
        ("--max-lag 0 --group CG_a* --topic Audit", OK),
        ("--max-lag 1076 --group CG_some", OK),
        ("--max-lag 300:1076 --group CG_some", WARNING),
        ("--max-age 1h:2d", WARNING),
        ("--max-age 1h", CRITICAL),
        ("--max-age 30d", OK),
        ("--max-age 30d --max-lag 1000", CRITICAL),
        ("--max-lost 0", OK),
        ("--max-lag 100 --max-age 1h --max-lost 0 --max-loss-in 1h", CRITICAL),
        ("--max-lag 1 --group nobody", UNKNOWN),
        ("--max-lag 1 --topic nothing", UNKNOWN),
        ("--max-lag x", UNKNOWN),
        ("--max-lag 20:10", UNKNOWN),
        ("--max-lag :", UNKNOWN),
        ("--max-age 5", UNKNOWN),
        ("--max-loss-in 1h:2h", UNKNOWN),
        ("--none", UNKNOWN),
        ("", UNKNOWN),
    ],
    "cleaned-5.5.0": [
        ("--max-lost 0", CRITICAL),
        ("--max-lost 0:1000", WARNING),
        ("--max-lost 0 --group CG_all", OK),
        ("--max-loss-in 24h", OK),
        ("--max-loss-in 30d:24h", WARNING),
        ("--max-loss-in 30d", CRITICAL),
    ],
    "rocksdb-5.5.0": [("--max-lag 1000", OK)],
    "pop-5.5.0": [("--max-lag 0", CRITICAL), ("--max-lag 100000", OK)],
    "cluster-5.5.0": [("--max-lag 1000000", OK)],
}
# label=value[unit];warning;critical;min, of the guidelines for monitoring plugins
_DATUM = re.compile(r"(lag|age|lost|loss_in)=(U|[\d.]+s?);([\d.]+:?)?;([\d.]+:?)?;0")


@pytest.mark.parametrize(
    ("name", "arguments", "code"), [(name, *case) for name, cases in CASES.items() for case in cases]
)
def test_the_codes_of_plugins(rmqlog: Runner, golden: Golden, name: str, arguments: str, code: int) -> None:
    done = rmqlog("check", golden(name), *arguments.split(), *NOW)
    assert done.code == code, done.out
    (line,) = done.out.splitlines()
    state, _, text = line.partition(" - ")
    assert state == f"RMQLOG {('OK', 'WARNING', 'CRITICAL', 'UNKNOWN')[code]}"
    assert text
    for datum in line.partition(" | ")[2].split():
        assert _DATUM.fullmatch(datum), datum


def test_the_line_names_the_worst_and_has_the_numbers(
    rmqlog: Runner, golden: Golden, unchanged: Unchanged
) -> None:
    with unchanged(golden("basic-5.5.0")):
        done = rmqlog("check", golden("basic-5.5.0"), "--max-lag", "200:1100", "--max-age", "1d", *NOW)
    assert done.out == (
        "RMQLOG CRITICAL - CG_tags on Orders: lag 1,137; CG_some on Orders: lag 1,076; CG_tags2 on Metrics: "
        "lag 300 | lag=1137;200;1100;0 age=76048.133s;;86400;0\n"
    )


def test_each_reason_names_the_broker_if_there_are_several(rmqlog: Runner, golden: Golden) -> None:
    done = rmqlog("check", golden("cluster-5.5.0"), "--max-lag", 0, *NOW)
    reasons = done.out.partition(" - ")[2].partition(" | ")[0].split("; ")
    named = [reason for reason in reasons if ": lag " in reason]
    assert named
    assert all(re.search(r" on \S+ of broker-[a-z]\S*: lag ", reason) for reason in named), done.out


def test_what_cannot_be_read_is_unknown(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    done = rmqlog("check", tmp_path / "nowhere", "--max-lag", 1)
    assert (done.code, done.err) == (UNKNOWN, "")
    assert done.out.startswith("RMQLOG UNKNOWN - ")
    assert rmqlog("check", "--max-lag", 1).code == UNKNOWN
    store = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    shutil.rmtree(store / "consumequeue" / "Audit")
    (store / "consumequeue" / "Audit").symlink_to("/nowhere")
    done = rmqlog("check", store, "--max-lag", 5000)
    assert done.code == UNKNOWN, done.out
    assert "symbolic link" in done.out
    assert rmqlog("check", store, "--max-lag", 1000).code == CRITICAL  # worse than a part that is unknown


def test_a_group_whose_lag_nobody_knows(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable": {"Orders@G|1": {"0": -1}, "Orders@G2": {"0": 300}}}')
    done = rmqlog("check", store, "--max-lag", 1000)
    assert done.code == UNKNOWN
    assert "G¦1: lag unknown" in done.out
    assert done.out.count("|") == 1
    assert rmqlog("check", store, "--max-lag", 1000, "-g", "G2").code == OK


def test_help_is_no_check(rmqlog: Runner) -> None:
    assert rmqlog("check", "--help").code == 0


def _fleet(path: Path, golden: Golden) -> Path:
    """Two brokers, and a mount point without its mount, a broken link and the rest of a store."""
    for name, store in (("a", golden("basic-5.5.0")), ("b", golden("cluster-5.5.0") / "broker-b")):
        shutil.copytree(store, path / name)
    (path / "unmounted").mkdir()
    (path / "link").symlink_to(path / "nowhere")
    (path / "rest" / "config").mkdir(parents=True)
    (path / "rest" / "config" / "consumerOffset.json").write_text("{}")
    return path


def test_a_broker_that_is_missing_is_unknown(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    fleet = _fleet(tmp_path / "fleet", golden)
    done = rmqlog("check", fleet, "--max-lost", "0", *NOW)
    assert done.code == UNKNOWN
    for name, why in (
        ("unmounted", "the directory is empty; is its file system mounted?"),
        ("link", "the link leads nowhere"),
        ("rest", "it has config, and no commitlog"),
    ):
        assert f"{fleet / name} is no store: {why}" in done.out
        assert f"{fleet / name} is no store: {why}" in done.err
    for path in (fleet / "unmounted", fleet / "rest" / "config"):
        shutil.rmtree(path)
    (fleet / "link").unlink()
    (fleet / "rest" / "notes").write_text("of the owner")
    (fleet / "README").write_text("no directory")
    done = rmqlog("check", fleet, "--max-lost", "0", *NOW)
    assert done.code == OK
    assert done.err.splitlines()[-1] == f"rmqlog: left out: {fleet / 'rest'} is no store: it has notes"


def test_the_number_of_stores_is_checked(rmqlog: Runner, golden: Golden) -> None:
    given = ("check", golden("cluster-5.5.0"), "--max-lag", "1000000", *NOW, "--expect-stores")
    assert rmqlog(*given, "2").code == OK
    done = rmqlog(*given, "3")
    assert done.code == UNKNOWN
    assert "expected 3 stores (--expect-stores), found 2" in done.out


def test_a_member_that_is_left_out_is_one_of_the_cluster(
    rmqlog: Runner, golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = tmp_path / "fleet"
    shutil.copytree(golden("cluster-5.5.0"), fleet)
    shutil.rmtree(fleet / "broker-b" / "commitlog")
    rmqlog("ls", fleet)
    (record,) = (each for each in caplog.records if "skipped" in each.getMessage())
    assert record.getMessage().startswith(
        f"1 stores of {fleet} cannot be read and are skipped: {fleet}/broker-b"
    )
