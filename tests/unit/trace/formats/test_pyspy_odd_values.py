"""Recordings of py-spy that are damaged: read as far as possible, or refused in one line."""

import json

import pytest

from stepscope.commands.main import main
from stepscope.errors import UnreadableInputError
from stepscope.trace.load import load

ODD = {
    "null": None,
    "negative": -1,
    "beyond 64 bits": 2**70,
    "huge": 1e308,
    "text": "text",
    "digits": "9" * 400,
    "list": [[]],
    "object": {"a": {"b": 1}},
    "true": True,
    "control characters": "\x1b[2J\x00",
}


def frames():
    return [
        {
            "args": {"filename": "train.py", "line": 3}, "cat": "py-spy", "name": f"f{n // 2 % 3}",
            "ph": "BE"[n % 2], "pid": 1, "tid": 1, "ts": 10 * n,
        }
        for n in range(20)
    ]  # fmt: skip


def check(path, capsys):
    """It is read, or refused in one line that names it."""
    try:
        events = load(path).events.collect()
    except UnreadableInputError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
    else:
        assert (events["dur_ns"] >= 0).all()
    assert main(["report", str(path)]) in (0, 3)
    said = capsys.readouterr().err
    assert "unexpected" not in said
    assert "Traceback" not in said


@pytest.mark.sampled(7)
@pytest.mark.parametrize("key", ["args", "cat", "name", "ph", "pid", "tid", "ts"])
@pytest.mark.parametrize("odd", ODD)
def test_one_odd_value(tmp_path, capsys, key, odd):
    events = frames()
    events[6][key] = ODD[odd]
    path = tmp_path / "spy.json"
    path.write_text(json.dumps(events))
    check(path, capsys)
    assert len(load(path).events.collect()) >= 8


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", ["filename", "line"])
@pytest.mark.parametrize("odd", ODD)
def test_odd_places(tmp_path, capsys, key, odd):
    events = frames()
    for event in events:
        event["args"][key] = ODD[odd]
    path = tmp_path / "spy.json"
    path.write_text(json.dumps(events))
    check(path, capsys)
    assert len(load(path).events.collect()) == 10


@pytest.mark.parametrize("end", [1, 2, 60, 119, 200, 700])
def test_cut_off(tmp_path, capsys, end):
    path = tmp_path / "spy.json"
    path.write_text(json.dumps(frames())[:end])
    check(path, capsys)


@pytest.mark.parametrize("seed", range(5))
def test_changed_bytes(tmp_path, capsys, seed):
    data = bytearray(json.dumps(frames()).encode())
    for number in range(12):
        data[(seed * 7919 + number * 104729) % len(data)] = (seed * 31 + number * 57) % 256
    path = tmp_path / "spy.json"
    path.write_bytes(data)
    check(path, capsys)
