"""A store of a cluster is missing: the others neither drop their part of a commit nor write a batch again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import ClusterMember, StagedFile
from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import JOB_KEYS_MAX, Ledger, LeftOut
from store_format.commit import append as append_module
from store_format.commit.append import commit_cluster, flush, plan, recover
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.recover import recover as plan_recovery
from store_format.diagnose import diagnose
from store_format.errors import StoreNotFoundError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites
from store_format.opened.store import Opened
from tests.support.staged import append, make_store, messages_of, numbered, stage
from tests.support.unchanged import snapshot

_OPTIONS = CommitOptions(clock=lambda: 1_700_000_200_000, new_topics={"T": 4})
_IGNORING = replace(_OPTIONS, ignore_missing_stores=True)
_FILES = FileWrites(sync=False)
_NAMES = ("x", "y", "z")
_SIZE = 10  # messages of a batch


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    directory = tmp_path / "cluster"
    directory.mkdir()
    for name in _NAMES:
        append(make_store(directory / name), numbered("Old", 0, 1), options=_OPTIONS)
    return directory


def _write(
    cluster: Path, number: int, *names: str, left_out: tuple[str, ...] = (), options: CommitOptions = _OPTIONS
) -> bool:
    """The batch of that number, its messages in the first store named; the other stores get none."""
    parts = {
        str(cluster / name): [stage(cluster / name, numbered("T", _SIZE * number, _SIZE), write=f"w{number}")]
        if name == names[0]
        else []
        for name in names
    }
    watched = [str(cluster / name) for name in left_out]
    results = commit_cluster(parts, key=("q", number), watched=watched, options=options)
    return all(result.committed for result in results.values())


def _numbers(*roots: Path) -> list[int]:
    """The batch's messages in these stores."""
    messages = [message for root in roots for message in messages_of(root)]
    return sorted(int(message.body.split()[1]) for message in messages if message.topic == "T")


def break_off(
    cluster: Path, *, told: tuple[str, ...], names: tuple[str, ...] = _NAMES, journal_id: str = "j1"
) -> None:
    """As a kill leaves it when only some stores know that all have the journal of batch 1."""
    journals = {}
    for i, name in enumerate(names):
        root = str(cluster / name)
        staged = stage(cluster / name, numbered("T", _SIZE * i, _SIZE), write="w1")
        opened = open_store(root, _OPTIONS, _FILES)
        journals[root] = plan(opened, (staged,), key=("q", 1), store_timestamps=None)
    members = tuple(ClusterMember.of(Opened(root), _FILES) for root in journals)
    for root, journal in journals.items():
        complete = Path(root).name in told
        replace(journal, id=journal_id, members=members, complete=complete).write(Opened(root), _FILES)


def _move_away(cluster: Path) -> None:
    (cluster / "x").rename(cluster.parent / "x-away")


def _empty_mount_point(cluster: Path) -> None:
    _move_away(cluster)
    (cluster / "x").mkdir()


def _another_store(cluster: Path) -> None:
    _move_away(cluster)
    append(make_store(cluster / "x"), numbered("Other", 0, 3), options=_OPTIONS)


def _bring_back(cluster: Path) -> None:
    shutil.rmtree(cluster / "x", ignore_errors=True)
    (cluster.parent / "x-away").rename(cluster / "x")


@pytest.mark.parametrize("lose", [_move_away, _empty_mount_point, _another_store])
def test_a_store_waits_for_the_one_that_knows_whether_the_commit_has_begun(
    cluster: Path, lose: Callable[[Path], None]
) -> None:
    break_off(cluster, told=("x",))
    lose(cluster)
    for name in ("y", "z"):
        root = cluster / name
        before, missing = snapshot(root), f"cluster/x with the id {_id_of(root, 'x')}, found no such store"
        for act in (
            lambda root=root: append(root, numbered("Later", 0, 1), options=_OPTIONS),
            lambda root=root: flush(str(root)),
            lambda: _write(cluster, 2, "y", "z"),
        ):
            with pytest.raises(StoreNotFoundError, match=missing):
                act()
        after = snapshot(root)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        assert all(path.startswith(".rmqlog/staging") for path in changed), changed
    _bring_back(cluster)
    parts: dict[str, list[StagedFile]] = {str(cluster / name): [] for name in _NAMES}
    results = commit_cluster(parts, key=("q", 1), options=_OPTIONS)
    assert not any(result.committed for result in results.values()), "the batch is completed, and counts"
    assert _numbers(*(cluster / name for name in _NAMES)) == list(range(3 * _SIZE))


