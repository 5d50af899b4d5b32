"""Names from files on terminals and in Markdown."""

from __future__ import annotations

import json

import pytest

from stepscope.commands.main import main
from stepscope.report.render.markdown import markdown_text

NAME = "a\x1b[31m@octocat https_x.json"


@pytest.mark.parametrize(
    "text",
    [
        "@octocat",
        "by @octocat/team",
        "mail me@example.org",
        "see https://example.org/x",
        "WWW.x.org",
    ],
)
def test_markdown_mentions_nobody_and_links_nowhere(text):
    found = markdown_text(text)
    assert found.replace("\u2060", "") == text
    assert "@\u2060" in found or ":\u2060//" in found or "WWW\u2060." in found


def test_other_text_stays():
    assert markdown_text("at 3 @ 4: http, www 2 µs") == "at 3 @ 4: http, www 2 µs"


@pytest.mark.parametrize("form", ["table", "md"])
@pytest.mark.parametrize("verb", [["show", "operators"], ["report"], ["info"]])
def test_no_control_character_of_a_file_name_is_shown(tmp_path, capsys, verb, form):
    events = [{"ph": "X", "cat": "cpu_op", "name": f"aten::mm{n}", "pid": 1, "tid": 1, "ts": 9 * n,
               "dur": 5} for n in range(9)]  # fmt: skip
    path = tmp_path / NAME
    path.write_text(json.dumps({"traceEvents": events}))
    formatted = ["--format", form] if verb != ["info"] else []
    assert main([*verb, str(path), *formatted]) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "octocat" in shown.out or form == "md"
    if formatted and form == "md":
        assert "@octocat" not in shown.out
