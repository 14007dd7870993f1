"""A proxy in front of a server, that can lose the answer to a COMMIT."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo


class Proxy:
    """Forwards connections on a TCP port of its own; use it in a ``with`` statement.

    Args:
        dsn: the server behind it.

    """

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as conn:
            self._host, self._port = conn.info.host, conn.info.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        port = self._listener.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
        #: When True, the answer to the next COMMIT is not passed on and its connection ends.
        self.loses_commit = False
        #: When True too, nobody gets in any more after that.
        self.then_closes = False
        self._closed = False

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        for one in list(self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._closed:
                client.close()
                continue
            server = self._dial()
            self._open += [client, server]
            lost = threading.Event()
            for one, other in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pump, args=(one, other, one is client, lost), daemon=True
                ).start()

    def _dial(self) -> socket.socket:
        if self._host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return server
        return socket.create_connection((self._host, self._port))

    def _pump(
        self, source: socket.socket, target: socket.socket, is_client: bool, lost: threading.Event
    ) -> None:
        try:
            while data := source.recv(65536):
                if is_client and b"COMMIT\0" in data and self.loses_commit:
                    self.loses_commit = False
                    self._closed = self.then_closes
                    lost.set()
                if not is_client and lost.is_set():
                    break  # the server has answered; the client is never told
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            _shut(one)


def _shut(one: Any) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