def _id_of(root: Path, name: str) -> str:
    journal = Journal.read(Opened(str(root)))
    assert journal is not None
    return dict(journal.members)[name]


def test_a_cluster_that_is_reached_by_another_path_is_completed_there(cluster: Path) -> None:
    break_off(cluster, told=("x",))
    other = shutil.copytree(cluster, cluster.parent / "other")
    before = snapshot(cluster)
    for name in ("z", "y", "x"):
        recover(str(other / name), options=_OPTIONS)
    assert snapshot(cluster) == before
    assert _numbers(*(other / name for name in _NAMES)) == list(range(3 * _SIZE))


@pytest.mark.parametrize("told", [(), ("x",)])
def test_one_store_in_another_directory_waits_for_its_cluster(cluster: Path, told: tuple[str, ...]) -> None:
    """Nobody there is asked by the store's absolute path."""
    break_off(cluster, told=told)
    alone = shutil.copytree(cluster / "y", cluster.parent / "alone" / "y")
    with pytest.raises(StoreNotFoundError, match="alone/x with the id"):
        recover(str(alone), options=_OPTIONS)
    again = shutil.copytree(cluster / "y", cluster / "copy-of-y")
    if told:
        recover(str(again), options=_OPTIONS)
        assert _numbers(again) == list(range(_SIZE, 2 * _SIZE))
    else:
        with pytest.raises(StoreNotFoundError, match="cluster/y with the id"):
            recover(str(again), options=_OPTIONS)


def test_a_renamed_store_completes_its_part(cluster: Path) -> None:
    break_off(cluster, told=("x",))
    renamed = (cluster / "y").rename(cluster / "y2")
    recover(str(renamed), options=_OPTIONS)
    assert _numbers(renamed) == list(range(_SIZE, 2 * _SIZE))
    (cluster / "x").rename(cluster / "x2")
    with pytest.raises(StoreNotFoundError, match="cluster/x"):
        recover(str(cluster / "z"), options=_OPTIONS)


def test_the_caller_says_that_a_store_does_not_come_back(
    cluster: Path, caplog: pytest.LogCaptureFixture
) -> None:
    break_off(cluster, told=("x",))
    _move_away(cluster)
    assert _write(cluster, 1, "y", "z", options=_IGNORING)
    assert "y: its part of an interrupted commit, 10 messages, is dropped" in caplog.text
    assert _numbers(cluster / "y", cluster / "z") == list(range(_SIZE, 2 * _SIZE)), "the whole batch, once"
    assert not _write(cluster, 1, "y", "z")
    assert _write(cluster, 2, "y", "z"), "the stores have forgotten x"


def test_a_store_that_knows_that_the_commit_has_begun_waits_for_nobody(cluster: Path) -> None:
    break_off(cluster, told=("y",))
    _move_away(cluster)
    for options in (_IGNORING, _OPTIONS):
        recover(str(cluster / "z"), options=options)
        recover(str(cluster / "y"), options=options)
    assert _numbers(cluster / "y", cluster / "z") == list(range(_SIZE, 3 * _SIZE))
    assert list(Ledger.read(Opened(str(cluster / "y"))).begun) == ["j1"]
    _bring_back(cluster)
    recover(str(cluster / "x"), options=_OPTIONS)
    assert _numbers(cluster / "x") == list(range(_SIZE))


def _said(root: Path) -> str:
    """What `verify` says about the interrupted commit."""
    problems = diagnose(str(root))
    (advice,) = {each.advice for each in problems if each.file.endswith("journal.json")}
    return advice


