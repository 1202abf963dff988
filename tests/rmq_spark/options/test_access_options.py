"""The `fs.…` options: their texts, where they apply, and credentials, which no option is."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import rmq_spark
from rmq_spark.options.access_options import access_of_environment, parse_access
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from store_format.errors import OptionError
from store_format.files.client import Access
from tests.support.object_server import ObjectServer, served

_SECRET = "wJalrXUtnFEMI/K7MDENG"
_GIVEN = {
    "fs.endpoint": "http://127.0.0.1:9000/", "fs.region": "eu-west-1", "fs.pathStyle": "true",
    "fs.anonymous": "true", "fs.requestTimeout": "5s", "fs.concurrency": "8",
}  # fmt: skip
_ACCESS = Access("http://127.0.0.1:9000", "eu-west-1", True, True, 5000, 8)


def test_all_options_reach_the_access() -> None:
    parsed = parse_read_options({"path": "s3://b/store", **{name.lower(): _GIVEN[name] for name in _GIVEN}})
    assert parsed.access == parse_access(_GIVEN, "s3://b/store") == _ACCESS
    assert pickle.loads(pickle.dumps(parsed)).access == _ACCESS
    assert ("fs.region", "eu-west-1") in parsed.resolved()
    assert parse_read_options({"path": "s3://b/store"}).access == Access()
    assert parse_read_options({"path": "s3://b/store", "view": "queues", **_GIVEN}).access == _ACCESS


def test_the_environment_of_the_command() -> None:
    names = ("ENDPOINT", "REGION", "PATH_STYLE", "ANONYMOUS", "REQUEST_TIMEOUT", "CONCURRENCY")
    given = dict(zip((f"RMQLOG_FS_{name}" for name in names), _GIVEN.values(), strict=True))
    assert access_of_environment(given) == _ACCESS
    assert access_of_environment({"RMQLOG_FS_REGION": ""}) is None
    with pytest.raises(OptionError, match="RMQLOG_FS_CONCURRENCY: expected a whole number from 1 to 64"):
        access_of_environment({"RMQLOG_FS_CONCURRENCY": "65"})


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("fs.endpoint", "storage.example.com", "fs.endpoint: expected the address of a service"),
        ("fs.endpoint", f"https://KEY:{_SECRET}@host", "fs.endpoint: expected the address of a service"),
        ("fs.endpoint", f"https://host/?sig={_SECRET}", "fs.endpoint: expected the address of a service"),
        ("fs.requestTimeout", "5", "fs.requestTimeout: expected a length of time such as 30s"),
        ("fs.requestTimeout", "0s", "fs.requestTimeout: expected a length of time from 1ms to 1h"),
        ("fs.concurrency", "0", "fs.concurrency: expected a whole number from 1 to 64"),
        ("fs.endpiont", "http://h", r"unknown option 'fs\.endpiont'; did you mean.*fs\.endpoint"),
    ],
)
def test_texts_that_are_refused(name: str, text: str, error: str) -> None:
    for parse in (lambda given: parse_read_options({"path": "s3://b/store", **given}),
                  lambda given: parse_access(given, "s3://b/store")):  # fmt: skip
        with pytest.raises(OptionError, match=error) as caught:
            parse({name: text})
        assert _SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "fs.accessKey", "fs.secretKey", "fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token",
        "fs.sasToken", "fs.azure.account.key.backup.dfs.core.windows.net", "fs.s3a.assumed.role.arn",
        "spark.hadoop.fs.s3a.secret.key", "aws_access_key_id", "aws_secret_access_key", "AWS_SESSION_TOKEN",
        "secretAccessKey", "sasToken", "accountKey", "fs.gs.auth.service.account.json.keyfile",
    ],
)  # fmt: skip
def test_credentials_are_no_option(name: str) -> None:
    for parse in (lambda given: parse_read_options({"path": "s3://b/store", **given}),
                  lambda given: parse_read_options({"path": "/data/store", **given}, where=STREAM),
                  lambda given: parse_access(given, "s3://b/store")):  # fmt: skip
        with pytest.raises(OptionError, match="credentials are no option") as caught:
            parse({name: _SECRET})
        assert str(caught.value).startswith(f"{name}: ")
        assert "the environment (AWS_ACCESS_KEY_ID" in str(caught.value)
        assert _SECRET not in str(caught.value)


@pytest.mark.parametrize("path", [f"s3://KEY:{_SECRET}@bucket/x", f"https://KEY:{_SECRET}@host/x"])
def test_credentials_in_a_path_are_not_repeated(path: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({"path": path})
    assert _SECRET not in str(caught.value)


def test_options_of_a_disk() -> None:
    with pytest.raises(OptionError, match=r"fs\.region is for object storage, and no path is there"):
        parse_read_options({"path": "/data/store", "fs.region": "eu-west-1"})
    with pytest.raises(OptionError, match=r"fs\.region is for object storage"):
        rmq_spark.open("/data/store", options={"fs.region": "eu-west-1"})


def test_options_of_another_service(server: ObjectServer) -> None:
    with pytest.raises(OptionError, match=r"fs\.region does not apply to az://b; leave it out"):
        rmq_spark.open("az://b/store", options={"fs.region": "eu-west-1"})


def test_an_endpoint_of_the_options(
    server: ObjectServer, basic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is used before that of the environment, also by tasks; a process reads a bucket at one endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    url, options = server.url_of(basic), {"fs.endpoint": server.url, "fs.requestTimeout": "20s"}
    assert rmq_spark.open(url, options=options).topics() == rmq_spark.open(str(basic)).topics()
    with served(server.root) as other:
        with pytest.raises(OptionError, match="this process has read this bucket at another endpoint"):
            rmq_spark.open(url, options={"fs.endpoint": other.url})
        assert not other.requests
        parsed = parse_read_options({"path": url, "fs.endpoint": other.url})
        assert plan(parsed, cores=2).splits  # a process of Spark, whose earlier reads are over
        assert other.requests
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(OptionError, match=r"fs\.endpoint and AWS_ENDPOINT_URL_S3 are both given"):
        rmq_spark.open("s3://another-bucket/x", options={"fs.endpoint": server.url})


def test_few_requests_at_once(server: ObjectServer, basic: Path) -> None:
    server.delay_s = 0.005
    for most in (1, 3):
        server.at_once_max = 0
        url = server.url_of(basic)
        rmq_spark.open(url, options={"fs.concurrency": str(most)}).view("queues")
        assert server.at_once_max <= most
