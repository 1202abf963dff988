"""Waiters: woken by an append of any process, and never told "nothing" while a message is there."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from rmq_spark.broker.pop import waiting
from rmq_spark.broker.pop.waiting import Waiter, WaiterLook, notify
from store_format.commit.options import CommitOptions
from store_format.errors import StoreInUseError
from tests.support.fork_server import ForkServer
from tests.support.forks import fork_with_threads
from tests.support.staged import append, make_store, numbered
from tests.support.writes import held

_ASYNC = CommitOptions(sync=False, clock=lambda: 1_700_000_100_000, lock_timeout=20.0)
_LONG = 20.0  # seconds; nothing waits that long unless a wake is lost


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < _LONG, "a wake was lost: a wait that ends by its time looks once more"
    assert [each.name for each in threading.enumerate() if each.name == "rmqlog-waiting"] == []


def _send(root: Path, topic: str = "T", count: int = 4) -> None:
    append(root, numbered(topic, 0, count), options=_ASYNC)


def _offsets(look: WaiterLook) -> dict[tuple[str, str, int], int]:
    return {
        (Path(store.root).name, *key): queue.max_offset
        for store in look.stores
        for key, queue in store.queues.items()
    }


def _all_of(look: WaiterLook) -> int:
    return sum(_offsets(look).values())


def _later(action: Callable[[], object], seconds: float = 0.05) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def _news(waiter: Waiter, look: WaiterLook) -> WaiterLook:
    """The look that ends the wait."""
    found = waiter.wait(look, _LONG)
    assert found is not None
    return found


def _send_soon(root: Path) -> None:
    time.sleep(0.05)
    _send(root)


def test_an_append_of_another_process_wakes(root: Path, forks: ForkServer) -> None:
    forks.call(_send, root, "Other")  # from now on it has imported what it needs
    with Waiter(str(root), ["T", "%RETRY%g_T"]) as waiter:
        look = waiter.look()
        assert _offsets(look) == {}
        sending = threading.Thread(target=forks.call, args=(_send_soon, root))
        sending.start()
        woken = _news(waiter, look)
        assert _offsets(woken) == {("store", "T", queue): 1 for queue in range(4)}
        sending.join()


def test_what_comes_after_the_look_ends_the_wait_also_if_it_came_before_the_wait(root: Path) -> None:
    with Waiter(str(root), ["T"]) as waiter:
        for round_number in range(5):
            look = waiter.look()
            _send(root)
            woken = waiter.wait(look, 0.0)
            assert woken is not None
            assert _all_of(woken) == 4 * (round_number + 1)
            assert waiter.wait(woken, 0.0) is None


def test_a_wait_without_news_ends_at_its_time(root: Path) -> None:
    _send(root)
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()
        began = time.monotonic()
        assert waiter.wait(look, 0.03) is None
        assert time.monotonic() - began >= 0.03


def test_other_topics_do_not_wake(root: Path) -> None:
    wakes: dict[str, int] = {"T": 0, "U": 0}
    with Waiter(str(root), ["T"]) as mine, Waiter(str(root), ["U"]) as other:
        for name, waiter in (("T", mine), ("U", other)):
            wake = waiter.wake

            def counted(*, notified: bool = False, _name: str = name, _wake: object = wake) -> None:
                wakes[_name] += 1

            waiter.wake = counted  # type: ignore[method-assign]
        mine.look()
        other.look()
        before = dict(wakes)
        _send(root)
        mine.look()
        assert (wakes["T"] - before["T"], wakes["U"] - before["U"]) == (1, 0)


def test_one_look_serves_all_waiters(root: Path) -> None:
    waiters = [Waiter(str(root), ["T"]) for _ in range(30)]
    found: list[WaiterLook | None] = []
    try:
        looks = [waiter.look() for waiter in waiters]
        threads = [
            threading.Thread(target=lambda w=w, k=k: found.append(w.wait(k, _LONG)))
            for w, k in zip(waiters, looks, strict=True)
        ]
        for thread in threads:
            thread.start()
        assert sum(each.name == "rmqlog-waiting" for each in threading.enumerate()) == 1
        _send(root)
        for thread in threads:
            thread.join()
    finally:
        for waiter in waiters:
            waiter.close()
    assert [each is not None and _all_of(each) for each in found] == [4] * 30


def test_of_a_group_one_waiter_wakes_for_a_message(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_ROUND_SECONDS", 1000.0)
    woken: list[WaiterLook | None] = []
    waiters = [Waiter(str(root), ["T"], group="g") for _ in range(4)]
    began = time.monotonic()

    def are(count: int) -> bool:
        assert time.monotonic() - began < _LONG / 2
        time.sleep(0.001)
        return len(woken) == count

    try:
        for each in waiters:
            wait = partial(each.wait, each.look(), _LONG)
            threading.Thread(target=lambda wait=wait: woken.append(wait())).start()
        # until each has looked once more, and waits to be woken
        while not all(vars(waiter._condition)["_waiters"] for waiter in waiters):
            time.sleep(0.001)
        _send(root, count=3)
        while not are(3):
            pass
        assert [waiter.is_passed_over for waiter in waiters].count(True) == 1
        # in case one of the three takes nothing, the next round wakes another one
        assert waiting._watcher is not None
        waiting._watcher._next_round = 0.0
        while not are(4):
            pass
    finally:
        for waiter in waiters:
            waiter.close()
    assert None not in woken


def test_a_waiter_that_was_woken_in_vain_wakes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may report news that this waiter's look has seen already."""
    monkeypatch.setattr(waiting, "_ROUND_SECONDS", 1000.0)
    root = make_store(tmp_path / "store")
    found: list[WaiterLook | None] = []
    with Waiter(str(root), ["T"], group="g") as waiter:
        look = waiter.look()
        thread = threading.Thread(target=lambda: found.append(waiter.wait(look, _LONG)))
        thread.start()
        while not waiter.blocked:
            time.sleep(0.001)
        assert waiter.claim(str(root)) == 1
        _send(root)
        thread.join(_LONG / 2)
        assert found
        assert found[0] is not None