@pytest.mark.parametrize("told", [(), ("x",)])
def test_verify_says_what_the_next_writer_does(cluster: Path, told: tuple[str, ...]) -> None:
    break_off(cluster, told=told)
    root = cluster / "y"
    said = _said(root)
    assert said.startswith(f"The next writer {'completes' if told else 'drops'} this commit")
    (row,) = [each for each in plan_recovery(str(root)).table().to_pylist() if each["part"] == "commit"]
    assert row["action"] == ("complete" if told else "drop")
    _move_away(cluster)
    with pytest.raises(StoreNotFoundError, match="cluster/x with the id") as refused:
        recover(str(root), options=_OPTIONS)
    assert _said(root) == (
        f"The next writer refuses, and until then readers see none of its messages: {refused.value}"
    )
    with pytest.raises(StoreNotFoundError, match="cluster/x with the id"):
        plan_recovery(str(root)).table()
    _bring_back(cluster)
    recover(str(root), options=_OPTIONS)
    assert _numbers(root) == list(range(_SIZE, 2 * _SIZE) if told else ())


def test_verify_says_that_staged_files_are_missing(cluster: Path) -> None:
    break_off(cluster, told=("y",))
    shutil.rmtree(cluster / "y" / ".rmqlog" / "staging")
    with pytest.raises(StoreNotFoundError) as refused:
        recover(str(cluster / "y"), options=_OPTIONS)
    assert _said(cluster / "y").endswith(str(refused.value))


# ---- the key counts in the whole cluster -------------------------------------------------------------------


def test_a_store_that_was_left_out_does_not_write_the_batch_again(cluster: Path) -> None:
    with StoreLock(str(cluster / "x")):  # a broker runs there
        assert _write(cluster, 1, "y", left_out=("x",))
    shutil.move(cluster / "y", cluster.parent / "y-away")
    for names in (("x",), ("x", "z")):
        with pytest.raises(
            StoreNotFoundError, match=r"batch 1 of q: expected the store .*cluster/y with the id"
        ):
            _write(cluster, 1, *names)
    shutil.move(cluster.parent / "y-away", cluster / "y")
    assert not _write(cluster, 1, *_NAMES)
    assert _numbers(*(cluster / name for name in _NAMES)) == list(range(_SIZE, 2 * _SIZE))
    assert _write(cluster, 2, "x", "y")
    assert not (cluster / "x" / ".rmqlog" / "left-out").exists(), "the ledger has a later batch"


def test_no_batch_is_written_that_a_missing_store_would_not_know(cluster: Path) -> None:
    assert _write(cluster, 1, "x", "y", "z")
    _move_away(cluster)
    assert not _write(cluster, 1, "y", "z"), "a ledger that has the key answers"
    with pytest.raises(
        StoreNotFoundError, match=r"batch 2 of q: .*cluster/x with the id .*Nothing was written"
    ):
        _write(cluster, 2, "y", "z")
    parts = {str(cluster / "y"): [stage(cluster / "y", numbered("T", 500, 1))], str(cluster / "z"): []}
    commit_cluster(parts, options=_OPTIONS)  # a batch without a key
    append(cluster / "y", numbered("T", 600, 1), key=("own", 1), options=_OPTIONS)  # of one store
    assert _write(cluster, 2, "y", "z", options=_IGNORING)
    assert _write(cluster, 3, "y", "z")


def test_a_ledger_names_the_stores_that_got_messages(cluster: Path) -> None:
    assert _write(cluster, 1, "x", "y")
    for name in ("x", "y"):
        root = str(cluster / name)
        assert Ledger.read(Opened(root)).keys["q"].members == (
            ClusterMember.of(Opened(str(cluster / "x")), _FILES),
        )
        assert ClusterMember.id_of(Opened(str(cluster / "y"))) is None


def test_a_renamed_store_of_the_cluster_is_there(cluster: Path) -> None:
    assert _write(cluster, 1, "x", "y")
    (cluster / "x").rename(cluster / "renamed")
    assert _write(cluster, 2, "y", "renamed")


def test_notes_of_batch_jobs_are_as_many_as_a_ledger_keeps(tmp_path: Path) -> None:
    root = str(tmp_path)
    stream = LeftOut(("stream", 7), (ClusterMember("s", "1"),))
    stream.add_to(Opened(root), _FILES, is_kept=True)
    for number in range(JOB_KEYS_MAX + 20):
        LeftOut((f"job {number}", 1), (ClusterMember("j", "2"),)).add_to(Opened(root), _FILES, is_kept=False)
    for number in (3, 5, 4):
        LeftOut(("again", number), (ClusterMember(f"a{number}", "3"),)).add_to(
            Opened(root), _FILES, is_kept=True
        )
    assert len(list((tmp_path / ".rmqlog" / "left-out").iterdir())) == JOB_KEYS_MAX + 3
    assert LeftOut.all_members(Opened(root)) == {ClusterMember(f"a{number}", "3") for number in (4, 5)} | {
        ClusterMember("j", "2"),
        ClusterMember("s", "1"),
    }


