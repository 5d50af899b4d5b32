"""`stepscope run` on scripts that know nothing of it: steps, results, endings, ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.guides import environment
from tests.support.launching import HEAD, QUICK, TORCHRUN, WITHOUT_COMPILER, plainly, recorded
from tests.support.runs import steps_in_trace
from tests.support.warm_python import warm_python

from stepscope import open_run
from stepscope.run.step_record import END_OF_EPOCH

PLAIN = (
    HEAD
    + """
def main(workers, accumulate, code):
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 4))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    other = DataLoader(TensorDataset(torch.randn(8, 16)), batch_size=2)
    steps = 0
    middles = []
    for epoch in range(4):
        begun = time.time_ns()
        with torch.no_grad():
            for (x,) in other:
                model(x)
                time.sleep(0.05)
        middles.append((begun + time.time_ns()) // 2)
        for number, (x, y) in enumerate(loader, 1):
            loss = (model(x) - y).square().mean()
            loss.backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    with open("evaluations", "w") as file:
        print(*middles, file=file)
    print(steps, loss.item(), digest(model), torch.rand(1).item(), sys.path)
    sys.exit(code)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
"""
)
RANKS = (
    HEAD
    + """
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 16), torch.randn(64, 4))
sampler = torch.utils.data.DistributedSampler(data)
for x, y in DataLoader(data, batch_size=4, sampler=sampler):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
with open(f"result{rank}", "w") as file:
    file.write(digest(model))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
)


@pytest.mark.parametrize(
    ("workers", "accumulate", "options"),
    [
        pytest.param(0, 1, [], id="plain, with the report", marks=pytest.mark.slow),
        pytest.param(2, 2, ["--no-report"], id="workers and accumulation"),
    ],
)
def test_a_plain_loop_is_counted_right_and_gives_the_same(tmp_path, workers, accumulate, options):
    bare = plainly(tmp_path, PLAIN, [workers, accumulate, 7])
    ours = recorded(tmp_path, PLAIN, [workers, accumulate, 7], options=options)
    assert bare.returncode == ours.returncode == 7, ours.stderr
    assert ours.stdout == bare.stdout
    run = open_run(tmp_path / "profiles")
    (rank,) = run.ranks
    steps = 64 // accumulate
    training = [step for step in rank.steps if step.is_whole_step]
    assert rank.manifest.steps == len(training) == steps
    assert rank.manifest.step_unit == "optimizer step"
    assert steps_in_trace(rank.windows[0].trace_path) == [4, 5]
    for step in training:
        assert set(step.phases) == {"forward", "backward", "optimizer"}
        assert step.data_wait_ns > 0
        assert step.data_wait_ns + sum(step.phases.values()) <= step.dur_ns
    # The evaluations are no part of any step, and have lines of their own.
    outside = [step.kind for step in rank.steps if not step.is_whole_step]
    assert [kind for kind in outside if kind != END_OF_EPOCH] == ["evaluation"] * 4
    assert outside.count(END_OF_EPOCH) == (3 if workers else 0)  # of all but the first
    # When that one came, nobody knew that an evaluation would follow: its line has it as a part.
    evaluations = [step for step in rank.steps if step.kind == "evaluation"]
    has_end = [END_OF_EPOCH in step.phases for step in evaluations]
    assert has_end == [False, bool(workers), False, False]
    for moment in map(int, (tmp_path / "evaluations").read_text().split()):
        at = [step for step in rank.steps if 0 <= moment - step.start_ns < step.dur_ns]
        assert [step.kind for step in at] == ["evaluation"]
        assert at[0].dur_ns >= 4 * 50_000_000
    assert len(list((tmp_path / "profiles").iterdir())) == 1
    assert ("Verdict" in ours.stderr) == (not options)
    assert ("gradients are accumulated: 2 batches" in ours.stderr) == (accumulate == 2)


@pytest.mark.slow
def test_iterations_are_counted_if_asked_for(tmp_path):
    ours = recorded(tmp_path, PLAIN, [0, 2, 0], options=["--no-report", "--step-on", "iteration"])
    assert ours.returncode == 0, ours.stderr
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert rank.manifest.steps == 64
    assert rank.manifest.step_unit == "iteration"


