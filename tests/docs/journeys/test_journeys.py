"""Four people with the README, each with a store and questions: every command is found where the journey
says, runs as it is typed, and shows what the person must see.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_spark import demo
from tests.support.doc_pages import Block
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, SparkSession
from tests.support.journeys import (
    DIRECTORY,
    FreshSession,
    Journey,
    JourneySession,
    Task,
    fresh_session,
    install_as_the_readme_says,
    lacks,
    linked_from_readme,
    offered,
    read_journey,
    section,
    statements,
)

pytestmark = pytest.mark.slow

NAMES = sorted(path.stem for path in DIRECTORY.glob("*.md"))


def test_there_is_a_journey_for_each_of_the_four() -> None:
    assert NAMES == ["analyst", "engineer", "operator", "support"]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_on_the_page_that_the_task_names(name: str) -> None:
    journey = read_journey(name)
    assert [task.number for task in journey.tasks] == list(range(1, len(journey.tasks) + 1))
    assert len(journey.tasks) >= 5
    for task in journey.tasks:
        assert task.blocks, task.title
        assert all(block.output for block in task.blocks), f"{task.title}: says nothing that must be seen"
        if task.link is None:
            continue
        page, text = section(task.link)
        assert page in linked_from_readme(), f"{name}: {page.name} is not linked from the README"
        refuse_other_commands(journey, task, offered(journey.in_its_words(text)))


def refuse_other_commands(journey: Journey, task: Task, offers: list[str]) -> None:
    """Fails if the task has a command that is not among the `offers`, in the journey's words."""
    for block in task.blocks:
        for line in statements(block):
            assert line in offers, f"{journey.name}, task {task.number}: not found there: {line}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that `python -m rmq_spark.demo` makes."""
    path = tmp_path_factory.mktemp("journeys") / "shop"
    demo.create(str(path))
    return path


def give_store(name: str, shop: Path, directory: Path) -> None:
    """The person's store: a copy of the demo store, damaged for the operator."""
    store = directory / ("node" if name == "operator" else "shop")
    shutil.copytree(shop, store)
    if name == "operator":
        damage(store)


def damage(store: Path) -> None:
    """What a power failure leaves: a log without its end, and a block of zeros in a consume queue.

    A store that only a broker wrote has no directory `.rmqlog`.
    """
    shutil.rmtree(store / ".rmqlog")
    (store / "abort").touch()
    os.truncate(max((store / "commitlog").iterdir()), 3_200_000)
    overwrite(store / "consumequeue" / "Orders" / "2" / f"{0:020}", 4096, bytes(4096))


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.spark, pytest.mark.whole] if name == "engineer" else [])
        for name in NAMES
    ],
)
def test_the_person_succeeds(
    name: str,
    shop: Path,
    golden: Golden,
    lazy_spark: Callable[[], SparkSession],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # an export without a directory
    give_store(name, shop, tmp_path)
    walk(read_journey(name), JourneySession(tmp_path, golden, lazy_spark).does)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, float]:
    """The demo store and the programs that the README's Install block makes, and the seconds it takes."""
    directory, started = tmp_path_factory.mktemp("fresh"), time.monotonic()
    programs = install_as_the_readme_says(directory)
    return directory / "shop", programs, time.monotonic() - started


@pytest.mark.whole
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_the_person_succeeds_within_ten_minutes_in_a_new_environment(
    name: str, fresh: tuple[Path, Path, float], golden: Golden, tmp_path: Path
) -> None:
    """Everything is typed in an environment that the README's lines made, with packages from the registry."""
    shop, programs, seconds = fresh
    give_store(name, shop, tmp_path)
    started = time.monotonic()
    with fresh_session(FreshSession(tmp_path, golden, pytest.fail, programs=programs)) as session:
        walk(read_journey(name), session.does)
    assert seconds + time.monotonic() - started < 600


def walk(journey: Journey, run: Callable[[Block], str]) -> None:
    """Does the tasks of a journey one after the other; each must show what its person must see."""
    outputs: dict[int, str] = {}
    for task in journey.tasks:
        if task.help is not None:
            offers = run(Block(0, "sh", f"{task.help}\n", None))
            refuse_other_commands(journey, task, re.split(r" {2,}|\n", journey.in_its_words(offers)))
        outputs[task.number] = ""
        for block in task.blocks:
            if task.task is not None:
                assert statements(block)[0] in " ".join(outputs[task.task].split()), task.title
            printed = run(block)
            lacking = lacks(block.output or "", printed)
            assert lacking is None, f"{journey.name}.md:{block.line} lacks\n{lacking}\nin\n{printed}"
            outputs[task.number] += printed


def test_a_command_from_elsewhere_is_noticed() -> None:
    journey = read_journey("support")
    task = journey.tasks[0]
    assert task.link is not None
    _, text = section(task.link)
    invented = replace(task, blocks=(Block(1, "sh", "rmqlog trace /data/shop --order A-107201\n", None),))
    with pytest.raises(AssertionError, match="not found there: rmqlog trace /data/shop --order"):
        refuse_other_commands(journey, invented, offered(journey.in_its_words(text)))


def test_what_must_be_seen() -> None:
    assert lacks("a … d\ne", "x\na b   c d\ny\n e \n") is None
    assert lacks("e\na", "a\ne\n") == "a"
    assert lacks("a b", "a bc\n") == "a b"
