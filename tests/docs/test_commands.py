"""Every command of every page runs, and prints what it should in shape.

A command runs here, on files under the names that the pages use; or a table says what it needs
that is not here. Commands of guides run in `tests/integration/test_guide_pages.py`.
"""

from __future__ import annotations

import gzip
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_nsys import make_nsys
from tests.support.gpu_trace import GpuTrace, us
from tests.support.project import ROOT
from tests.support.snapshots import out_of_memory, plain_training
from tests.support.step_records import step_records, write_run
from tests.unit.project.test_docs_commands import COMMANDS

NEEDS = {
    r"^view |^mcp |--prometheus \d|--live": "serves until interrupted: tests of view and monitor",
    r"^attach|^trigger": "a training that runs: tests/integration/test_capture_on_demand.py",
    r"--otlp|--mlflow|--wandb|--scheduler|--prometheus-file": "a server, or an extra",
    r"--query-gpu=timestamp,name": "runs until it is interrupted",
    r"\.nsys-rep|report\.sqlite": "nsys: tests of the formats",
    r"operations\.parquet|~/\.cache/torch": "dumps: tests of collectives and hangs",
    r"^memory (runs/|profiles)": "a run with snapshots of a GPU: tests of memory",
    r"--memory-history": "a GPU",
    r"show pipeline": "a job of several dimensions: tests of pipeline",
    r"\$SCRATCH|HOST_TIME|TRACE\.pt": "files of a cluster, or a guide",
}
"""Pattern of a command to what it needs, and where it is tested instead."""
RECORDS = re.compile(r"^(run|try|gate|demo|monitor|doctor)\b")
SHAPES = {
    "report": r"Verdict|# |replaced in the page|\.html: ",
    "show": r"\w",
    "memory": r"GiB|MiB|KiB|peak",
    "compare": r"step|\.html: |comment",
    "query": r"─|,|\w+  \w+",
    "export": r"step8\.pftrace|copies\.json\.gz|\.xlsx|: [\d.,]+ [kM]?B",
    "explain": r"^# |^start here:",
    "examples": r"\.py",
    "dialects": r"megatron",
    "cache": r"",
    "info": r"\w",
    "--version": r"^stepscope \d",
    "run": r"Verdict|py-spy|recorded|would run|nsys|--",
    "try": r"fix|loader-workers",
    "gate": r"step|old|new",
    "demo": r"predicted",
    "monitor": r"timestamp|metrics\.csv|\d",
    "doctor": r"Ready to|problem",
}
"""What the output of a verb has in it."""


def words_of(text: str) -> list[str]:
    """The words after `stepscope`, up to a pipe or redirection."""
    words = shlex.split(text, comments=True)
    words = words[words.index("stepscope") + 1 :]
    ends = [place for place, word in enumerate(words) if word in {"|", ">", "&&", "2>", "&", ";"}]
    return words[: min(ends, default=len(words))]


def needed(command: str) -> str | None:
    return next((why for pattern, why in NEEDS.items() if re.search(pattern, command)), None)


def distinct(*, is_recording: bool) -> list[list[str]]:
    """Each command once, but those of guides."""
    found = {}
    for page, text in COMMANDS:
        words = words_of(text)
        command = " ".join(words)
        if page.parent.name == "guides" or needed(command):
            continue
        if bool(RECORDS.match(command)) == is_recording:
            found[command] = words
    return list(found.values())


READING = distinct(is_recording=False)
RECORDING = distinct(is_recording=True)


def ident(words: list[str]) -> str:
    return re.sub(r"\s+", " ", " ".join(words))[:70]


def traced(rank: int = 0, slower: int = 1) -> bytes:
    """Ten steps of a rank, with products, a copy and a collective."""
    trace = GpuTrace(rank=rank, world_size=2)
    for _ in range(10):
        with trace.step():
            trace.data_wait(us(300))
            trace.copy("HtoD", 1 << 20, us(50))
            with trace.frame("train.py(3): step"):
                for _ in range(3):
                    trace.op("aten::mm", shapes=[[64, 64], [64, 64]]).launch(
                        "sm90_xmma_gemm_bf16", us(200 * slower)
                    )
            trace.collective("all_reduce", 1 << 20, us(150))
            trace.sync()
            trace.python(us(18_000))
    return trace.json()


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    ranks = {0: traced(0), 1: traced(1)}
    slow = {0: traced(0, 2), 1: traced(1, 2)}
    steps = step_records([900] + [100] * 20, waits_ms=[0] + [60] * 20)
    fast = step_records([900] + [50] * 20, waits_ms=[0] + [10] * 20)
    for name in ("trace", "before", "healthy"):
        (root / f"{name}.json.gz").write_bytes(gzip.compress(ranks[0]))
    (root / "after.json.gz").write_bytes(gzip.compress(slow[0]))
    shutil.copy(root / "trace.json.gz", root / "PATH")
    slower = {"profiles", "RUN", "A", "before", "one-node", "old-1", "old-2", "old-3"}
    for name in (*sorted(slower), "B", "after", "four-nodes", "fixed", "new-1", "new-2", "new-3"):
        records = steps if name in slower else fast
        write_run(root, dict.fromkeys(ranks, records), name, slow if name in slower else ranks)
    for folder, name in (("runs", "latest"), ("runs", "good"), ("runs", "tuesday")):
        write_run(root / folder, dict.fromkeys(ranks, steps), name, slow)
    for name in ("old-1", "old-2", "new-1", "new-2"):
        write_run(root / "profiles", {0: steps if "old" in name else fast}, name)
    (root / "traces").mkdir()
    for rank, content in ranks.items():
        (root / "traces" / f"rank{rank}.json.gz").write_bytes(gzip.compress(content))
    for name, snapshot in {
        "snapshot": out_of_memory(),
        "before": plain_training(),
        "after": plain_training(),
        "oom": out_of_memory(),
    }.items():
        (root / f"{name}.pickle").write_bytes(pickle.dumps(snapshot))
    return root


def expanded(words: list[str], folder: Path) -> list[str]:
    """Words with patterns expanded, as a shell does with those that are not quoted."""
    found = []
    for word in words:
        matches = sorted(folder.glob(word)) if re.search(r"(old|new)-\*$", word) else []
        found += [str(path.relative_to(folder)) for path in matches] or [word]
    return found


def check_shape(words: list[str], printed: str) -> None:
    pattern = SHAPES[words[0]]
    assert re.search(pattern, printed, re.MULTILINE), printed[-2000:]
    assert "Traceback" not in printed


@pytest.mark.usefixtures("cache_of_the_module")
@pytest.mark.parametrize("words", READING, ids=ident)
def test_a_command_that_reads(words, made, monkeypatch, capsys):
    from stepscope.commands.main import main

    if "pftrace" in " ".join(words):
        pytest.importorskip("perfetto")
    if "xlsx" in words:
        pytest.importorskip("xlsxwriter")
    monkeypatch.chdir(made)
    code = main(expanded(words, made))
    printed = capsys.readouterr()
    assert code == 0 or ("--fail-on" in words and code == 1), printed.err
    check_shape(words, printed.out + printed.err)


@pytest.mark.slow
@pytest.mark.parametrize("words", RECORDING, ids=ident)
def test_a_command_that_records(words, tmp_path):
    pytest.importorskip("torch")
    source = (ROOT / "examples" / "slow_input.py").read_text(encoding="utf-8")
    quick = source.replace("time.sleep(0.01)", "time.sleep(0.002)")
    # As the pages say: their script takes the reader's own options.
    (tmp_path / "slow_input.py").write_text(source)
    for name in ("train.py", "old.py", "new.py", "fixed.py"):
        (tmp_path / name).write_text(quick)
    for name in ("main", "change"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(quick)
    make_nsys(tmp_path / "bin")
    python_folder = Path(sys.executable).parent
    programs = (tmp_path / "bin", python_folder, os.environ["PATH"])
    fewer = ["2" if word == "8" else word for word in words]  # ranks
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", *fewer],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": os.pathsep.join(map(str, programs)),
            "PYTHONPATH": str(ROOT / "src"),
        },
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0 or ("--fail-on" in words and done.returncode == 1), printed[-3000:]
    check_shape(words, printed)


def test_each_command_runs_or_needs_what_is_not_here():
    left = [text for page, text in COMMANDS if needed(" ".join(words_of(text)))]
    assert len(READING) > 70
    assert len(RECORDING) > 15
    assert len(left) < 50
    commands = [" ".join(words_of(text)) for text in left]
    assert {one for one in NEEDS if any(re.search(one, text) for text in commands)} == set(NEEDS)
