"""A server of the S3 API on loopback, over a directory whose first level are the buckets: lists and gets, and
refuses all else; with `accepts`, programs may put and delete objects. It counts requests, waits before each
answer, and makes the faults of real services.

Run as a program it serves until its standard input ends: `python -m tests.support.object_server DIRECTORY`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from store_format.files.client import StoredObject
from store_format.files.read import places

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_LISTED_MAX = 1000
_REFUSALS = {
    "unavailable": (503, "SlowDown"),
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "gone": (404, "NoSuchBucket"),
    "deleted": (404, "NoSuchKey"),
    "replaced": (412, "PreconditionFailed"),
    "moved": (301, "PermanentRedirect"),
}

# Of other faults: "cut" and "slow" bodies, no answer until the server ends ("hang"), a body with more bytes
# than were asked for ("long"), and the whole object instead of a range ("whole").
Fault = Callable[["Request"], str | None]  # the kind of fault, or None for a right answer


@dataclass(frozen=True)
class Request:
    """A request: list, head or get, the key, and the bytes [start, stop) that it asks for."""

    kind: str
    key: str
    start: int = 0
    stop: int = 0


@dataclass
class ObjectServer:
    """What the server has seen, and how it answers."""

    root: Path
    delay_s: float = 0.0
    fault: Fault = lambda request: None
    requests: list[Request] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # methods that would change something
    listings: dict[tuple[str, str, str], tuple[list[str], list[str]]] = field(default_factory=dict)
    waiting: list[Request] = field(default_factory=list)  # those of this moment
    at_once_max: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    accepts: bool = False
    signers: set[str] = field(default_factory=set)  # the access keys of the requests

    @property
    def bucket(self) -> Path:
        """The directory of the only bucket."""
        (bucket,) = self.root.iterdir()
        return bucket

    def url_of(self, path: Path) -> str:
        """The address of a path in a bucket."""
        return f"s3://{path.relative_to(self.root)}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counter[str]:
        return Counter(request.kind for request in self.requests)

    def environment(self) -> dict[str, str]:
        """What a client needs; the secret is a planted one that must appear nowhere."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAPLANTEDKEY000000",
            "AWS_SECRET_ACCESS_KEY": "planted/secret+that/is/nowhere+else00000",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def served(root: Path) -> Iterator[ObjectServer]:
    """A server of the buckets in `root`, in this process."""
    told = ObjectServer(root)

    class Handler(_Handler):
        server_of = told

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        told.port = http.server_address[1]
        # `shutdown` waits for the end of a poll, half a second by default
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield told
        finally:
            told.ended.set()
            http.shutdown()


def object_at(url: str) -> StoredObject:
    """What this process has listed, or lists now, at a path."""
    found = places().objects_at(url).listings.object_at(url)
    assert found is not None
    return found


def etag_of(path: Path) -> str:
    """Differs once the file is written again."""
    status = path.stat()
    of_version = blake2b(f"{status.st_mtime_ns} {status.st_size}".encode(), digest_size=16).hexdigest()
    return f"{of_version}-1"  # as of an upload in parts: a program does not take it for a hash of the bytes


