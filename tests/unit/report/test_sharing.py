"""`report --share`: no planted name is in the page, and what is public still is."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.step_records import step_records, write_run

from stepscope.commands.main import main
from stepscope.report.sharing import Pseudonyms, SharingError

SECRETS = ("zorblatt", "acme", "alice", "gpunode17", "o'brien", "brien", "secretlab", "10.1.2.3")


def planted_trace() -> bytes:
    trace = GpuTrace()
    for _ in range(4):
        with trace.step():
            trace.op("aten::mm", shapes=[[64, 64], [64, 64]]).launch(
                "void zorblatt_fused<alice::Tile<128>, float>(float*)", us(400)
            )
            trace.op("acme::softmax").launch("triton_poi_acme_softmax_0", us(300))
            trace.sync()
    made = json.loads(trace.json())
    made["host_name"] = "gpunode17.secretlab.example"
    made["traceName"] = '/home/alice/zorblatt/run <b>&amp;"x"/trace.json'
    steps = [one for one in made["traceEvents"] if "ProfilerStep" in str(one.get("name"))]
    frames = (
        "/home/o'brien/My Acme Project/train_zorblatt.py(12): main",
        "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py(130): forward",
        "C:\\Users\\Alice\\acme\\model.py(3): step",
        "nn.Module: ZorblattForCausalLM_0",
        "nn.Module: Linear_0",
    )
    for step in steps:
        for depth, name in enumerate(frames):
            args = {"Python id": depth + 1, "Python parent id": depth or None}
            one = {**step, "name": name, "cat": "python_function", "args": args}
            one["ts"], one["dur"] = step["ts"] + depth, step["dur"] - 2 * depth
            made["traceEvents"].append(one)
    return json.dumps(made).encode()


@pytest.fixture
def shared(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "home" / "alice" / "zorblatt-7b"
    folder.mkdir(parents=True)
    (folder / "trace.json.gz").write_bytes(gzip.compress(planted_trace()))
    monkeypatch.chdir(tmp_path)
    for variable in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "alice")
    assert main(["report", str(folder / "trace.json.gz"), "--share"]) == 0
    page = (tmp_path / "stepscope-report.html").read_text(encoding="utf-8")
    return page, capsys.readouterr()


def test_no_planted_name_is_in_the_page(shared):
    page, _ = shared
    for secret in SECRETS:
        assert secret not in page.lower(), secret
        assert json.dumps(secret)[1:-1].lower() not in page.lower()


def test_what_is_public_stays(shared):
    page, _ = shared
    assert "aten::mm" in page
    assert "softmax" in page
    assert "ProfilerStep" in page or "step" in page


def test_the_terminal_says_what_became_what_and_the_page_how_many(shared):
    page, printed = shared
    assert "alice → user" in printed.err
    assert "read it before you send it" in printed.err
    assert "What was replaced" in page
    assert "user name" in page


def test_a_run_names_its_host_directory_and_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    steps = step_records([900] + [100] * 12, waits_ms=[0] + [60] * 12)
    run = write_run(tmp_path, {0: steps}, name="zorblatt-run")
    job = run / "run.json"
    made = json.loads(job.read_text())
    made["host"] = "gpunode17"
    made["working_directory"] = "/scratch/alice/zorblatt"
    made["command"] = ["python", "pretrain.py", "--model-name", "acme/Zorblatt-7B", "--lr", "0.1"]
    job.write_text(json.dumps(made))
    assert main(["report", str(run), "--share", "-o", "out.html"]) == 0
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    for secret in ("gpunode17", "alice", "acme", "zorblatt", "pretrain"):
        assert secret not in page.lower(), secret
    assert "--lr 0.1" in page
    assert "waits for its input" in page


def test_only_a_page_can_be_shared(capsys):
    assert main(["report", "trace.json", "--share", "--format", "json"]) == 2
    assert "--share writes a page" in capsys.readouterr().err


def test_one_name_gets_one_new_name():
    names = Pseudonyms(frozenset())
    first = names.text("/home/alice/nets/train.py")
    assert names.text("alice::kernel in /home/alice/nets/other.py").startswith(
        f"{first.split('/')[2]}::kernel in {first.rpartition('/')[0]}/"
    )
    assert names.text("torch/nn/modules/linear.py(3): forward") == (
        "torch/nn/modules/linear.py(3): forward"
    )


def test_an_ordinary_word_is_replaced_in_paths_only():
    names = Pseudonyms(frozenset({"step"}))
    assert (
        names.text("/home/step/train.py: the step waits") == "/home/path1/path2.py: the step waits"
    )
    assert names.is_ordinary("step")


def test_a_name_that_would_stay_is_an_error(monkeypatch):
    names = Pseudonyms(frozenset())
    names._know("user", "alice")
    monkeypatch.setattr(names, "text", lambda text: text)
    with pytest.raises(SharingError, match="'alice' would still be in the page"):
        names.content({"title": "alice", "sections": []})
