"""The HTTP server: two pages, one look at a time, and no client that stops it."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rmq_spark.metrics import server
from rmq_spark.metrics.server import MetricsServer, is_loopback, parse_address
from store_format.errors import OptionError


@contextmanager
def served(page: Callable[[], bytes]) -> Iterator[int]:
    """The port of a server that runs in a thread."""
    with MetricsServer(("127.0.0.1", 0), page) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running.server_port
        finally:
            running.shutdown()
            thread.join()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read()
    finally:
        connection.close()


def test_what_is_served() -> None:
    with served(lambda: b"a 1\n") as port:
        status, kind, body = get(port, "/metrics")
        assert (status, body) == (200, b"a 1\n")
        assert kind.startswith("text/plain; version=0.0.4")
        assert get(port, "/metrics?name=a")[2] == b"a 1\n"
        assert get(port, "/")[::2] == (200, b"rmqlog metrics: see /metrics\n")
        assert get(port, "/other")[0] == 404
        assert get(port, "/metrics", "POST")[0] == 501


def test_two_scrapers_are_answered_one_after_the_other() -> None:
    looks, at_once = [0], []

    def page() -> bytes:
        looks[0] += 1
        at_once.append(looks[0])
        time.sleep(0.05)
        looks[0] -= 1
        return b""

    with served(page) as port:
        threads = [threading.Thread(target=get, args=(port, "/metrics")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert at_once == [1] * 4


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost:"])
def test_a_client_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server, "_CLIENT_SECONDS_MAX", 0.2)
    with served(lambda: b"a 1\n") as port, socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(sent)
        assert get(port, "/metrics")[2] == b"a 1\n"


def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CLIENT_SECONDS_MAX", 0.2)
    with served(lambda: bytes(64 << 20)) as port, socket.create_connection(("127.0.0.1", port)) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(port, "/")[0] == 200


def test_a_look_may_take_longer_than_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CLIENT_SECONDS_MAX", 0.1)

    def page() -> bytes:
        time.sleep(0.3)
        return b"a 1\n"

    with served(page) as port:
        assert get(port, "/metrics")[2] == b"a 1\n"


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9877") == ("127.0.0.1", 9877)
    assert parse_address(":9877") == ("127.0.0.1", 9877)
    assert parse_address("[::1]:9877") == ("::1", 9877)
    for text in ("9877", "host", "host:", "host:x", "host:70000"):
        with pytest.raises(OptionError, match="HOST:PORT"):
            parse_address(text)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip
