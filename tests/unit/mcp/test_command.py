"""The verb, where its extra is missing or its folders are wrong."""

from __future__ import annotations

import importlib.util

import pytest

from stepscope.commands.main import main


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["mcp", "--allow", str(tmp_path)]) == 2
    assert "pip install 'stepscope[mcp]'" in capsys.readouterr().err


def test_a_folder_that_does_not_exist_is_named(tmp_path, capsys):
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    assert main(["mcp", "--allow", str(tmp_path / "nothing")]) == 2
    assert f"--allow {tmp_path / 'nothing'}: no such folder" in capsys.readouterr().err


def test_a_folder_must_be_allowed(capsys):
    assert main(["mcp"]) == 2
    assert "--allow" in capsys.readouterr().err
