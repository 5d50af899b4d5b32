"""A local HTTP server for traces, which can be as unhelpful as servers are."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What a server has, how it behaves, and what it was asked.

    Attributes:
        content: The bytes of every path but /none (404) and /secret (403).
        has_ranges: Whether it answers requests for ranges.
        version: Its ETag; None: it tells neither that nor a time.
        breaks_at: After how many bytes of a whole file it drops the connection.
        byte_seconds: Pause after each byte of content; None: it sends as fast as it can.
        is_endless: Whether it repeats its content without end, and tells no size.
        sent: How many bytes of content it has begun to send.
    """

    content: bytes
    has_ranges: bool = True
    version: str | None = '"1"'
    breaks_at: int | None = None
    byte_seconds: float | None = None
    is_endless: bool = False
    sent: int = 0


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """Serves on 127.0.0.1; yields the URL of its root."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            status = {"/none": 404, "/secret": 403}.get(self.path.partition("?")[0], 200)
            if status != 200:
                self.send_error(status)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            body = served.content
            if wanted and served.has_ranges:
                body = body[int(wanted[1]) : int(wanted[2]) + 1]
                status = 206
            self.send_response(status)
            if status == 206:
                last = int(wanted[1]) + len(body) - 1
                self.send_header("Content-Range", f"bytes {wanted[1]}-{last}/{len(served.content)}")
            if served.has_ranges:
                self.send_header("Accept-Ranges", "bytes")
            if served.version is not None:
                self.send_header("ETag", served.version)
            if served.is_endless:
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body and (served.is_endless or served.byte_seconds is not None):
                self._go_on(body)
            elif with_body:
                self._send(body, is_whole=status == 200)

        def _go_on(self, body: bytes) -> None:
            pieces = [body] if served.byte_seconds is None else [bytes([one]) for one in body]
            with suppress(OSError):  # the reader had enough
                while True:
                    for piece in pieces:
                        self.wfile.write(piece)
                        self.wfile.flush()
                        time.sleep(served.byte_seconds or 0)
                    if not served.is_endless:
                        return

        def _send(self, body: bytes, *, is_whole: bool) -> None:
            part = body[: served.breaks_at] if is_whole else body
            served.sent += len(part)  # before whoever asked can have it, and look here
            try:
                self.wfile.write(part)
                self.wfile.flush()
            except OSError:  # the reader had enough
                self.close_connection = True
                return
            if len(part) < len(body):
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