def test_torchrun_with_two_ranks(tmp_path):
    bare = plainly(tmp_path, RANKS, before=TORCHRUN)
    assert bare.returncode == 0, bare.stderr
    results = [(tmp_path / f"result{rank}").read_text() for rank in (0, 1)]
    ours = recorded(tmp_path, RANKS, before=TORCHRUN)
    assert ours.returncode == 0, ours.stderr
    assert [(tmp_path / f"result{rank}").read_text() for rank in (0, 1)] == results
    run = open_run(tmp_path / "profiles")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.job.world_size == 2
    for rank in run.ranks:
        assert rank.manifest.steps == 8
        assert steps_in_trace(rank.windows[0].trace_path) == [4, 5]


NEVER = {
    "no torch": ("print('done')", "no process imported torch"),
    "torch": ("import torch; print('done')", "nothing was trained: torch was imported"),
    "inference": (
        HEAD + "for x in DataLoader(torch.ones(8, 2)):\n    x.add(1)\nprint('done')",
        "nothing was trained: torch was imported",
    ),
    "ray": (
        "import sys\nsys.modules['ray'] = sys\nimport torch\nprint('done')",
        "wrap the training function with stepscope.adapters.ray.profiled_worker",
    ),
}
COLD = ("no torch", "ray")
"""What must run before torch is imported."""


@pytest.mark.parametrize("kind", NEVER)
def test_a_script_that_never_trains_leaves_a_line_and_no_run(tmp_path, kind):
    text, line = NEVER[kind]
    ours = recorded(tmp_path, text, options=[], python=sys.executable if kind in COLD else None)
    assert (ours.returncode, ours.stdout) == (0, "done\n"), ours.stderr
    assert line in ours.stderr
    assert not (tmp_path / "profiles").exists()


def test_a_script_that_fails_before_it_imports_torch_is_not_told_of_options(tmp_path):
    ours = recorded(tmp_path, "raise SystemExit(3)", options=[], python=sys.executable)
    assert ours.returncode == 3
    assert "ended with exit code 3, and no process was seen to import torch" in ours.stderr
    assert "-I, -E" not in ours.stderr


def test_an_uncaught_error_is_told_and_its_code_passed_on(tmp_path):
    text = PLAIN.replace("optimizer.step()", "optimizer.step(); 1 / (5 - steps)")
    ours = recorded(tmp_path, text, [0, 1, 0])
    assert ours.returncode == 1
    assert "ZeroDivisionError" in ours.stderr
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert rank.manifest.state == "failed"
    assert "ZeroDivisionError" in rank.manifest.ended


ENDS = {
    "sys.exit": ("sys.exit(3)", 3, "SystemExit (exit code 3) in step 9"),
    "raised": ("raise SystemExit(3)", 3, "; then the process ended with exit code 3"),
    "caught": (
        "try: sys.exit(3)\n    except SystemExit: pass",
        7,
        "SystemExit (exit code 7) in step 64",
    ),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        137,
        "was killed by SIGKILL after 9 steps, before it could close the recording",
    ),
}


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    "end",
    [
        "killed",
        pytest.param("sys.exit", marks=pytest.mark.slow),
        pytest.param("raised", marks=pytest.mark.slow),
        pytest.param("caught", marks=pytest.mark.slow),
    ],
)
def test_how_a_script_ended_is_told_and_its_window_kept(tmp_path, end):
    what, code, words = ENDS[end]
    ending = f"import signal\n\ndef end(steps):\n    {what}\n\n"
    text = PLAIN.replace("steps += 1", "steps += 1; steps == 9 and end(steps)")
    text = WITHOUT_COMPILER + ending + text
    ours = recorded(tmp_path, text, [0, 1, 7], options=[], python=sys.executable)
    assert ours.returncode == code, ours.stderr
    assert "Verdict" in ours.stderr
    run = open_run(tmp_path / "profiles")
    (rank,) = run.ranks
    assert rank.manifest.state == "stopped"
    assert words in rank.manifest.ended
    # The report was printed after the window's files were made, also where nobody was left to see.
    assert rank.manifest.windows[0].state == "complete"
    assert "window 0 is saving" not in ours.stderr
    assert steps_in_trace(run.windows[0].trace_path) == [4, 5]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_signals_reach_the_script_and_its_end_is_ours(tmp_path):
    text = PLAIN.replace("steps += 1", "steps += 1; print(steps, flush=True); time.sleep(0.1)")
    (tmp_path / "train.py").write_text(WITHOUT_COMPILER + text)
    command = [sys.executable, "-m", "stepscope", "run", *QUICK, "--no-report", "--"]
    command += [sys.executable, "train.py", "0", "1", "0"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout:
                if int(line) == 8:
                    break
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=250)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert rank.manifest.state == "stopped"
    assert 8 <= rank.manifest.steps < 32
    assert time.time_ns() > rank.steps[-1].start_ns


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_costs_the_recording_and_nothing_else(tmp_path):
    (tmp_path / "profiles").write_text("a file")
    ours = recorded(tmp_path, PLAIN, [0, 1, 0])
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == plainly(tmp_path, PLAIN, [0, 1, 0]).stdout
    assert f"stepscope: no run could be created in {tmp_path / 'profiles'}" in ours.stderr
    assert "nothing was trained" not in ours.stderr


