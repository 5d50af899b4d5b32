"""`stepscope view` as a user starts it: a link on stdout, a page behind it, Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from tests.support.viewer import training


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(training().json())
    return path


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "stepscope", "view", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as SIGINT")
def test_the_link_on_stdout_opens_the_page_and_ctrl_c_ends_it(trace_file):
    process = start("--no-browser", trace_file)
    try:
        link = process.stdout.readline().strip()
        assert link.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(link, timeout=60) as answer:
            assert b"/static/main.js" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(link.partition("?")[0], timeout=60)
        refused.value.close()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "Serving 1 trace" in said
        assert "Traceback" not in said
    finally:
        process.kill()
        process.communicate()


BUSY = """
import sys, time
from stepscope.commands.entry import run
from stepscope.viewer.routes import traces
from stepscope.viewer.routes.answers import Endpoint

def answer(asked):
    print("asked", flush=True)
    time.sleep(100)
    return "late"

traces.ENDPOINTS = (Endpoint("/traces", answer),)
sys.exit(run())
"""


@pytest.mark.timeout(200)
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as SIGINT")
def test_ctrl_c_ends_a_viewer_that_works_on_a_question_even_if_it_comes_often(trace_file):
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, "view", "--no-browser", str(trace_file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        link = process.stdout.readline().strip()
        with urllib.request.urlopen(link, timeout=60) as answer:
            cookie = answer.headers["set-cookie"].partition(";")[0]
        place = urllib.parse.urlsplit(link)
        asked = socket.create_connection((place.hostname, place.port))
        lines = ("GET /traces HTTP/1.1", f"Host: {place.netloc}", f"Cookie: {cookie}")
        asked.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        assert process.stdout.readline() == "asked\n"
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        _, said = process.communicate(timeout=60)
        asked.close()
        assert process.returncode == 0, said
        assert "Traceback" not in said
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_many_half_open_connections_are_closed_without_a_word(trace_file):
    command = 'ulimit -n 256; exec "$0" -m stepscope view --no-browser "$1"'
    process = subprocess.Popen(
        ["bash", "-c", command, sys.executable, str(trace_file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    opened = []
    try:
        link = process.stdout.readline().strip()
        place = urllib.parse.urlsplit(link)
        for _ in range(400):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection((place.hostname, place.port), 0.2))
                opened[-1].sendall(b"GET / HTTP/1.1\r\nHost: ")
        for one in opened:
            one.close()
        with urllib.request.urlopen(link, timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert len(said) < 1000, said[:3000]
    finally:
        process.kill()
        process.communicate()


def test_what_is_not_there_is_said_in_one_line(tmp_path):
    process = start("--no-browser", tmp_path / "nothing.json")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3
    assert len(said.strip().splitlines()) == 1
    assert "nothing.json" in said


@pytest.mark.parametrize(
    ("name", "content"),
    [("trace.json", b"{ no trace"), ("snapshot.pickle", b"\x80\x04no snapshot")],
)
def test_a_file_that_cannot_be_read_is_said_once_and_ends_it(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    process = start("--no-browser", path)
    try:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 3
        told = [line for line in said.splitlines() if line.startswith("stepscope: ")]
        assert len(told) == 1
        assert name in told[0]
        assert "Traceback" not in said
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as SIGINT")
def test_one_unreadable_file_of_two_is_said_and_the_other_is_served(tmp_path, trace_file):
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(b"{ no trace")
    process = start("--no-browser", damaged, trace_file)
    try:
        link = process.stdout.readline().strip()
        while "damaged.json" not in (line := process.stderr.readline()):
            assert line
        with urllib.request.urlopen(link, timeout=60) as answer:
            assert b"/static/main.js" in answer.read()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_said_in_one_line(trace_file):
    first = start("--no-browser", trace_file)
    try:
        port = first.stdout.readline().split(":")[2].split("/")[0]
        second = start("--no-browser", "--port", port, trace_file)
        _, said = second.communicate(timeout=120)
        assert second.returncode == 2
        assert port in said
    finally:
        first.kill()
        first.communicate()
