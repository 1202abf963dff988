"""Configuration files that nobody can read: reads go on, the verdict says what a broker does not serve, and
the command that it names changes something.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rmq_spark
from rmq_spark.cli.main import main
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.read import read_topics
from store_format.metadata.values import dumps
from store_format.opened.store import Opened
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered

NEW = 34  # messages of the topic that the .bak does not know


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """T and U with messages; topics.json.bak is from before U."""
    store = make_store(tmp_path / "store")
    append(store, numbered("T", 0, 20))
    topics = store / "config" / "topics.json"
    backup = topics.read_bytes()
    append(store, numbered("U", 0, NEW))
    topics.with_name("topics.json.bak").write_bytes(backup)
    return store


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(64))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _next(capsys: pytest.CaptureFixture[str], root: Path) -> str:
    main(["verify", str(root)])
    lines = capsys.readouterr().out.splitlines()
    return next((line.split(None, 1)[1] for line in lines if line.startswith("next:")), "")


@pytest.mark.parametrize("harm", [_half, _zeros, _empty])
@pytest.mark.parametrize("names", [["topics.json"], ["topics.json", "topics.json.bak"]])
def test_topics_come_back(
    root: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], names: list[str]
) -> None:
    for name in names:
        harm(root / "config" / name)
    assert rmq_spark.open(str(root)).messages("U").to_table().num_rows == NEW
    found = diagnose(str(root))
    served = NEW if len(names) == 1 else NEW + 20
    topics = "U" if len(names) == 1 else "U and T"
    about = [str(each) for each in found if "topic" in str(each).replace(str(root), "")]
    if len(names) == 1:  # one line, and one remedy
        assert len(about) == 1
        assert "which lacks U. rmqlog recover STORE --apply creates these topics" in about[0]
    assert f"{served} messages of {topics} that a broker does not serve" in found.verdict
    command = _next(capsys, root)
    assert main([*shlex.split(command)[1:], "--apply"]) == 0
    capsys.readouterr()
    assert _next(capsys, root) == ""
    assert {"T", "U"} <= (read_topics(Opened(str(root))) or {}).keys()
    kept = {path.name for path in (root / "config").glob("*.broken")}
    assert kept == ({f"{name}.broken" for name in names} if harm is not _empty else set())


def test_a_topic_without_files_that_the_bak_lacks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The index does not say which topics it has, so that a search reads the commitlog."""
    _half(root / "config" / "topics.json")
    shutil.rmtree(root / "consumequeue" / "U")
    assert f"{NEW} messages of U that a broker does not serve" in diagnose(str(root)).verdict
    main(["recover", str(root)])
    assert f"{NEW} messages of U that a broker does not serve" in capsys.readouterr().out
    assert main(["find", str(root), "k3", "--columns", "topic", "-o", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["topic", "T", "U"]


def test_a_recovered_copy_has_topics_too(root: Path, tmp_path: Path) -> None:
    _half(root / "config" / "topics.json")
    recover(str(root), into=str(tmp_path / "new")).apply()
    assert {"T", "U"} <= (read_topics(Opened(str(tmp_path / "new"))) or {}).keys()
    assert "nothing has to be done" in diagnose(str(tmp_path / "new")).verdict


def test_a_deleted_topic_comes_back_only_if_it_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A readable topics.json without the topic: somebody may have deleted it."""
    topics = root / "config" / "topics.json"
    shutil.copy(topics.with_name("topics.json.bak"), topics)
    (root / ".rmqlog" / "ledger.json").unlink()  # else it shows that the file is older
    assert f"{NEW} messages of U that a broker does not serve" in diagnose(str(root)).verdict
    assert main(["recover", str(root), "--apply"]) == 0
    assert "U" not in (read_topics(Opened(str(root))) or {})
    assert main(["recover", str(root), "--topic", "U", "--apply"]) == 0
    assert "U" in (read_topics(Opened(str(root))) or {})


_LOSSES = {
    "consumerOffset.json": "the offsets of all groups are lost",
    "delayOffset.json": "delayed messages may be delivered again",
    "subscriptionGroup.json": "the settings of groups are lost",
}


@pytest.mark.parametrize("name", _LOSSES)
def test_a_recovery_names_the_file_and_what_is_lost_with_it(
    root: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = root / "config" / name
    backup = path.with_name(f"{name}.bak")
    _zeros(path)
    whole = b"{}"
    for content, said in (
        (None, f"config/{name} is put aside: {_LOSSES[name]}"),
        (bytes(64), f"config/{name} is put aside: {_LOSSES[name]}"),
        (whole, f"config/{name} is put aside: its older .bak takes its place"),
    ):
        if content is not None:
            backup.write_bytes(content)
        assert main(["recover", str(root), "-o", "csv", "--columns", "action,what"]) == 0
        assert f"aside,{said}\n" in capsys.readouterr().out
        main(["recover", str(root)])
        assert f"; {said}; " in capsys.readouterr().out
    assert main(["recover", str(root), "--apply"]) == 0
    assert f"; {said}; written: config" in capsys.readouterr().out
    assert path.read_bytes() == whole
    backup.write_bytes(bytes(64))
    main(["recover", str(root)])
    said = f"; config/{name}.bak is put aside; to write: config\n"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("name", _LOSSES)
def test_other_files_are_kept_aside(root: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = root / "config" / name
    _zeros(path)
    assert "damaged in 1 place" in diagnose(str(root)).verdict
    command = _next(capsys, root)
    assert main([*shlex.split(command)[1:], "--apply"]) == 0
    capsys.readouterr()
    assert _next(capsys, root) == ""
    assert not path.exists()
    assert path.with_name(f"{name}.broken").read_bytes() == bytes(64)


def test_a_write_does_not_replace_what_it_cannot_read(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        _half(root / "config" / name)
    before = (root / "config" / "topics.json").read_bytes()
    with pytest.raises(CorruptStoreError, match="rmqlog recover STORE --apply"):
        append(root, numbered("V", 0, 1))
    assert (root / "config" / "topics.json").read_bytes() == before


def test_a_missing_log_has_no_next_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "commitlog")
    assert "mount its disk, or name its directory (--commitlog DIR)" in diagnose(str(root)).verdict
    assert _next(capsys, root) == ""


@pytest.mark.parametrize("named", [False, True])
def test_a_topic_gets_the_queues_that_an_old_bak_lacks(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    """The .bak is from before Orders got four queues. With `named`, a broker has loaded it already."""
    root = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    topics = root / "config" / "topics.json"
    before = topics.read_bytes()
    whole = loads(before, str(topics))
    whole["topicConfigTable"]["Orders"] |= {"readQueueNums": 1, "writeQueueNums": 1}
    topics.write_bytes(dumps(whole))
    shutil.copy(topics, f"{topics}.bak")
    if not named:
        _half(topics)
        assert _next(capsys, root) == f"rmqlog recover {root}"
    more = ["--topic", "Orders"] if named else []
    assert main(["recover", str(root), *more]) == 0
    assert "raises the topic to 4 queues" in capsys.readouterr().out
    assert main(["recover", str(root), *more, "--apply"]) == 0
    assert f"written: {'' if named else 'config, '}topics" in capsys.readouterr().out
    orders = loads(before, str(topics))["topicConfigTable"]["Orders"]
    assert loads(topics.read_bytes(), str(topics))["topicConfigTable"]["Orders"] == orders
    capsys.readouterr()
    assert _next(capsys, root) == ""
    assert main(["recover", str(root), *more]) == 0
    assert "nothing has to be changed" in capsys.readouterr().out


def test_a_lowered_number_of_queues_stays(golden: Golden, tmp_path: Path) -> None:
    """Somebody may have lowered readQueueNums: a recovery raises it only of a topic that is named."""
    root = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    topics = root / "config" / "topics.json"
    whole = loads(topics.read_bytes(), str(topics))
    whole["topicConfigTable"]["Orders"]["readQueueNums"] = 2
    topics.write_bytes(dumps(whole))
    assert main(["recover", str(root), "--apply"]) == 0
    assert loads(topics.read_bytes(), str(topics))["topicConfigTable"]["Orders"]["readQueueNums"] == 2


@pytest.mark.parametrize("verb", ["ls", "lag"])
def test_rows_without_a_topic_that_only_the_log_has_say_so(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    root = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    topics = root / "config" / "topics.json"
    said = f"are left out here; to count them: rmqlog verify {root}\n"
    assert main([verb, str(root)]) == 0
    assert said not in capsys.readouterr().err
    whole = loads(topics.read_bytes(), str(topics))
    del whole["topicConfigTable"]["Orders"]
    Path(f"{topics}.bak").write_bytes(dumps(whole))
    _half(topics)
    shutil.rmtree(root / "consumequeue" / "Orders")
    assert main([verb, str(root)]) == 0
    assert said in capsys.readouterr().err
