"""Folders behind HTTP that never end: listed up to a limit, never waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stepscope.errors import UnreadableInputError
from stepscope.opening import fetching
from stepscope.opening.reader import open_run


@pytest.fixture
def endless() -> Iterator[str]:
    """The URL of a folder in which each folder holds twenty others."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            links = "".join(f'<a href="{name}/">{name}/</a>' for name in range(20))
            body = links.encode()
            self.send_response(404 if "run.json" in self.path else 200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_folder_without_end_is_refused(
    endless: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(fetching, "MOST_ENTRIES", 300)
    with pytest.raises(UnreadableInputError, match="more than 300 files and folders: name"):
        open_run(endless)


def test_listing_it_ends_in_time(
    endless: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("STEPSCOPE_REMOTE_TOTAL", "1")
    monkeypatch.setattr(fetching, "MOST_ENTRIES", 10**9)
    with pytest.raises(UnreadableInputError, match="not complete after 1 s"):
        open_run(endless)
