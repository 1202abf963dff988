"""How the settings `fs.s3a.…` of a Spark session say that an S3 bucket is reached, as in Hadoop's S3A.

The `fs.…` options of a read win. A setting `fs.s3a.bucket.NAME.…` wins over `fs.s3a.…` for the bucket NAME
(S3AUtils.propagateBucketOptions). Credentials stay in settings: no option has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from rmq_spark.options.access_options import parse_endpoint
from rmq_spark.options.option import Given
from store_format.errors import OptionError
from store_format.files.client import Access

PREFIX = "spark.hadoop.fs.s3a."

Setting = Callable[[str], str | None]  # the value of a setting by its name behind `fs.s3a.`

_KEYS = ("access.key", "secret.key")
# What a provider of S3A needs; by the name of its class, because packages differ between releases.
_PROVIDERS = {
    "TemporaryAWSCredentialsProvider": (*_KEYS, "session.token"),
    "SimpleAWSCredentialsProvider": _KEYS,
}
_ANONYMOUS = frozenset({"AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider"})
_OF_ENVIRONMENT = "EnvironmentVariableCredentialsProvider"
# The client looks in all these places itself: environment, web identity, container, instance.
_PLATFORM = frozenset({
    "IAMInstanceCredentialsProvider", "InstanceProfileCredentialsProvider", "ContainerCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper", "WebIdentityTokenCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider", "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
})  # fmt: skip
_AWS_HOST = re.compile(r"https?://s3[.-]([a-z]{2}-[a-z-]+-\d)\.amazonaws\.com(\.cn)?", re.ASCII)


def access_by_session(access: Access, setting: Setting, place: str, *, has_keys: bool) -> Access:
    """`access` to a bucket such as `s3://backup`, completed by the settings of the session; `has_keys` says
    whether the environment of the process has credentials.

    Raises OptionError for a setting that names credentials which the client cannot get.
    """
    bucket = place.partition("://")[2]

    def get(name: str) -> str:
        return (setting(f"bucket.{bucket}.{name}") or setting(name) or "").strip()

    endpoint, region = access.endpoint, access.region or get("endpoint.region") or None
    if endpoint is None and (host := get("endpoint")):
        scheme = "http" if get("connection.ssl.enabled").lower() == "false" else "https"
        text = host if "://" in host else f"{scheme}://{host}"
        endpoint = parse_endpoint(Given(f"{PREFIX}endpoint", text, 0))
        of_host = _AWS_HOST.fullmatch(endpoint)
        region = region or (of_host[1] if of_host else None)
    path_style = access.path_style
    if path_style is None and endpoint is not None:
        path_style = {"true": True, "false": False}.get(get("path.style.access").lower())
    found = replace(access, endpoint=endpoint, region=region, path_style=path_style)
    return found if found.anonymous is not None else _with_credentials(found, get, bucket, has_keys=has_keys)


def _with_credentials(access: Access, get: Callable[[str], str], bucket: str, *, has_keys: bool) -> Access:
    """`access` with what the first provider of the chain has that has any."""
    chain = [name.rpartition(".")[2] for name in re.split(r"[\s,]+", get("aws.credentials.provider")) if name]
    for name in chain or _PROVIDERS:
        keys = tuple(filter(None, map(get, _PROVIDERS.get(name, ()))))
        if keys and len(keys) == len(_PROVIDERS[name]):
            return replace(access, keys=keys)
        if name in _ANONYMOUS:
            return replace(access, anonymous=True)
        if name in _PLATFORM or (name == _OF_ENVIRONMENT and has_keys):
            return access
        if name not in _PROVIDERS and name != _OF_ENVIRONMENT:
            raise _refusal(f"{name[:100]!r} is not supported", bucket)
    if chain:
        raise _refusal("no provider of the list has credentials", bucket)
    return access


def _refusal(found: str, bucket: str) -> OptionError:
    of_bucket = f"{PREFIX}bucket.{bucket}."
    return OptionError(
        f"{PREFIX}aws.credentials.provider: {found}; set {of_bucket}aws.credentials.provider to "
        f"SimpleAWSCredentialsProvider or TemporaryAWSCredentialsProvider, with {of_bucket}access.key, "
        "secret.key and session.token, to EnvironmentVariableCredentialsProvider or "
        "IAMInstanceCredentialsProvider (the credentials of the platform), or the option fs.anonymous=true"
    )