def test_a_store_without_messages_of_the_batch_knows_of_it_before_it_is_published(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer dies when x has published, and y has not noted the key yet; then x is missing."""
    with monkeypatch.context() as patched:
        patched.setattr(append_module, "_finish", _die)
        with pytest.raises(KeyboardInterrupt):
            _write(cluster, 1, "x", "y")
    _move_away(cluster)
    with pytest.raises(StoreNotFoundError, match=r"batch 1 of q: expected the store .*cluster/x with the id"):
        _write(cluster, 1, "y")
    _bring_back(cluster)
    assert not _write(cluster, 1, "x", "y")
    assert _write(cluster, 2, "x", "y")
    assert not (cluster / "y" / ".rmqlog" / "left-out").exists()


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_note_forgets_only_the_stores_that_do_not_come_back(cluster: Path) -> None:
    ids = {name: ClusterMember.of(Opened(str(cluster / name)), _FILES) for name in ("y", "z")}
    note = LeftOut(("q", 1), tuple(ids.values()))
    note.add_to(Opened(str(cluster / "x")), _FILES, is_kept=False)
    shutil.move(cluster / "y", cluster.parent / "y-away")
    assert _write(cluster, 5, "x", "z", options=replace(_IGNORING, keeps_key=True)), "of another stream"
    # the ledger of x has 5, so its note of batch 1 is settled; a note of another key stays
    other = LeftOut(("job", 1), (ClusterMember("gone", "f" * 16), ids["z"]))
    other.add_to(Opened(str(cluster / "x")), _FILES, is_kept=False)
    with pytest.raises(StoreNotFoundError, match="cluster/gone"):
        _write(cluster, 6, "x", "z")
    assert _write(cluster, 6, "x", "z", options=_IGNORING)
    assert LeftOut.all_members(Opened(str(cluster / "x"))) == {ids["z"]}


def test_a_store_in_use_still_names_the_store_that_does_not_come_back(cluster: Path) -> None:
    """A write forgets the missing store only in the stores that it has locked, and the error says so."""
    assert _write(cluster, 1, "x", "y", "z")
    _move_away(cluster)
    assert _write(cluster, 2, "y", left_out=("z",), options=_IGNORING)
    for names, left_out in ((("y",), ("z",)), (("y", "z"), ())):
        with pytest.raises(StoreNotFoundError, match="once is enough if no other store of the cluster"):
            _write(cluster, 3, *names, left_out=left_out)
    assert _write(cluster, 3, "y", "z", options=_IGNORING)
    assert _write(cluster, 4, "y", "z")


def test_a_copy_beside_its_original_gets_an_id_of_its_own(cluster: Path) -> None:
    assert _write(cluster, 1, "z")
    for name in ("a", "zz"):
        shutil.copytree(cluster / "z", cluster / name)
    parts = {
        str(cluster / name): [stage(cluster / name, numbered("T", i, 1), write="w2")]
        for i, name in enumerate(("a", "z", "zz"))
    }
    own = ClusterMember.id_of(Opened(str(cluster / "z")))
    commit_cluster(parts, key=("q", 2), options=_OPTIONS)
    ids = [ClusterMember.id_of(Opened(root)) for root in parts]
    assert len(set(ids)) == 3
    assert ids[1] == own, "the store that the ledgers name keeps its id"
    for root in parts:
        assert [each.id for each in sorted(Ledger.read(Opened(root)).keys["q"].members)] == ids


def test_a_copy_says_that_its_original_has_the_part(cluster: Path) -> None:
    break_off(cluster, told=())
    again = shutil.copytree(cluster / "y", cluster / "copy-of-y")
    with pytest.raises(StoreNotFoundError, match=r"copy of the store .*cluster/y"):
        recover(str(again), options=_OPTIONS)
