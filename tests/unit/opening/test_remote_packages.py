"""A package that a URL's service needs and that is missing: one line names it."""

from __future__ import annotations

import sys

import pytest

from stepscope.commands.main import main


@pytest.mark.parametrize(
    ("url", "client", "remedy"),
    [
        ("https://host.invalid/run/", "aiohttp", "pip install 'stepscope[http]'"),
        ("https://host.invalid/trace.json.gz", "aiohttp", "pip install 'stepscope[http]'"),
        ("s3://bucket/run", "s3fs", "Install s3fs"),
        ("s3://bucket/trace.json.gz", "s3fs", "Install s3fs"),
        ("gs://bucket/trace.json", "gcsfs", "install gcsfs"),
    ],
)
@pytest.mark.parametrize("verb", ["report", "info"])
def test_the_message_says_what_to_install(url, client, remedy, verb, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, client, None)
    assert main([verb, url]) == 3
    said = capsys.readouterr().err
    assert remedy in said
    assert said.count("\n") == 1
    assert "Error" not in said