OWN = (
    HEAD
    + """
import stepscope

data = DataLoader(TensorDataset(torch.randn(48, 16)), batch_size=4)
BEFORE
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with stepscope.Profiler(output_dir="own", wait=1, warmup=1, active=1) as profiler:
    for (x,) in profiler.watch(data):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
)


IN_A_THREAD = f"""
import threading

def train():
    exec({OWN.replace("BEFORE", "")!r}, {{}})

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(OWN.replace("BEFORE", ""), id="from its start"),
        pytest.param(OWN.replace("BEFORE", "next(iter(data))"), id="later", marks=pytest.mark.slow),
        pytest.param(IN_A_THREAD, id="in a thread, as in Ray's workers"),
    ],
)
def test_a_script_that_records_itself_is_left_to_it(tmp_path, script):
    ours = recorded(tmp_path, script)
    assert ours.returncode == 0, ours.stderr
    run = open_run(tmp_path / "own")
    assert run.ranks[0].manifest.steps == 12
    assert "the script records itself: the run is its own" in ours.stderr
    assert f"stepscope report {run.path}" in ours.stderr
    assert "nothing was trained" not in ours.stderr
    profiles = tmp_path / "profiles"
    assert not profiles.exists() or list(profiles.iterdir()) == []


@pytest.mark.slow
def test_the_sitecustomize_that_would_have_run_still_runs(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.was_customised = True")
    text = "import sys, torch; print(sys.was_customised, 'bootstrap' in str(sys.path))"
    paths = f"{environment()['PYTHONPATH']}:{tmp_path}/site"
    ours = recorded(tmp_path, text, python=sys.executable, PYTHONPATH=paths)
    assert ours.stdout == "True False\n", ours.stderr


@pytest.mark.slow
def test_a_script_without_a_python_before_it(tmp_path):
    (tmp_path / "train.py").write_text(PLAIN)
    command = [sys.executable, "-m", "stepscope", "run", *QUICK, "--no-report"]
    ended = subprocess.run(
        [*command, "train.py", "0", "1", "3"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert rank.manifest.steps == 64
    assert ended.stderr.count("next: stepscope report") == 1


def test_a_command_that_does_not_exist(tmp_path):
    command = [sys.executable, "-m", "stepscope", "run", "--", "no-such-program"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 2
    assert "no-such-program" in ended.stderr


# -- inference, and processes that the script spawns ----------------------------------------------

INFERENCE = """
import torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
for batch in DataLoader(torch.randn(60, 8), batch_size=5):
    with torch.no_grad():
        model(batch)
        model(batch * 2)
"""
SPAWNED = """
import os, sys
import torch
import torch.multiprocessing as mp


def work(rank, world, folder):
    if sys.argv[1] == "group":
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
        )
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(11):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    if sys.argv[1] == "group":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2, os.getcwd()), nprocs=2)
"""


IN_BACKWARD = """
import sys
import torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(0)


class Deeper(torch.autograd.Function):
    # A backward pass in another, so deep that autograd takes a thread of its own, as for a GPU.
    @staticmethod
    def forward(context, value, depth):
        context.save_for_backward(value)
        context.depth = depth
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        (value,) = context.saved_tensors
        with torch.enable_grad():
            inner = value.detach().requires_grad_()
            inner_loss = (deepest if context.depth == 1 else deeper)(inner, context.depth - 1)
        inner_loss.backward()
        return gradient, None


def deeper(value, depth):
    return Deeper.apply(value, depth).sum()


def deepest(value, _):
    return model(batch).square().mean() + value.sum() * 0


layers = [layer for _ in range(30) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers)
optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}


def learn(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for one in optimizers:
    one.register_post_accumulate_grad_hook(learn)
for batch in DataLoader(torch.randn(60, 8), batch_size=5):
    depth = int(sys.argv[1])
    start = torch.ones(1, requires_grad=True)
    (deeper if depth else deepest)(start, depth).backward()
"""


def run_ours(folder, text, *words, options=()):
    (folder / "script.py").write_text(text)
    ours = [sys.executable, "-m", "stepscope", "run", "--no-report", *options, "--"]
    done = subprocess.run(
        [*ours, warm_python(), "script.py", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("step_on", "steps"), [pytest.param("batch", 12, marks=pytest.mark.slow), ("forward", 24)]
)
def test_an_inference_loop_is_recorded(tmp_path, step_on, steps):
    said = run_ours(tmp_path, INFERENCE, options=["--step-on", step_on])
    assert f"recorded the times of {steps} steps and 1 window: steps 7 to 9\n" in said
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert len(rank.steps) == steps
    assert steps_in_trace(rank.windows[0].trace_path) == [7, 8, 9]
    late = [one for one in rank.steps if one.step >= 2]
    assert all(0 < one.phases.get("forward", 0) <= one.dur_ns for one in late)


def test_an_inference_loop_says_how_it_would_be_recorded(tmp_path):
    said = run_ours(tmp_path, INFERENCE)
    assert "(for inference, use --step-on batch or forward)" in said
    assert not list(tmp_path.glob("profiles/*"))


@pytest.mark.parametrize("depth", [0, 70], ids=["this thread", "another thread"])
def test_optimizers_that_step_within_the_backward_pass(tmp_path, depth):
    said = run_ours(tmp_path, IN_BACKWARD, str(depth))
    assert "recorded the times of 12 steps and 1 window: steps 7 to 9\n" in said
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert [step.step for step in rank.steps] == list(range(12))
    assert all("backward" in step.phases for step in rank.steps)
    assert steps_in_trace(rank.windows[0].trace_path) == [7, 8, 9]


def test_spawned_ranks_are_one_run_that_names_them(tmp_path):
    said = run_ours(tmp_path, SPAWNED, "group")
    run = open_run(tmp_path / "profiles")
    assert [len(rank.steps) for rank in run.ranks] == [11, 11]
    assert f"stepscope: one run of 2 processes, ranks 0, 1: {run.path}\n" in said


@pytest.mark.slow
def test_spawned_trainings_without_a_group_are_all_named(tmp_path):
    said = run_ours(tmp_path, SPAWNED, "alone")
    runs = list((tmp_path / "profiles").iterdir())
    assert len(runs) == 2
    assert "2 trainings without a common process group: each has its own run" in said
    assert all(f"next: stepscope report {run}\n" in said for run in runs)


def test_a_run_too_short_for_a_window_says_so(tmp_path):
    said = run_ours(tmp_path, SPAWNED, "group", options=["--wait", "20"])
    assert "and the first window would be steps 22 to 24: train 25 steps or more" in said
    assert ", or set --wait 6\n" in said


EPOCHS = (
    HEAD
    + """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.zeros(8)


def main(is_left):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=2, num_workers=2)
    for epoch in range(4):
        for number, x in enumerate(loader, 1):
            model(x).sum().backward()
            optimizer.step()
            if is_left and number == 5:
                break


if __name__ == "__main__":
    main("left" in sys.argv)
"""
)


@pytest.mark.parametrize(("way", "steps"), [("ended", 6), ("left", 5)])
def test_workers_that_start_in_each_epoch_are_part_of_the_input(tmp_path, way, steps):
    """Whether the data ends, or the loop is left and the iterator dropped."""
    run_ours(tmp_path, EPOCHS, way)
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert [step.step for step in rank.steps] == list(range(4 * steps))
    first = [step for step in rank.steps if step.loader_workers_ns]
    assert [step.step for step in first] == [steps, 2 * steps, 3 * steps]
    shares = []
    for step in first:
        assert step.loader_workers_ns <= step.data_wait_ns
        other_ns = step.dur_ns - step.data_wait_ns - sum(step.phases.values())
        assert other_ns >= 0
        shares.append(other_ns / step.loader_workers_ns)
    # Each would be above 1 if starting them were no input; a busy machine lengthens single ones.
    assert min(shares) < 1
    loader = rank.manifest.loader
    assert (loader.workers, loader.is_persistent, loader.starts) == (2, False, 4)


ACCUMULATED = (
    HEAD
    + """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(44, 8), batch_size=2)
for epoch in range(3):
    for number, x in enumerate(loader, 1):
        model(x).sum().backward()
        skips = int(sys.argv[1]) == 1 and number % 7 < 2
        if number % int(sys.argv[1]) == 0 and not skips:
            optimizer.step()
            optimizer.zero_grad()
"""
)


@pytest.mark.parametrize(
    ("accumulate", "said_to_be"),
    [("4", "gradients are accumulated: 4 batches per step\n"), ("1", None)],
    ids=["the rest of an epoch", "steps that are skipped"],
)
def test_the_usual_number_of_accumulated_batches_is_told(tmp_path, accumulate, said_to_be):
    """22 batches: 2 are left for the first step of the next epoch; without accumulation, some
    steps are skipped, as gradient scaling does."""
    said = run_ours(tmp_path, ACCUMULATED, accumulate)
    if said_to_be is None:
        assert "accumulated" not in said
    else:
        assert said_to_be in said


BY_HAND = (
    HEAD
    + """
model = nn.Linear(8, 1)
for x in DataLoader(torch.randn(24, 8), batch_size=2):
    model(x).sum().backward()
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
"""
)


def test_a_training_without_an_optimizer_is_told_which_option_counts_its_steps(tmp_path):
    said = run_ours(tmp_path, BY_HAND)
    assert "nothing was trained" not in said
    assert "use --step-on iteration: a step then ends where the next batch is asked" in said
    assert not list(tmp_path.glob("profiles/*"))
    said = run_ours(tmp_path, BY_HAND, options=["--step-on", "iteration"])
    assert "recorded the times of 12 steps" in said


COMPILED = (
    HEAD
    + """
import torch._dynamo.utils

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="eager")
def train_step(x):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for x in DataLoader(torch.randn(24, 8), batch_size=2):
    train_step(x)
breaks = torch._dynamo.utils.counters["graph_break"]
print(sum(breaks.values()), file=open("breaks", "w"))
"""
)


@pytest.mark.slow
def test_a_step_compiled_as_a_whole_has_no_more_warnings_and_breaks(tmp_path):
    (tmp_path / "bare").mkdir()
    bare = plainly(tmp_path / "bare", COMPILED, [])
    said = run_ours(tmp_path, COMPILED, options=["--wait", "100"])
    assert "recorded the times of 12 steps" in said
    own = [line for line in said.splitlines() if not line.startswith("stepscope: ")]
    assert len(own) <= len(bare.stderr.splitlines())
    breaks = [(folder / "breaks").read_text() for folder in (tmp_path / "bare", tmp_path)]
    assert breaks[0] == breaks[1]


BACKWARD_ALONE = (
    HEAD
    + """
weight = torch.ones(8, 1, requires_grad=True)
for x in DataLoader(torch.randn(24, 8), batch_size=2):
    x.matmul(weight).sum().backward()
print("torch._dynamo" in sys.modules, file=open("loaded", "w"))
"""
)


@pytest.mark.slow
def test_the_compiler_is_not_loaded_for_a_backward_pass(tmp_path):
    options = ["--no-report", "--step-on", "iteration", "--wait", "100"]
    done = recorded(tmp_path, BACKWARD_ALONE, options=options, python=sys.executable)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "loaded").read_text() == "False\n"