def _keys(root: Path, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
    """The keys that begin with the prefix, and with a delimiter the folders; both sorted."""
    keys, folders = list[str](), set[str]()
    for path, _, names in os.walk(f"{root}/{prefix.rpartition('/')[0]}".rstrip("/")):
        for name in names:
            key = f"{path}/{name}"[len(str(root)) + 1 :]
            rest = key[len(prefix) :]
            if not key.startswith(prefix):
                continue
            if delimiter and "/" in rest:
                folders.add(prefix + rest.partition("/")[0] + "/")
            else:
                keys.append(key)
    return sorted(keys), sorted(folders)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body behind its headers would wait 40 ms
    server_of: ObjectServer
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        place, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        bucket, _, key = unquote(place.path).lstrip("/").partition("/")
        if "list-type" in query:
            self._list(bucket, {name: values[0] for name, values in query.items()})
        else:
            self._get(bucket, key)

    def do_HEAD(self) -> None:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        path = self.server_of.root / bucket / key
        if self._noted(Request("head", key)):
            return
        if path.is_file():
            status = path.stat()
            headers = {"ETag": f'"{etag_of(path)}"', "Content-Length": str(status.st_size)}
            self._answer(200, b"", headers | {"Last-Modified": self.date_time_string(int(status.st_mtime))})
        else:
            self._answer(404, b"")

    def do_POST(self) -> None:
        self.server_of.refused.append(f"{self.command} {self.path}")
        self.close_connection = True
        self._answer(405, b"")

    def do_PUT(self) -> None:
        """An object appears whole, or not at all."""
        path = self.server_of.root / unquote(urlsplit(self.path).path).lstrip("/")
        if not self.server_of.accepts:
            self.do_POST()
            return
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if len(path.relative_to(self.server_of.root).parts) > 1:  # else the bucket, which is there
            path.parent.mkdir(parents=True, exist_ok=True)
            part = self.server_of.root.parent / f"part-{threading.get_ident()}"
            part.write_bytes(data)
            part.replace(path)
        self._answer(200, b"", {"ETag": f'"{etag_of(path)}"'})

    def do_DELETE(self) -> None:
        if not self.server_of.accepts:
            self.do_POST()
            return
        (self.server_of.root / unquote(urlsplit(self.path).path).lstrip("/")).unlink(missing_ok=True)
        self._answer(204, b"")

    def _noted(self, request: Request) -> bool:
        """Notes the request; makes its fault and returns True, or returns False for a right answer."""
        told = self.server_of
        told.requests.append(request)
        told.signers.add(self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0])
        if told.delay_s:
            told.waiting.append(request)
            told.at_once_max = max(told.at_once_max, len(told.waiting))
            time.sleep(told.delay_s)
            told.waiting.pop()
        fault = told.fault(request)
        if fault == "hang":
            told.ended.wait()
            self.close_connection = True
            return True
        if fault in _REFUSALS:
            status, code = _REFUSALS[fault]
            text = f"<Error><Code>{code}</Code><AWSAccessKeyId>AKIAPLANTEDKEY000000</AWSAccessKeyId></Error>"
            self._answer(status, text.encode())
            return True
        self._fault = fault
        return False

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", query.get("start-after", ""))
        if self._noted(Request("list", prefix)):
            return
        root = self.server_of.root / bucket
        if not root.is_dir():
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            return
        listings, kind = self.server_of.listings, (bucket, prefix, query.get("delimiter", ""))
        if not after or kind not in listings:
            listings[kind] = _keys(root, prefix, query.get("delimiter", ""))
        keys, folders = listings[kind]
        first = bisect_right(keys, after)
        page, is_cut = keys[first : first + _LISTED_MAX], len(keys) > first + _LISTED_MAX
        text = [f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"]
        if is_cut:
            text.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        for key in page:
            path_of = root / key
            if not path_of.is_file():
                continue  # deleted since the first page
            status = path_of.stat()
            time_of = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            text.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{time_of}</LastModified>"
                f'<ETag>"{etag_of(path_of)}"</ETag><Size>{status.st_size}</Size></Contents>'
            )
        text += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders]
        self._answer(200, f"<ListBucketResult>{''.join(text)}</ListBucketResult>".encode())

    def _get(self, bucket: str, key: str) -> None:
        path = self.server_of.root / bucket / key
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        size = path.stat().st_size if path.is_file() else 0
        start, stop = (int(found[1]), min(int(found[2]) + 1, size)) if found else (0, size)
        if self._noted(Request("get", key, start, stop)):
            return
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        etag, wanted = f'"{etag_of(path)}"', self.headers.get("If-Match")
        if wanted not in (None, etag, etag.strip('"')):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        if self._fault == "whole":
            found, start, stop = None, 0, size
        headers = {"ETag": etag, "Last-Modified": self.date_time_string(int(path.stat().st_mtime))}
        if found:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        with path.open("rb") as file:
            if self._fault is None and start < stop:  # as a server does that uses little of the machine
                self._answer(206 if found else 200, b"", {**headers, "Content-Length": str(stop - start)})
                self.wfile.flush()
                self.connection.sendfile(file, start, stop - start)
                return
            file.seek(start)
            data = file.read(stop - start) + b"more" * (self._fault == "long")
        self._answer(206 if found else 200, data, headers)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        fault, self._fault = getattr(self, "_fault", None), None
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(0.3)
        self.wfile.write(data)


def main(root: str) -> None:
    with served(Path(root)) as told:
        print(told.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
