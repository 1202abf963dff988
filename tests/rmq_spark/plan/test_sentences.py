"""What a person sees who asks for something wrong: one clear sentence with the nearest right answer.

`tests/spark/test_errors.py` has some of them through Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from store_format import MessageStore
from store_format.errors import CorruptStoreError, StoreError
from tests.support.fixtures import Golden
from tests.support.reads import copy_of

STORE = "basic-5.5.0"


def _plan(given: dict[str, str]) -> None:
    options = parse_read_options(given)
    fields_from_options(options)
    plan(options)


def sentence_of(path: Path | str, **given: str) -> str:
    """The name and the text of the error of a batch read."""
    with pytest.raises(StoreError) as caught:
        _plan({"path": str(path), **given})
    return f"{type(caught.value).__name__}: {caught.value}"


# Options of a read of basic-5.5.0 -> the sentence.


# ---- paths -------------------------------------------------------------------------------------------------


def test_a_path_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    expected = (
        f"StoreNotFoundError: {tmp_path} is not a store root: expected a directory `commitlog` in it,"
        f" found photos"
    )
    assert expected in sentence_of(tmp_path)
    assert (
        f"{tmp_path}/photos is not a store root: expected a directory `commitlog` in it, found nothing"
        in sentence_of(tmp_path / "photos")
    )


def test_a_missing_path(tmp_path: Path) -> None:
    advice = "give the broker's store directory (storePathRootDir)"
    assert f"StoreNotFoundError: {tmp_path}/stor does not exist; {advice}" in sentence_of(tmp_path / "stor")
    sentence = sentence_of(tmp_path / "a" / "b")
    assert f"{tmp_path}/a/b does not exist; {tmp_path}/a does not exist either" in sentence


def test_a_commitlog_file_under_a_name_that_no_file_of_the_log_has(golden: Golden, tmp_path: Path) -> None:
    """The file is none of the log: its messages are an error, and `verify` names the file."""
    root = copy_of(golden, STORE, tmp_path)
    file = root / "commitlog" / f"{262143:020d}"
    (root / "commitlog" / f"{262144:020d}").rename(file)
    store = MessageStore.open(str(root))
    with pytest.raises(CorruptStoreError, match=r"expected commitlog offsets .*, found 268216"):
        store.find(since=0)
    assert str(file) in [problem.file for problem in store.diagnose()]


def test_dledger(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0").mkdir()
    assert (
        f"{tmp_path} is a DLedger store (enableDLegerCommitLog=true): expected its commitlog in "
        "dledger-n0/data, found no such directory" in sentence_of(tmp_path)
    )
