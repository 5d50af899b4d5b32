"""Every rule about who may ask: each with a request that breaks it alone."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from types import SimpleNamespace

import pytest
from tests.support.viewer import serving, training, viewing

from stepscope.errors import UsageError
from stepscope.trace import load as loading
from stepscope.viewer import opened
from stepscope.viewer.app import listen
from stepscope.viewer.security import MOST_BODY_BYTES, SHARED_S, Secrets

POST = "/api/traces/{}/open"


def path_of(viewer, path):
    return path.replace("{}", viewer.library.traces[0].id)


def test_it_listens_on_the_loopback_interface_only():
    opened = listen()
    try:
        assert opened.getsockname()[0] == "127.0.0.1"
        opened.listen()
        with pytest.raises(UsageError, match="port"):
            listen(opened.getsockname()[1])
    finally:
        opened.close()


def test_small_answers_are_sent_at_once():
    """Else the system holds the second part of each back until the first has been confirmed."""
    seen = []

    async def answer(_, writer):
        connection = writer.get_extra_info("socket")
        seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def asked():
        async with await asyncio.start_server(answer, sock=listen()) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.close()

    asyncio.run(asked())
    assert [bool(value) for value in seen] == [True]


def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(viewer):
    answer = viewer.ask("/" + viewer.link.split("/", 3)[3], with_cookie=False)
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    token = viewer.link.partition("token=")[2]
    assert token not in cookie
    assert cookie.startswith(f"stepscope-{viewer.port}=")


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=wrong", "/api/traces", "/static/main.js"]
)
def test_nothing_is_answered_without_the_token(viewer, path):
    answer = viewer.ask(path, with_cookie=False)
    assert answer.status == 403
    assert b"stepscope view" in answer.body
    assert "set-cookie" not in answer.headers


def test_the_token_opens_the_page_and_nothing_else(viewer):
    token = viewer.link.partition("token=")[2]
    assert viewer.ask(f"/api/traces?token={token}", with_cookie=False).status == 403


def test_a_link_that_was_copied_opens_the_page_until_it_ends(viewer, monkeypatch):
    token = viewer.post("/api/share", {}).json["token"]
    assert token not in viewer.link
    answer = viewer.ask(f"/?token={token}", with_cookie=False)
    assert answer.status == 200
    assert "set-cookie" in answer.headers
    assert viewer.ask(f"/api/traces?token={token}", with_cookie=False).status == 403
    later = time.monotonic() + SHARED_S + 1
    clock = SimpleNamespace(monotonic=lambda: later)  # the server's own clock goes on
    monkeypatch.setattr("stepscope.viewer.security.time", clock)
    assert viewer.ask(f"/?token={token}", with_cookie=False).status == 403
    assert viewer.ask("/" + viewer.link.split("/", 3)[3], with_cookie=False).status == 200


def test_many_copied_links_take_no_room():
    keys = Secrets()
    tokens = [keys.share() for _ in range(300)]
    assert keys.opens(tokens[-1])
    assert sum(map(keys.opens, tokens)) <= 64


def test_only_the_page_copies_links(viewer):
    assert viewer.ask("/api/share", "POST", b"{}").status == 403
    assert viewer.ask("/api/share", "POST", b"{}", with_cookie=False).status == 403


@pytest.mark.parametrize("value", ["wrong", "", "é", "a=b; c", '"'])
def test_a_wrong_cookie_is_no_cookie(viewer, value):
    sent = {"Cookie": f"stepscope-{viewer.port}={value}".encode().decode("latin-1")}
    assert viewer.ask("/api/traces", with_cookie=False, headers=sent).status == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "192.0.2.1",
        "",
        "localhost.evil",
    ],
)
def test_another_host_name_is_refused(viewer, host):
    assert viewer.ask("/api/traces", headers={"Host": host}).status == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:80"])
def test_names_of_this_machine_are_served_at_any_port_of_a_forwarding(viewer, host):
    assert viewer.ask("/api/traces", headers={"Host": host}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_pages_are_refused(viewer, site):
    assert viewer.ask("/api/traces", headers={"Sec-Fetch-Site": site}).status == 403
    assert viewer.ask("/static/main.js", headers={"Sec-Fetch-Site": site}).status == 403


def test_the_link_may_be_followed_from_another_page(viewer):
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert viewer.ask("/" + viewer.link.split("/", 3)[3], headers=sent).status == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_only_the_own_page_may_do_anything_but_get(viewer, sent, status):
    headers = {name: value.replace("{port}", str(viewer.port)) for name, value in sent.items()}
    headers["Host"] = f"127.0.0.1:{viewer.port}"
    assert viewer.ask(path_of(viewer, POST), "POST", b"{}", headers=headers).status == status


def test_long_requests_are_refused_before_they_are_read(viewer):
    sent = {"Sec-Fetch-Site": "same-origin", "Content-Length": str(MOST_BODY_BYTES + 1)}
    assert viewer.ask(path_of(viewer, POST), "POST", b"", headers=sent).status == 413
    sent = {"Sec-Fetch-Site": "same-origin", "Transfer-Encoding": "chunked"}
    assert viewer.ask(path_of(viewer, POST), "POST", b"0\r\n\r\n", headers=sent).status == 413


@pytest.mark.parametrize("path", ["/", "/api/traces", "/static/main.js", "/nothing"])
def test_every_answer_carries_the_headers_and_none_of_cors(viewer, path):
    answer = viewer.ask(path, headers={"Origin": "http://evil.example"})
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd",
        "/api/traces/%2e%2e%2fetc/overview", "/api/traces//etc/passwd/overview",
    ],
)  # fmt: skip
def test_no_path_of_the_client_reaches_a_file(viewer, path):
    answer = viewer.ask(path)
    assert answer.status in {400, 404}
    assert b"import" not in answer.body


def test_traces_are_known_by_ids_that_say_nothing_of_their_path(viewer, trace_file):
    said = (
        viewer.ask("/api/traces").body + viewer.ask(path_of(viewer, "/api/traces/{}/overview")).body
    )
    assert str(trace_file.parent).encode() not in said
    assert viewer.ask(f"/api/traces/{trace_file.name}/overview").status == 400


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/stepscope-written'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "SET memory_limit='1TB'",
        "SELECT 1; SELECT 2",
        "DROP VIEW events",
    ],
)
def test_sql_can_only_read_the_trace(viewer, query):
    answer = viewer.post("/api/traces/{}/sql", {"query": query})
    assert answer.status == 400
    assert "root:" not in answer.json["error"]


def test_sql_is_limited_in_rows_and_time(viewer, monkeypatch):
    from stepscope.viewer.routes import sql

    rows = "SELECT a.event FROM events a, events b"
    found = viewer.post("/api/traces/{}/sql", {"query": rows}).json
    assert found["is_cut"]
    assert len(found["rows"]) == sql.MOST_ROWS
    monkeypatch.setattr(sql, "MOST_SECONDS", 0.2)
    endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    answer = viewer.post("/api/traces/{}/sql", {"query": endless})
    assert answer.status == 400
    assert "timed out" in answer.json["error"]


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"\xff", json.dumps({"query": 5}).encode(), json.dumps({}).encode()]
)
def test_malformed_bodies_get_one_line(viewer, body):
    answer = viewer.ask(
        path_of(viewer, "/api/traces/{}/sql"),
        "POST",
        body,
        headers={"Sec-Fetch-Site": "same-origin"},
    )
    assert answer.status == 400
    assert "\n" not in answer.json["error"]


def test_two_viewers_keep_their_cookies_apart(viewer, trace_file):
    with serving([trace_file]) as other:
        other.enter()
        assert other.cookie.partition("=")[0] != viewer.cookie.partition("=")[0]
        assert (
            viewer.ask("/api/traces", headers={"Cookie": other.cookie}, with_cookie=False).status
            == 403
        )
        both = {"Cookie": f"{other.cookie}; {viewer.cookie}"}
        for one in (viewer, other):
            assert one.ask("/api/traces", headers=both, with_cookie=False).status == 200


def test_a_trace_that_cannot_be_read_says_why(tmp_path):
    bad = tmp_path / "trace.json"
    bad.write_text("this is no trace")
    with serving([bad]) as client:
        client.enter()
        while client.library.traces[0].stage not in {"failed", "ready"}:
            pass
        (status,) = client.get("/api/traces")["traces"]
        assert status["stage"] == "failed"
        assert "trace.json" in status["error"]
        assert client.ask(path_of(client, "/api/traces/{}/overview")).status == 400


def test_a_store_that_changes_under_the_viewer_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_bytes(training().json())
    monkeypatch.setattr(opened, "load", lambda place: loading.load(place, store=True))
    with viewing([path]) as client:
        assert client.get("/api/traces/{}/event", event=0)["event"] == 0
        path.write_bytes(training(steps=5).json())
        loading.load(path, store=True)
        answer = client.ask(path_of(client, "/api/traces/{}/event?event=0"))
        assert answer.status == 409
        assert answer.json["changed"]
        assert "changed" in answer.json["error"]
        assert client.post("/api/traces/{}/reopen", {}).status == 200
        client.wait()
        assert len(client.get("/api/traces/{}/overview")["steps"]) == 5
