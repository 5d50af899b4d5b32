"""Real trainings on the CPU with a planted leak, fat logits or a blow-up: named with their line."""

from __future__ import annotations

import subprocess
import textwrap

import pytest
from tests.support.guides import environment
from tests.support.warm_python import warm_python

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.rules.memory.dominating import find_one_tensor_dominates
from stepscope.advice.rules.memory.snapshots import find_memory_leak
from stepscope.analysis.memory.opening import open_memory
from stepscope.memory.questions.growth import growth

pytestmark = pytest.mark.slow

SCRIPT = textwrap.dedent(
    """
    import sys
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    torch.set_num_threads(1)
    kept = []


    class Model(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.first, self.last = nn.Linear(64, 128), nn.Linear(128, classes)

        def forward(self, x, is_wide):
            x = torch.relu(self.first(x))
            return self.last(widened(x) if is_wide else x)


    def widened(x):
        return torch.sin(x.unsqueeze(1).expand(-1, 300, -1) * 1.5).mean(1)


    def keep_outputs(out, loss):
        kept.append(out.detach().repeat(1, 500))


    def keep_closure(out, loss):
        big = torch.ones(64, 5000)
        kept.append(lambda: big.sum())


    def keep_graph(out, loss):
        kept.append(loss)


    PLANTS = {"list": keep_outputs, "closure": keep_closure, "graph": keep_graph}


    def main(plant):
        model = Model(20000 if plant == "logits" else 10)
        optimizer = torch.optim.Adam(model.parameters())

        def write(profiler):
            profiler.export_chrome_trace(f"{sys.argv[1]}/{plant}.pt.trace.json")

        planned = schedule(wait=1, warmup=1, active=6, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=planned, with_stack=True,
                     profile_memory=True, on_trace_ready=write) as profiler:
            for _ in range(8):
                rows = 512 if plant == "logits" else 64
                out = model(torch.randn(rows, 64), plant == "blowup")
                loss = nn.functional.cross_entropy(out, torch.zeros(rows, dtype=torch.long))
                optimizer.zero_grad()
                loss.backward(retain_graph=plant == "graph")
                optimizer.step()
                if plant in PLANTS:
                    PLANTS[plant](out, loss)
                profiler.step()
        kept.clear()


    for plant in sys.argv[2].split(","):
        main(plant)
    """
)
PLANTS = ("list", "closure", "graph", "logits", "blowup", "nothing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    script = folder / "plants.py"
    script.write_text(SCRIPT)
    subprocess.run(
        [warm_python(), script, folder, ",".join(PLANTS)],
        check=True,
        env=environment(),
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def views(folder):
    return {plant: open_memory(str(folder / f"{plant}.pt.trace.json")).view for plant in PLANTS}


@pytest.mark.parametrize(
    ("plant", "leak", "large"),
    [
        ("list", "keep_outputs", None),
        ("closure", "keep_closure", None),
        ("graph", "forward", None),
        ("logits", None, "forward"),
        ("blowup", None, "widened"),
        ("nothing", None, None),
    ],
)
def test_a_report_on_the_trace_alone_names_the_line(folder, plant, leak, large):
    found = {one.id: one for one in diagnose(folder / f"{plant}.pt.trace.json").findings}
    assert ("memory-leak" in found) == (leak is not None)
    assert ("one-tensor-dominates" in found) == (large is not None)
    if leak is not None:
        assert found["memory-leak"].title.endswith(line_of(leak))
    if large is not None:
        tensor = found["one-tensor-dominates"]
        assert tensor.title.endswith("of the most that the window held")
        assert line_of(large) in [one.value for one in tensor.evidence if one.label == "made at"]


def line_of(function):
    """The line that a trace knows a function by: that of its definition."""
    number = SCRIPT.splitlines().index(next(
        line for line in SCRIPT.splitlines() if line.strip().startswith(f"def {function}(")
    )) + 1  # fmt: skip
    return f"plants.py:{number} {function}"


@pytest.mark.parametrize(
    ("plant", "function", "size"),
    [("list", "keep_outputs", 64 * 5000 * 4), ("closure", "keep_closure", 64 * 5000 * 4)],
)
def test_a_leak_is_named_with_its_function_and_bytes(views, plant, function, size):
    (found,) = find_memory_leak(Subject(0, memory=views[plant]))
    told = {one.label: one.value for one in found.evidence}
    assert found.title.endswith(line_of(function))
    assert told["left behind by each step"] == pytest.approx(size, rel=0.02)


def test_a_graph_that_is_kept_is_named_with_what_its_forward_pass_made(views):
    grown = growth(views["graph"])
    leaks = grown.lines.filter("is_leak")
    assert line_of("forward") in leaks["line"].to_list()
    assert find_memory_leak(Subject(0, memory=views["graph"]))


@pytest.mark.parametrize("plant", ["logits", "blowup", "nothing"])
def test_where_nothing_leaks_nothing_is_said_to(views, plant):
    assert find_memory_leak(Subject(0, memory=views[plant])) == []


@pytest.mark.parametrize(("plant", "function"), [("logits", "forward"), ("blowup", "widened")])
def test_what_most_of_the_peak_is_is_named_with_its_function(views, plant, function):
    (found,) = find_one_tensor_dominates(Subject(0, memory=views[plant]))
    made_at = [one.value for one in found.evidence if one.label == "made at"]
    assert line_of(function) in made_at


PYTHON_LEAK = textwrap.dedent(
    """
    import sys
    import torch
    import stepscope

    kept = []


    def work():
        kept.append(bytearray(2_000_000))


    model = torch.nn.Linear(64, 64)
    options = {"wait": 1, "warmup": 1, "active": 6, "repeat": 1, "activities": "cpu"}
    with stepscope.Profiler(
        output_dir=sys.argv[1], window_recorder="tracemalloc", **options
    ) as profiler:
        for _ in range(10):
            model(torch.randn(32, 64)).sum().backward()
            work()
            profiler.step()
    """
)


def test_a_leak_that_tracemalloc_saw_reaches_the_report(tmp_path):
    script = tmp_path / "objects.py"
    script.write_text(PYTHON_LEAK)
    subprocess.run(
        [warm_python(), script, tmp_path / "out"],
        check=True,
        env=environment(),
        capture_output=True,
    )
    found = [one for one in diagnose(tmp_path / "out").findings if one.id == "python-memory-leak"]
    assert len(found) == 1
    assert "objects.py:10" in found[0].title
    assert found[0].evidence[0].value == pytest.approx(2_000_000, rel=0.05)
