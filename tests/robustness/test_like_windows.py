"""Reading works without what only POSIX has: see `tests/support/like_windows.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.project import ROOT
from tests.support.trace_server import Served, serving

from stepscope.trace.load import REMOTE_STORE_ABOVE_BYTES

pytest.importorskip("aiohttp", reason="reading over HTTP needs aiohttp")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def traces(tmp_path):
    """A folder with a small trace, and the URL of one that is large enough for a store."""
    for name, calls in (("before.json", 600), ("after.json", 6)):
        trace = GpuTrace()
        for _ in range(6):
            with trace.step():
                for _ in range(calls):
                    trace.op("aten::mm").launch("gemm", us(100))
        (tmp_path / name).write_bytes(trace.json())
    content = (tmp_path / "before.json").read_bytes()
    assert len(content) > REMOTE_STORE_ABOVE_BYTES
    with serving(Served(content)) as url:
        yield tmp_path, f"{url}/before.json"


def run(folder, *commands):
    """What each command printed, and how it ended."""
    words = [word for command in commands for word in (*command, "+")][:-1]
    ended = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-m", "tests.support.like_windows", *words],
        cwd=folder,
        env={
            **os.environ,
            "STEPSCOPE_CACHE": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    printed = re.split(r"exit code (\d+)\n", ended.stdout)[:-1]
    return dict(zip(commands, zip(printed[1::2], printed[::2], strict=True), strict=True))


@pytest.mark.slow
def test_every_reading_verb(traces):
    folder, url = traces
    report, kernels = ("report", url), ("show", "kernels", url, "--format", "csv")
    query = ("query", url, "SELECT count(*) AS rows FROM kernels", "--format", "csv")
    stores, clear = ("cache", "list"), ("cache", "clear")
    compare = ("compare", "before.json", "after.json")
    page = ("report", "before.json", "-o", "report.html")
    export, info = ("export", "before.json", "-o", "trace.pftrace"), ("info", "trace.pftrace")
    commands = (report, kernels, query, stores, compare, page, export, info, clear)
    said = run(folder, *commands)
    for words, (code, printed) in said.items():
        assert code == "0", (words, printed)
    assert "compute" in said[report][1]
    assert "gemm" in said[kernels][1]
    assert "3600" in said[query][1]
    assert "in 1 store" in said[stores][1]
    assert "gone" not in said[compare][1]
    assert (folder / "report.html").stat().st_size > 50_000
    assert "kernel" in said[info][1]
    assert not said[clear][1].startswith("Removed 0 B")
    assert not list((folder / "cache").rglob("*.parquet"))