def test_threads_share_a_waiter(root: Path) -> None:
    found: list[WaiterLook | None] = []
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()
        threads = [threading.Thread(target=lambda: found.append(waiter.wait(look, _LONG))) for _ in range(8)]
        for thread in threads:
            thread.start()
        _send(root)
        waiter.look()  # must not take the news from the threads that wait
        for thread in threads:
            thread.join()
    assert [each is not None and _all_of(each) for each in found] == [4] * 8


def test_a_store_and_a_topic_that_come_later(tmp_path: Path) -> None:
    path = tmp_path / "a" / "store"
    with Waiter(str(path), ["T"]) as waiter:
        look = waiter.look()
        assert look.stores == ()

        def create() -> None:
            path.parent.mkdir()
            make_store(path)

        began = time.monotonic()
        _later(create)
        look = _news(waiter, look)
        assert [store.root for store in look.stores] == [str(path)]
        _later(lambda: _send(path))
        look = _news(waiter, look)
        assert _all_of(look) == 4
        assert time.monotonic() - began < 2.0  # not only by the rounds of a second


def test_every_store_of_a_cluster_wakes_those_that_come_later_too(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        make_store(tmp_path / name)
    with Waiter(str(tmp_path), ["T"]) as waiter:
        look = waiter.look()
        for name in ("broker-b", "broker-a", "broker-c"):
            if name == "broker-c":
                make_store(tmp_path / name)
                while len(look.stores) < 3:  # more news of what was sent to broker-a may come first
                    look = _news(waiter, look)
            _later(lambda name=name: _send(tmp_path / name))  # type: ignore[misc]
            look = _news(waiter, look)
            assert Path(look.stores[0].root).name == name  # the store with news comes first
        assert _all_of(look) == 12
        (tmp_path / "broker-b").rename(tmp_path.with_name("elsewhere"))
        while len(look.stores) == 3:  # a look before the next poll finds the store without queues
            look = _news(waiter, look)
        assert [Path(store.root).name for store in look.stores] == ["broker-a", "broker-c"]


def test_a_store_whose_files_are_replaced(root: Path, tmp_path: Path) -> None:
    _send(root)
    shutil.copytree(root, tmp_path / "copy")
    _send(root)
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()
        assert _all_of(look) == 8
        root.rename(tmp_path / "old")
        (tmp_path / "copy").rename(root)
        look = _news(waiter, look)
        while _all_of(look) != 4:  # a look between the two renames finds no store
            look = _news(waiter, look)
        _later(lambda: _send(root))
        look = _news(waiter, look)
        assert _all_of(look) == 8


def test_notify_wakes_the_group_only(root: Path) -> None:
    with Waiter(str(root), ["T"], group="g") as mine, Waiter(str(root), ["T"], group="h") as other:
        look, others = mine.look(), other.look()
        notify(str(root), "U", "g")
        assert mine.wait(look, 0.0) is None
        notify(str(root), "T", "g")
        assert mine.wait(look, 0.0) is not None
        assert other.wait(others, 0.0) is None


def test_a_file_of_the_store_wakes(root: Path) -> None:
    log = root / ".rmqlog" / "pop" / "g" / "T" / "in-flight.log"
    with Waiter(str(root), ["T"], also=[".rmqlog/pop/g/T/in-flight.log"]) as waiter:
        look = waiter.look()
        for text in ("one", "two"):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(text)
            look = _news(waiter, look)


def test_a_broker_that_takes_the_store_ends_the_wait(root: Path) -> None:
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()
        with held(root) as broker:
            with pytest.raises(StoreInUseError, match=f"{root}/lock: held by process {broker}"):
                waiter.wait(look, _LONG)
            with pytest.raises(StoreInUseError):
                waiter.check()
        deadline = time.monotonic() + _LONG
        while time.monotonic() < deadline:
            try:
                waiter.check()
                break
            except StoreInUseError:
                time.sleep(0.02)
        waiter.check()


def test_closing_ends_the_wait(root: Path) -> None:
    waiter = Waiter(str(root), ["T"])
    look = waiter.look()
    _later(waiter.close)
    assert waiter.wait(look, _LONG) is None
    with pytest.raises(ValueError, match="is closed"):
        waiter.look()


def test_a_waiter_that_is_closed_during_its_first_look_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_joining, add = threading.Event(), waiting._add_to_thread

    def add_late(waiter: Waiter) -> object:
        is_joining.set()
        time.sleep(0.05)  # `close` comes now
        return add(waiter)

    monkeypatch.setattr(waiting, "_add_to_thread", add_late)
    waiter = Waiter(str(make_store(tmp_path / "store")), ["T"])
    looking = threading.Thread(target=waiter.look)
    looking.start()
    assert is_joining.wait(_LONG)
    waiter.close()
    looking.join()


def test_a_waiter_of_a_path_that_cannot_be_read_spoils_no_other(root: Path, tmp_path: Path) -> None:
    with Waiter(str(root), ["T"]) as waiter:
        with pytest.raises(OSError, match="File name too long"):
            Waiter(str(tmp_path / ("x" * 300)), ["T"]).look()
        look = waiter.look()
        _send(root)
        assert waiter.wait(look, _LONG) is not None
        with Waiter(str(root), ["T"]) as other:
            assert _all_of(other.look()) == 4


def test_a_forked_child_goes_on_with_a_thread_of_its_own(root: Path) -> None:
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()

        def act() -> None:
            own = waiter.look()
            _later(lambda: _send(root))
            woken = _news(waiter, own)
            assert _all_of(woken) == 4
            waiter.close()

        child = fork_with_threads(act)
        woken = _news(waiter, look)
        assert _all_of(woken) == 4
        assert os.waitpid(child, 0)[1] == 0


def test_the_doorbell_wakes_sooner_than_the_rounds_of_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_ROUND_SECONDS", 1000.0)
    root = make_store(tmp_path / "store")
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()
        for messages in (4, 8):
            _later(lambda: _send(root), 0.0)
            look = _news(waiter, look)
            assert _all_of(look) == messages
