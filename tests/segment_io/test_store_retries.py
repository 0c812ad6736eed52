"""Retries against an S3 server: transient errors are retried, permanent errors are reported at once."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode, urlsplit

import pytest

from sediment.segment_io.stores import Store

_BODIES = {
    403: b"<Error><Code>AccessDenied</Code></Error>",
    404: b"<Error><Code>NoSuchBucket</Code></Error>",
    502: b"Bad Gateway, says a proxy",
    503: b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
}
_RESET = "reset"
_CUT_OFF = "cut off"


class _Server(ThreadingHTTPServer):
    """Objects by path; the first answers to each kind of request are `trouble`: a status, a reset, or half a body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.trouble: list[int | str] = []
        self.asked: Counter[str] = Counter()

    def listing(self) -> bytes:
        found = "".join(
            f"<Contents><Key>{path.removeprefix('/bucket/')}</Key><Size>{len(content)}</Size>"
            "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
            for path, content in self.objects.items()
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()

    def store(self) -> Store:
        query = {"scheme": "http", "endpoint_override": f"127.0.0.1:{self.server_port}", "region": "us-east-1"}
        return Store(f"s3://key:secret@bucket/logs?{urlencode(query)}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        return

    def _is_in_trouble(self, method: str) -> bool:
        number = self.server.asked[method]
        self.server.asked[method] += 1
        if number >= len(self.server.trouble):
            return False
        trouble = self.server.trouble[number]
        if trouble == _CUT_OFF and method != "GET":
            return False
        if trouble == _RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif trouble == _CUT_OFF:
            self._answer(200, (self._found() or b"")[:300], len(self._found() or b""))
            self.close_connection = True
        else:
            assert isinstance(trouble, int)
            self._answer(trouble, _BODIES.get(trouble, b"") if method != "HEAD" else b"")
        return True

    def _answer(self, status: int, body: bytes, promised: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if promised is None else promised))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _found(self) -> bytes | None:
        return self.server.objects.get(urlsplit(self.path).path)

    def do_HEAD(self) -> None:
        if not self._is_in_trouble("HEAD"):
            found = self._found()
            dated = {"Last_Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": '"x"'}
            self._answer(404 if found is None else 200, b"", None if found is None else len(found), **dated)

    def do_GET(self) -> None:
        if not self._is_in_trouble("GET"):
            found = self._found()
            if "list-type" in self.path:
                self._answer(200, self.server.listing())
                return
            if found is None:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            part = found[int(first) : int(last) + 1 if last else None]
            self._answer(206, part, ETag='"x"', Content_Range=f"bytes {first}-{last}/{len(found)}")

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def do_PUT(self) -> None:
        body = self._body()
        if not self._is_in_trouble("PUT"):
            self.server.objects[urlsplit(self.path).path] = body
            self._answer(200, b"", ETag=f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


_CONTENT = b"0123456789" * 100


def _reads(server: _Server) -> None:
    server.objects["/bucket/logs/t-0/00000000000000000000.log"] = _CONTENT
    assert server.store().read("t-0/00000000000000000000.log") == _CONTENT


def _lists(server: _Server) -> None:
    server.objects["/bucket/logs/t-0/00000000000000000000.log"] = _CONTENT
    files = server.store().files()
    assert {name: file.size_bytes for name, file in files.items()} == {"t-0/00000000000000000000.log": len(_CONTENT)}


def _writes(server: _Server) -> None:
    assert server.store().write("t-0/x.log", [_CONTENT[:400], _CONTENT[400:]]) == len(_CONTENT)
    assert server.objects["/bucket/logs/t-0/x.log"].find(_CONTENT[:100]) >= 0


@pytest.mark.parametrize("trouble", [[503], [502], [503, 500, 502], [_RESET, _RESET], [429, _RESET, 503]], ids=str)
@pytest.mark.parametrize("use", [_reads, _lists, _writes])
def test_trouble_that_passes_is_waited_for(
    server: _Server, use: Callable[[_Server], None], trouble: list[int | str]
) -> None:
    server.trouble = trouble
    use(server)


def test_a_body_that_is_cut_off_is_never_taken_for_the_content(server: _Server) -> None:
    server.trouble = [_CUT_OFF]
    _reads(server)


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_is_told_at_once(server: _Server, status: int) -> None:
    server.objects["/bucket/logs/x"] = _CONTENT
    server.trouble = [status] * 50
    started = time.monotonic()
    with pytest.raises(OSError):
        server.store().write("x", [_CONTENT])
    assert server.asked["PUT"] == 1
    assert time.monotonic() - started < 5


def test_trouble_that_stays_ends_with_the_error_after_some_attempts(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sediment.segment_io.stores._ATTEMPTS", 3)
    server.trouble = [503] * 50
    with pytest.raises(OSError) as raised:
        server.store().write("x", [_CONTENT])
    assert server.asked["PUT"] == 3
    assert "bucket/logs/x" in str(raised.value.filename) and "secret" not in str(raised.value.filename)


def test_credentials_that_the_uri_does_not_hold_come_from_the_environment(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    seen = []
    answer = _Handler.do_PUT

    def noting(handler: _Handler) -> None:
        seen.append(handler.headers["Authorization"])
        answer(handler)

    monkeypatch.setattr(_Handler, "do_PUT", noting)
    store = server.store()
    Store(store.where.replace("key:secret@", "")).write("x", [_CONTENT])
    assert all("from-the-environment" in authorization for authorization in seen) and seen
