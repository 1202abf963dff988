"""The `fs.…` options: how object storage is reached, as Spark, `rmq_spark.open` and the command take them.

No option is a credential: options are in plans, logs and pages of Spark, and in the history of a shell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from rmq_spark.options import option as values
from rmq_spark.options.option import Given, Option
from store_format.errors import OptionError
from store_format.files import paths
from store_format.files.client import Access
from store_format.names import did_you_mean

_ENDPOINT = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", re.ASCII | re.IGNORECASE)
_TIMEOUT_MS_MAX = 3_600_000

# Names of credentials as Hadoop, the AWS and Azure tools, and other connectors spell them.
_CREDENTIAL = re.compile(
    r"(spark\.hadoop\.)?(fs|aws|s3|s3a|azure|gs|gcs|google|adls|abfss?)[._].*"
    r"(key|secret|token|credential|password|sas|account|auth|signature|role).*"
    r"|.*(secret_?access_?key|access_?key_?id|session_?token|sas_?token|account_?key).*",
    re.IGNORECASE,
)


def parse_endpoint(given: Given) -> str:
    """The address of a service. Raises OptionError, which does not show the text, for any other text."""
    if not _ENDPOINT.fullmatch(given.text.strip()):
        raise given.error(
            "the address of a service, without a user and a query", "another text",
            "write it as https://storage.example.com:9000; credentials come from the environment",
        )  # fmt: skip
    return given.text.strip().rstrip("/")


def _request_timeout(given: Given) -> int:
    found = values.duration_ms(given)
    if not 1 <= found <= _TIMEOUT_MS_MAX:
        raise given.error("a length of time from 1ms to 1h")
    return found


ACCESS_OPTIONS = (
    Option(
        "fs.endpoint",
        "text",
        parse_endpoint,
        "The service that has the API of S3 or Azure: `https://storage.example.com:9000`.",
        otherwise="`AWS_ENDPOINT_URL`, else the platform's own service",
    ),
    Option(
        "fs.region",
        "text",
        values.text,
        "The region of an S3 bucket.",
        otherwise="`AWS_REGION`, else `us-east-1`",
    ),
    Option(
        "fs.pathStyle",
        "boolean",
        values.boolean,
        "S3: the bucket is in the path of a request, and with `false` in the name of its host.",
        otherwise="`true`",
    ),
    Option(
        "fs.anonymous",
        "boolean",
        values.boolean,
        "Requests have no signature, for public buckets.",
        otherwise="`false`: with the credentials of the platform",
    ),
    Option(
        "fs.requestTimeout",
        "time",
        _request_timeout,
        "The longest time of one request to object storage; after this time it is not repeated either.",
        otherwise="`30s`",
    ),
    Option(
        "fs.concurrency",
        "number",
        values.number(1, Access.CONCURRENCY_MAX),
        "The most requests to a bucket that a process makes at once.",
        otherwise=f"`{Access.CONCURRENCY_MAX}`",
    ),
)


def combined_access(read: Mapping[str, Any], places: Collection[str]) -> Access:
    """The `fs.…` options of parsed options. Raises OptionError for one that no path is on object storage for.

    Any: each option has its own type.
    """
    given = next((row.name for row in ACCESS_OPTIONS if read[row.name] is not None), None)
    if given is not None and not any(map(paths.is_remote, places)):
        raise OptionError(
            f"{given} is for object storage, and no path is there; leave it out for a path on a disk"
        )
    return Access(*(read[row.name] for row in ACCESS_OPTIONS))


def parse_access(options: Mapping[str, str], path: str) -> Access:
    """The `fs.…` options of `rmq_spark.open`. Raises OptionError for other names."""
    by_lower = {row.name.lower(): row.name for row in ACCESS_OPTIONS}
    given = {}
    for name, text in options.items():
        refuse_credential(name)
        known = by_lower.get(name.lower())
        if known is None:
            raise OptionError(
                f"unknown option {name!r}; {did_you_mean(name, by_lower.values(), 'options', listed_max=6)}"
            )
        given[known] = Given(known, text, 0)
    return combined_access({row.name: row.read(given, 0) for row in ACCESS_OPTIONS}, [path])


def access_of_environment(environment: Mapping[str, str]) -> Access | None:
    """What variables such as RMQLOG_FS_REQUEST_TIMEOUT say, for the command; None without any."""
    read = {}
    for row in ACCESS_OPTIONS:
        name = re.sub("([A-Z])", r"_\1", f"rmqlog_{row.name}").replace(".", "_").upper()
        text = environment.get(name)
        read[row.name] = row.parse(Given(name, text, 0)) if text else None
    return Access(*read.values()) if any(value is not None for value in read.values()) else None


def refuse_credential(name: str) -> None:
    """Raises OptionError for the name of a credential; its value is never shown."""
    if _CREDENTIAL.fullmatch(name) and name.lower() not in _NAMES:
        raise OptionError(
            f"{name}: credentials are no option, because options are in plans, logs and pages of Spark; give "
            "them to the driver and the executors in the way of the platform: the environment "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_ACCOUNT_KEY, "
            "GOOGLE_APPLICATION_CREDENTIALS), or the role of the machine or pod; for S3 also as settings "
            "spark.hadoop.fs.s3a.access.key and secret.key of the session, before rmq_spark.register(spark)"
        )


_NAMES = frozenset(row.name.lower() for row in ACCESS_OPTIONS)
