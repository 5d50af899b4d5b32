"""Single files and folders at URLs open as local ones do, and never in an older version."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.chrome_traces import operator, write
from tests.support.gpu_trace import GpuTrace, us
from tests.support.trace_server import Served, serving

from stepscope.commands.main import main
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import Run, open_run

pytestmark = pytest.mark.usefixtures("cache")

pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")

CONTENT = write([operator(start=str(number)) for number in range(50)])


def only_content(run: Run) -> bytes:
    (window,) = run.windows
    assert window.trace_path is not None
    return window.trace_path.read_bytes()


@pytest.mark.parametrize("name", ["trace.json", "before.json", "profile.sqlite", "no-ending"])
def test_a_file_is_a_run_of_one_rank_whatever_its_name(name: str) -> None:
    served = Served(CONTENT)
    with serving(served) as url:
        run = open_run(f"{url}/{name}")
    assert only_content(run) == CONTENT
    assert run.location == f"{url}/{name}"
    assert served.sent == len(CONTENT)


def test_a_version_is_fetched_once_and_another_one_anew() -> None:
    served = Served(CONTENT, version='"one"')
    with serving(served) as url:
        for _ in range(2):
            assert only_content(open_run(f"{url}/before.json")) == CONTENT
        assert served.sent == len(CONTENT)
        served.content, served.version = CONTENT.replace(b"aten::mm", b"aten::no"), '"two"'
        assert only_content(open_run(f"{url}/before.json")) == served.content


def test_where_nothing_tells_versions_apart_it_is_fetched_each_time() -> None:
    served = Served(CONTENT, version=None)
    with serving(served) as url:
        assert only_content(open_run(f"{url}/before.json")) == CONTENT
        served.content = CONTENT.replace(b"aten::mm", b"aten::no")
        assert only_content(open_run(f"{url}/before.json")) == served.content


def test_what_a_url_has_for_its_server_alone_is_neither_shown_nor_kept(cache: Path) -> None:
    with serving(Served(CONTENT)) as url:
        run = open_run(f"{url}/trace.json?signature=hidden")
    assert run.location == f"{url}/trace.json"
    (window,) = run.windows
    assert window.trace_path is not None
    assert window.trace_path.name == "trace.json"
    kept = [path for path in cache.rglob("*") if "hidden" in path.name]
    assert not kept


@pytest.mark.parametrize("verb", ["report", "compare", "show kernels", "show stragglers", "info"])
def test_no_verb_prints_it(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    trace = GpuTrace()
    for _ in range(4):
        with trace.step():
            trace.op("aten::mm").launch("gemm", us(100))
    with serving(Served(trace.json())) as url:
        name = f"{url}/trace.json"
        urls = [f"{name}?signature=hidden"] * (2 if verb in {"compare", "show stragglers"} else 1)
        main([*verb.split(), *urls])
    said = capfd.readouterr()
    assert name in said.out + said.err
    assert "hidden" not in said.out + said.err


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("none", "the server responded 404 .*; check the address"),
        ("secret", "the server responded 403 .*; configure the credentials"),
    ],
)
def test_what_cannot_be_opened_is_said_with_a_remedy(path: str, words: str) -> None:
    with serving(Served(CONTENT)) as url, pytest.raises(UnreadableInputError, match=words):
        open_run(f"{url}/{path}")


def test_what_is_on_this_machine_is_not_copied(tmp_path: Path, cache: Path) -> None:
    trace = tmp_path / "before.json"
    trace.write_bytes(CONTENT)
    run = open_run(trace.as_uri())
    assert [window.trace_path for window in run.windows] == [trace]
    assert run.location == trace.as_uri()
    assert not cache.exists()
    with pytest.raises(UnreadableInputError, match="no such file or directory"):
        open_run((tmp_path / "none.json").as_uri())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL under which a server lists it."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    home = tmp_path / "served"
    home.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(home)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield home, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_folder_of_traces_by_any_name_is_never_an_older_one(folder: tuple[Path, str]) -> None:
    home, url = folder
    traces = [home / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(traces):
        path.write_bytes(CONTENT)
        os.utime(path, (1_000_000_000 + rank, 1_000_000_000 + rank))
    assert [rank.rank for rank in open_run(url).ranks] == [0, 1]
    changed = CONTENT.replace(b"aten::mm", b"aten::no")  # of the same length
    traces[1].write_bytes(changed)
    found = [window.trace_path for window in open_run(url).windows]
    assert [path.read_bytes() for path in found if path is not None] == [CONTENT, changed]
