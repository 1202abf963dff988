"""The settings `fs.s3a.…` of a session: what they say in Hadoop, and that their secrets are shown nowhere."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.options.s3a_options import PREFIX
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.spark.session_settings import SessionSettings
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format.errors import OptionError, StoreError
from store_format.files.client import Access
from store_format.files.read import places
from tests.support.object_server import ObjectServer

_SECRET, _TOKEN = "wJalrXUtnFEMI/K7MDENG", "IQoJb3JpZ2luX2VjEJr"
_KEYS = {"access.key": "AKIAPLANTED", "secret.key": _SECRET}
_PROVIDER = "aws.credentials.provider"
_OF_HADOOP = "org.apache.hadoop.fs.s3a."


def _access(settings: dict[str, str], **options: str) -> Access:
    given = {name.replace("_", "."): text for name, text in options.items()}
    parsed = parse_read_options({"path": "s3a://backup/store", **given})
    session = SessionSettings({PREFIX + name: value for name, value in settings.items()})
    return replace(parsed, session=session).access_to("s3://backup/store")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"threads.max": "64"}, {}),
        ({"endpoint": "storage.example.com:9000"}, {"endpoint": "https://storage.example.com:9000"}),
        ({"endpoint": "h:9000", "connection.ssl.enabled": "false"}, {"endpoint": "http://h:9000"}),
        ({"endpoint": "http://h:9000/", "path.style.access": "true"},
         {"endpoint": "http://h:9000", "path_style": True}),
        ({"endpoint.region": "eu-west-1"}, {"region": "eu-west-1"}),
        ({"endpoint": "s3.eu-central-1.amazonaws.com"},
         {"endpoint": "https://s3.eu-central-1.amazonaws.com", "region": "eu-central-1"}),
        ({"endpoint": "a", "bucket.backup.endpoint": "b", "bucket.other.endpoint": "c"},
         {"endpoint": "https://b"}),
        (_KEYS, {"keys": tuple(_KEYS.values())}),
        (_KEYS | {"session.token": _TOKEN}, {"keys": (*_KEYS.values(), _TOKEN)}),
        (_KEYS | {"session.token": _TOKEN, _PROVIDER: f"{_OF_HADOOP}SimpleAWSCredentialsProvider"},
         {"keys": tuple(_KEYS.values())}),
        ({"access.key": "AKIAPLANTED"}, {}),  # the platform's
        (_KEYS | {_PROVIDER: "com.amazonaws.auth.InstanceProfileCredentialsProvider"}, {}),
        (_KEYS | {_PROVIDER: "com.amazonaws.auth.EnvironmentVariableCredentialsProvider, "
                             f"\n{_OF_HADOOP}SimpleAWSCredentialsProvider"}, {"keys": tuple(_KEYS.values())}),
        (_KEYS | {_PROVIDER: f"{_OF_HADOOP}AnonymousAWSCredentialsProvider"}, {"anonymous": True}),
        (_KEYS | {f"bucket.backup.{_PROVIDER}": f"{_OF_HADOOP}AnonymousAWSCredentialsProvider"},
         {"anonymous": True}),
        (_KEYS | {_PROVIDER: f"{_OF_HADOOP}SimpleAWSCredentialsProvider,com.example.Vault"},
         {"keys": tuple(_KEYS.values())}),
    ],
)  # fmt: skip
def test_the_settings_of_a_bucket(
    settings: dict[str, str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    found = _access(settings)
    assert found == Access(**expected)
    assert not [secret for secret in (*_KEYS.values(), _TOKEN) if secret in repr(found)]


def test_options_of_the_read_win() -> None:
    settings = _KEYS | {"endpoint": "a", "endpoint.region": "r", "path.style.access": "true"}
    found = _access(
        settings, fs_endpoint="http://b", fs_region="q", fs_pathStyle="false", fs_anonymous="true"
    )
    assert found == Access("http://b", "q", path_style=False, anonymous=True)
    assert found.settings("s3://backup")["endpoint"] == "http://backup.b"  # in the name of the host


@pytest.mark.parametrize(
    ("provider", "error"),
    [
        ("com.example.Vault", "'Vault' is not supported"),
        (
            f"{_OF_HADOOP}AssumedRoleCredentialProvider",
            "'AssumedRoleCredentialProvider' is not supported",
        ),
        (f"{_OF_HADOOP}TemporaryAWSCredentialsProvider", "no provider of the list has credentials"),
    ],
)
def test_what_cannot_be_honoured_is_named_with_a_way_out(provider: str, error: str) -> None:
    with pytest.raises(OptionError, match=f"aws.credentials.provider: {error}; set spark") as caught:
        _access(_KEYS | {_PROVIDER: provider})
    assert "spark.hadoop.fs.s3a.bucket.backup.access.key, secret.key and session.token" in str(caught.value)
    assert not [secret for secret in _KEYS.values() if secret in str(caught.value)]


def test_an_endpoint_with_credentials_is_refused_and_not_repeated() -> None:
    with pytest.raises(OptionError, match=r"fs\.s3a\.endpoint: expected the address of a service") as caught:
        _access({"endpoint": f"https://AKIA:{_SECRET}@host"})
    assert _SECRET not in str(caught.value)


def test_a_read_signs_with_the_keys_of_the_session(
    server: ObjectServer, basic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in server.environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other credentials")
    settings = {PREFIX + name: value for name, value in _KEYS.items()}
    session = SessionSettings(settings | {f"{PREFIX}endpoint": server.url})
    parsed = replace(
        parse_read_options({"path": server.url_of(basic), "subscribe": "Orders"}), session=session
    )
    scan = Scan(fields_from_options(parsed), parsed)
    positions = StreamPositions(StreamStores(parsed))
    assert positions.initial()["Orders"]
    splits = plan(parsed, cores=1).splits
    assert sum(batch.num_rows for split in splits for batch in scan.read(split)) > 0
    assert server.signers == {"AKIAPLANTED"}
    sent = pickle.dumps((scan, splits)) + repr((scan, splits)).encode()
    assert not [secret for secret in (*_KEYS.values(), server.url) if secret.encode() in sent]
    server.fault = lambda request: "denied"
    places().objects_at(server.url_of(basic)).listings.forget()  # a listing is believed for a second
    with pytest.raises(StoreError, match="refused the request") as caught:
        plan(parsed, cores=1)
    assert not [secret for secret in _KEYS.values() if secret in str(caught.value)]
