"""A small server that speaks as much of S3 over HTTP as a store needs, and can be told to fail."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

from sediment.segment_io.stores import Store

_BODIES = {
    403: b"<Error><Code>AccessDenied</Code></Error>",
    404: b"<Error><Code>NoSuchBucket</Code></Error>",
    502: b"Bad Gateway, says a proxy",
    503: b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
}
RESET = "reset"
CUT_OFF = "cut off"


class ObjectServer(ThreadingHTTPServer):
    """A server of objects by path, in memory.

    The first answers to each kind of request are `trouble`: a status, a reset, or half a body.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ObjectHandler)
        self.objects: dict[str, bytes] = {}
        self.trouble: list[int | str] = []
        self.asked: Counter[str] = Counter()

    def listing(self, prefix: str, delimiter: str) -> bytes:
        found, folders = "", set()
        for path, content in sorted(self.objects.items()):
            key = path.removeprefix("/bucket/")
            if not key.startswith(prefix):
                continue
            folder, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if slash:
                folders.add(f"{prefix}{folder}{delimiter}")
                continue
            found += (
                f"<Contents><Key>{key}</Key><Size>{len(content)}</Size>"
                "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
            )
        found += "".join(f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in sorted(folders))
        count = found.count("<Key>") + len(folders)
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>{count}</KeyCount>{found}</ListBucketResult>"
        ).encode()

    def store(self) -> Store:
        query = {"scheme": "http", "endpoint_override": f"127.0.0.1:{self.server_port}", "region": "us-east-1"}
        return Store(f"s3://key:secret@bucket/logs?{urlencode(query)}")


class ObjectHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ObjectServer

    def log_message(self, *_: object) -> None:
        return

    def _is_in_trouble(self, method: str) -> bool:
        number = self.server.asked[method]
        self.server.asked[method] += 1
        if number >= len(self.server.trouble):
            return False
        trouble = self.server.trouble[number]
        if trouble == CUT_OFF and method != "GET":
            return False
        if trouble == RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif trouble == CUT_OFF:
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
                asked = dict(parse_qsl(urlsplit(self.path).query))
                self._answer(200, self.server.listing(asked.get("prefix", ""), asked.get("delimiter", "")))
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


@contextmanager
def running_server() -> Iterator[ObjectServer]:
    """Run a server in a thread of this process."""
    with ObjectServer() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()
