"""A small HTTP server for a Prometheus server: GET /metrics, one look at a time.

A look is made in the thread that answers, so that two scrapers never read the stores at once. A client that
connects and says nothing, or that does not read its answer, is dropped after a few seconds.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

from rmq_spark.metrics.exposition import CONTENT_TYPE
from store_format.errors import OptionError

DEFAULT_PORT = 9877

_CLIENT_SECONDS_MAX = 10.0
_INDEX = b"rmqlog metrics: see /metrics\n"


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of `127.0.0.1:9877`, `:9877` or `[::1]:9877`; without a host that of loopback.

    Raises OptionError.

    >>> parse_address(":9877")
    ('127.0.0.1', 9877)
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise OptionError(
            f"--listen: expected HOST:PORT with a port up to 65535, such as 127.0.0.1:{DEFAULT_PORT}, found "
            f"{text!r}"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than `localhost` may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class MetricsServer(HTTPServer):
    """Listens on the address as soon as it is made. `page` makes the page of one look."""

    def __init__(self, address: tuple[str, int], page: Callable[[], bytes]) -> None:
        self.page = page
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Binds the address. `HTTPServer.server_bind` also asks the name service for the machine's name."""
        socket_bind = super(HTTPServer, self).server_bind
        socket_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def shown_address(self) -> str:
        """The address for a URL; the port that the system chose for port 0."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"{host}:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Passes over a client that goes away early, or that is dropped. Raises every other error."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            raise error


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "rmqlog", ""

    def setup(self) -> None:
        super().setup()
        self._deadline = self._new_deadline()

    def finish(self) -> None:
        self._deadline.cancel()
        super().finish()

    def _new_deadline(self) -> threading.Timer:
        """Drops the client if it has not sent its request, or read its answer, in time.

        A timeout of the socket would begin again with each byte.
        """
        deadline = threading.Timer(_CLIENT_SECONDS_MAX, self._drop)
        deadline.daemon = True
        deadline.start()
        return deadline

    def _drop(self) -> None:
        with suppress(OSError):  # it has gone itself
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._deadline.cancel()  # a look may take longer
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(self.server.page(), CONTENT_TYPE)
        elif path == "/":
            self._answer(_INDEX, "text/plain; charset=utf-8")
        else:
            self.send_error(404)

    def _answer(self, body: bytes, content_type: str) -> None:
        self._deadline = self._new_deadline()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line for each scrape helps nobody."""
