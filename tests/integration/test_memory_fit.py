"""The peak at a size that was not run, predicted from runs at others, against the truth."""

from __future__ import annotations

import json
import subprocess
import textwrap

import pytest
from click.testing import CliRunner
from tests.support.guides import environment
from tests.support.warm_python import warm_python

from stepscope.analysis.memory.opening import open_memory
from stepscope.commands import memory
from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.fit import will_it_fit

pytestmark = pytest.mark.slow

SIZES = (4, 6, 8)
TARGET = 16
MODELS = ("perceptron", "transformer", "convolutions", "language", "pairs", "sequences")
TIMES = {"sequences": 10}
"""By what the sizes of some models are larger."""

SCRIPT = textwrap.dedent(
    """
    import sys
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    torch.set_num_threads(1)


    def perceptron():
        layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
        return torch.nn.Sequential(*layers, torch.nn.LayerNorm(64)), lambda n: torch.randn(n, 64)


    def transformer():
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        return torch.nn.TransformerEncoder(layer, 2), lambda n: torch.randn(n, 24, 32)


    def convolutions():
        layers = [
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 16, 3), torch.nn.AdaptiveAvgPool2d(2),
        ]
        return torch.nn.Sequential(*layers), lambda n: torch.randn(n, 3, 20, 20)


    class Language(torch.nn.Module):
        # With a mask that does not grow, and weights that are cast anew in every step.

        def __init__(self, width=64, words=1000):
            super().__init__()
            self.embedding = torch.nn.Embedding(words, width)
            self.attention = torch.nn.Linear(width, 3 * width)
            self.head = torch.nn.Linear(width, words)

        def forward(self, words):
            length = words.shape[1]
            mask = torch.ones(length, length).tril().bool()
            with torch.autocast("cpu", torch.bfloat16):
                query, key, value = (
                    part.unflatten(-1, (4, -1)).transpose(1, 2)
                    for part in self.attention(self.embedding(words)).chunk(3, -1)
                )
                scores = (query @ key.transpose(-1, -2)).masked_fill(~mask, -1e9).softmax(-1)
                return self.head((scores @ value).transpose(1, 2).flatten(2)).float()


    def language():
        return Language(), lambda n: torch.randint(0, 1000, (n, 96))


    class Pairs(torch.nn.Module):
        # Distances of each of the batch to each, of several at once.

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(40, 30)

        def forward(self, x):
            made = self.embed(x)
            return (made[:, None] - made[None]).square().sum(-1) + made @ made.t()


    def pairs():
        return Pairs(), lambda n: torch.randn(n, 40)


    def sequences():
        # The size is the length: scores of attention grow with its square.
        return Language(), lambda n: torch.randint(0, 1000, (3, n))


    for name in sys.argv[2].split(","):
        for size in map(int, sys.argv[3].split(",")):
            size *= 10 if name == "sequences" else 1
            model, make = globals()[name]()
            optimizer = torch.optim.Adam(model.parameters())

            def write(profiler):
                profiler.export_chrome_trace(f"{sys.argv[1]}/{name}-{size}.pt.trace.json")

            with profile(
                activities=[ProfilerActivity.CPU],
                profile_memory=True, with_stack=True, record_shapes=True,
                schedule=schedule(wait=0, warmup=1, active=2, repeat=1), on_trace_ready=write,
            ) as profiler:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(make(size)).square().mean().backward()
                    optimizer.step()
                    profiler.step()
    """
)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    sizes = ",".join(map(str, (*SIZES, TARGET)))
    subprocess.run(
        [warm_python(), str(script), str(folder), ",".join(MODELS), sizes],
        env=environment(), capture_output=True, timeout=500, check=True,
    )  # fmt: skip
    return folder


def view(traces, name, size):
    return open_memory(str(traces / f"{name}-{size * TIMES.get(name, 1)}.pt.trace.json")).view


def run(traces, name, size):
    return Run(size * TIMES.get(name, 1), view(traces, name, size))


def target(name):
    return TARGET * TIMES.get(name, 1)


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_larger_batch_is_predicted(traces, name, capsys):
    runs = [run(traces, name, size) for size in SIZES]
    found = will_it_fit(runs, [target(name)])
    truth = int(view(traces, name, TARGET).curve(-1)["requested_bytes"].to_numpy().max())
    row = found.targets.filter(~found.targets["is_observed"]).row(0, named=True)
    error = row["peak_requested_bytes"] / truth - 1
    with capsys.disabled():
        told = found.error_share
        print(f"\n{name}: predicted {row['peak_requested_bytes']:,}, is {truth:,} ({error:+.2%}; "
              f"told {told:.2%}; matched {found.matched_share:.1%})")  # fmt: skip
    assert abs(error) < 0.05
    assert found.error_share is not None
    assert found.error_share < 0.05
    assert row["peak_reserved_bytes"] >= row["peak_allocated_bytes"] >= row["peak_requested_bytes"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_one_run_does_by_the_shapes_that_it_recorded(traces, name, size, capsys):
    """Also where the batch is a multiple of heads, widths and lengths."""
    found = will_it_fit([run(traces, name, size)], [target(name)])
    truth = int(view(traces, name, TARGET).curve(-1)["requested_bytes"].to_numpy().max())
    row = found.targets.row(-1, named=True)
    error = row["peak_requested_bytes"] / truth - 1
    with capsys.disabled():
        least, most = row["at_least_bytes"], row["at_most_bytes"]
        print(f"\n{name} from size {size}: predicted {least:,} to {most:,}, is {truth:,} ({error:+.2%})")  # fmt: skip # noqa: E501
    assert row["at_least_bytes"] <= truth <= row["at_most_bytes"]
    assert abs(error) < 0.02
    assert found.covered_share > 0.95
    assert "shapes" in found.notes[-1]


def test_two_runs_do_for_what_grows_in_proportion(traces):
    runs = [Run(size, view(traces, "perceptron", size)) for size in SIZES[:2]]
    found = will_it_fit(runs, [TARGET])
    truth = int(view(traces, "perceptron", TARGET).curve(-1)["requested_bytes"].to_numpy().max())
    assert found.targets["peak_requested_bytes"][-1] == pytest.approx(truth, rel=0.05)
    assert found.error_share is None
    assert any("the error is not known" in note for note in found.notes)


def test_the_verb_says_what_fits(traces):
    def path(size):
        return str(traces / f"transformer-{size}.pt.trace.json")

    words = [path(4), "fit", "--size", "4", "--also", f"{path(8)}=8", "--target", "16",
             "--capacity", "64MiB", "--format", "json"]  # fmt: skip
    document = json.loads(CliRunner().invoke(memory.command, words).stdout)
    assert document["sizes"] == [4.0, 8.0]
    largest = document["largest_size"]
    assert largest > 16
    assert document["targets"][-1]["fits"] is True
    words[words.index("16")] = str(largest)
    again = json.loads(CliRunner().invoke(memory.command, words).stdout)
    assert again["targets"][-1]["fits"] is True
    words[words.index(str(largest))] = str(largest + 1)
    once_more = json.loads(CliRunner().invoke(memory.command, words).stdout)
    assert once_more["targets"][-1]["fits"] is not True
