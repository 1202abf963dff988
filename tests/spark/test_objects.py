"""A store on object storage through Spark: the rows of a disk, few listings, and no secret anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.object_server import ObjectServer
from tests.support.spark.object_job import rows_of

pytestmark = pytest.mark.slow

_LISTINGS_MAX = 18  # of three batches, a view and a stream
_OTHER = "bucket-of-the-session"
_SESSION = {
    "access.key": "ASIAPLANTEDSESSION00",
    "secret.key": "planted/secret+of+the/session00000000000",
    "session.token": "planted-token-of-the-session",
}


def test_batches_views_and_streams_read_the_same(
    spark: SparkSession, server: ObjectServer, basic: Path, tmp_path: Path
) -> None:
    place, url = tmp_path / "job", server.url_of(basic)
    place.mkdir()
    server.fault = lambda request: "denied" if "store-denied/" in f"{request.key}/" else None
    settings = {f"spark.hadoop.fs.s3a.bucket.{_OTHER}.{name}": value for name, value in _SESSION.items()}
    (server.root / _OTHER).symlink_to(server.bucket)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.object_job", url, str(place), json.dumps(settings),
         f"s3://{_OTHER}/{basic.name}"],
        env=os.environ | server.environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    right = rows_of(spark.read.format("rmqlog").load(str(basic)))
    orders = rows_of(spark.read.format("rmqlog").option("subscribe", "Orders").load(str(basic)))
    assert found["batch"] == found["stream"] == right
    assert found["orders"] == found["orders by settings"] == orders
    assert server.signers == {server.environment()["AWS_ACCESS_KEY_ID"], _SESSION["access.key"]}
    assert found["queues"] == spark.read.format("rmqlog").option("view", "queues").load(str(basic)).count()
    assert "refused the request; give the credentials the right" in found["error"]
    assert "obstore" not in found["error"]
    assert "settings spark.hadoop.fs.s3a.* count" in found["settings refused"]
    assert (
        "spark.hadoop.fs.s3a.aws.credentials.provider: 'Vault' is not supported" in found["unknown provider"]
    )
    assert not server.refused
    assert server.counts()["list"] <= _LISTINGS_MAX
    for name, part in (
        ("events", "SparkListenerSQLExecutionStart"),
        ("pages", url),
        ("checkpoint", "Orders"),
    ):
        assert any(part in _text(path) for path in (place / name).rglob("*") if path.is_file()), name
    texts = [done.stdout, done.stderr, *(_text(path) for path in place.rglob("*") if path.is_file())]
    secrets = [server.environment()[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    for secret in (*secrets, *_SESSION.values()):
        assert not [text for text in texts if secret in text]


def _text(path: Path) -> str:
    return path.read_bytes().decode("latin-1")
