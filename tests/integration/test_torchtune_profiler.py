"""torchtune's profiler section: its defaults, its files, and its own instantiation where it is."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path

import pytest
from tests.support.own_process import run_python
from tests.support.runs import steps_in_trace
from tests.support.training import SmallTraining, bare_losses, batches

from stepscope import open_run
from stepscope.adapters.torchtune import setup_torch_profiler, take_over

OURS = "stepscope.adapters.torchtune.setup_torch_profiler"
THEIRS = "torchtune.training.setup_torch_profiler"
THIRD_PARTY = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def train(profiler, steps):
    """A recipe's loop."""
    training = SmallTraining()
    profiler.start()
    for batch in batches(steps):
        training.step(batch)
        profiler.step()
    profiler.stop()
    return training.losses


def files_of(folder):
    return {path.name.split(".")[0]: path for path in folder.iterdir()}


def test_everything_that_a_section_can_ask_for(tmp_path):
    profiler, section = setup_torch_profiler(
        enabled=True,
        output_dir=str(tmp_path),
        profile_memory=True,
        with_flops=True,
        wait_steps=1,
        warmup_steps=1,
        active_steps=2,
        num_cycles=2,
    )
    assert train(profiler, 9) == bare_losses(9)
    assert section["with_stack"]
    assert section["record_shapes"]
    for step in (4, 8):
        files = files_of(tmp_path / f"iteration_{step}")
        assert set(files) == {
            "rank0",
            "rank0_key_averages",
            "rank0_stacks",
            "rank0_memory-timeline",
        }
        assert files["rank0"].name.endswith(".pt.trace.json.gz")
        assert steps_in_trace(files["rank0"]) == [step - 2, step - 1]
        assert "aten::mm" in files["rank0_key_averages"].read_text()
        assert "<svg" in files["rank0_memory-timeline"].read_text()
    (rank,) = open_run(tmp_path).ranks
    assert len(rank.steps) == 9


def test_what_a_section_leaves_out_is_torchtunes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    profiler, section = setup_torch_profiler(enabled=True)
    config = profiler.config
    assert (config.wait, config.warmup, config.active, config.repeat) == (5, 5, 2, 1)
    assert str(config.output_dir) == section["output_dir"] == "profiler_output"
    assert (config.record_shapes, config.with_stack, config.profile_memory) == (True, False, False)
    assert config.memory_timeline == "off"
    partly, _ = setup_torch_profiler(enabled=True, wait_steps=0, num_cycles=0)
    assert (partly.config.wait, partly.config.warmup, partly.config.repeat) == (0, 5, 0)


def test_devices_that_are_not_here_cost_no_warning(caplog):
    profiler, section = setup_torch_profiler(enabled=True, cpu=True, cuda=True)
    assert "cpu" in profiler.config.activities
    assert section["cuda"]
    assert setup_torch_profiler(enabled=True, cpu=False, cuda=False, xpu=False)[1]["cpu"]
    assert caplog.messages == []


def test_what_is_not_enabled_does_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    profiler, section = setup_torch_profiler()
    assert train(profiler, 3) == bare_losses(3)
    assert section["enabled"] is False
    assert list(tmp_path.iterdir()) == []


def test_a_variable_adds_what_the_section_has_no_word_for(monkeypatch):
    monkeypatch.setenv("STEPSCOPE_MEMORY_LOG", "true")
    assert setup_torch_profiler(enabled=True)[0].config.memory_log


# -- the real package -----------------------------------------------------------------------------


@pytest.fixture
def torchtune():
    package = pytest.importorskip(
        "torchtune", reason="torchtune is not installed", exc_type=ImportError
    )
    pytest.importorskip("torchtune.training", reason="torchtune is not whole", exc_type=ImportError)
    return package


@THIRD_PARTY
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchtunes_own_function_has_the_same_arguments_and_defaults(torchtune):
    from torchtune.training import setup_torch_profiler as theirs

    def arguments(function):
        found = inspect.signature(function).parameters.values()
        return {item.name: item.default for item in found}

    assert arguments(setup_torch_profiler) == arguments(theirs)


@THIRD_PARTY
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("component", [OURS, THEIRS])
def test_torchtunes_configuration_makes_ours(torchtune, tmp_path, component):
    from omegaconf import DictConfig
    from torchtune import config

    section = DictConfig(
        {
            "_component_": component,
            "enabled": True,
            "output_dir": str(tmp_path),
            "wait_steps": 1,
            "warmup_steps": 1,
            "active_steps": 1,
            "num_cycles": 1,
        }
    )
    undo = take_over() if component == THEIRS else None
    try:
        profiler, after = config.instantiate(section)
    finally:
        if undo is not None:
            undo()
    assert isinstance(after, DictConfig)
    # What recipes read of it.
    assert after.get("profile_memory", False) is False
    assert [after[name] for name in ("wait_steps", "warmup_steps", "active_steps")] == [1, 1, 1]
    assert train(profiler, 4) == bare_losses(4)
    assert steps_in_trace(files_of(tmp_path / "iteration_3")["rank0"]) == [2]
    if undo is not None:
        from torchtune import training

        assert training.setup_torch_profiler is not setup_torch_profiler


@THIRD_PARTY
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_same_files_for_the_same_steps_as_torchtunes_own(torchtune, tmp_path):
    from torchtune.training import setup_torch_profiler as theirs

    found = {}
    for name, make in (("theirs", theirs), ("ours", setup_torch_profiler)):
        folder = tmp_path / name
        profiler, _ = make(
            enabled=True,
            cpu=True,
            cuda=False,
            xpu=False,
            output_dir=str(folder),
            wait_steps=1,
            warmup_steps=1,
            active_steps=2,
            num_cycles=2,
        )
        train(profiler, 9)
        found[name] = {
            part.name: {
                # Its newer versions call the trace of every rank r0 and a time.
                "trace" if path.suffix == ".gz" else path.name: steps_in_trace(path)
                if path.suffix == ".gz"
                else []
                for path in part.iterdir()
            }
            for part in folder.glob("iteration_*")
        }
    assert found["ours"] == found["theirs"]
    assert set(found["ours"]) == {"iteration_4", "iteration_8"}


RECIPE = """
import sys

import torch
from shipped import recipe_main
from torchtune.models.llama3_2 import llama3_2

from stepscope.adapters.torchtune import take_over


class Data(torch.utils.data.Dataset):
    def __init__(self, tokenizer, packed):
        pass

    def __len__(self):
        return 24

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(1, 128, (20 + number % 8,), generator=generator).tolist()
        return {"tokens": tokens, "labels": tokens}


class Tokenizer:
    pad_id = 0


class Checkpointer:
    def __init__(self, should_load_recipe_state, model_type):
        pass

    def load_checkpoint(self):
        torch.manual_seed(0)
        return {"model": model().state_dict()}

    def save_checkpoint(self, state, epoch, intermediate_checkpoint):
        pass


def model():
    sizes = {"embed_dim": 64, "max_seq_len": 64, "intermediate_dim": 128}
    return llama3_2(vocab_size=128, num_layers=2, num_heads=4, num_kv_heads=2, **sizes)


if __name__ == "__main__":
    sys.modules["recipe"] = sys.modules["__main__"]
    if "--ours" in sys.argv:
        sys.argv.remove("--ours")
        take_over()
    sys.exit(recipe_main())
"""
SECTIONS = """
output_dir: out
model: {_component_: recipe.model}
tokenizer: {_component_: recipe.Tokenizer}
dataset: {_component_: recipe.Data, packed: False}
checkpointer: {_component_: recipe.Checkpointer, model_type: LLAMA3_2}
optimizer: {_component_: torch.optim.AdamW, lr: 1e-3}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
metric_logger: {_component_: torchtune.training.metric_logging.DiskLogger, log_dir: logs}
profiler:
  _component_: torchtune.training.setup_torch_profiler
  enabled: True
  output_dir: ${output_dir}/profiling_outputs
  cpu: True
  cuda: True
  profile_memory: False
  with_stack: False
  record_shapes: True
  with_flops: False
  wait_steps: 2
  warmup_steps: 1
  active_steps: 2
  num_cycles: 1
seed: 1
shuffle: True
resume_from_checkpoint: False
batch_size: 4
epochs: 1
max_steps_per_epoch: null
gradient_accumulation_steps: 1
optimizer_in_bwd: False
compile: False
device: cpu
dtype: fp32
"""


@pytest.mark.slow
def test_a_recipe_of_torchtune_trains_the_same_and_leaves_its_files(torchtune, tmp_path):
    recipes = Path(torchtune.__file__).parents[1] / "recipes"  # files to copy, no package
    losses = {}
    for name, flags in (("theirs", []), ("ours", ["--ours"])):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(recipes / "full_finetune_single_device.py", folder / "shipped.py")
        (folder / "recipe.py").write_text(RECIPE)
        (folder / "recipe.yaml").write_text(SECTIONS)
        run_python(["recipe.py", "--config", "recipe.yaml", *flags], folder)
        (log,) = (folder / "logs").iterdir()
        losses[name] = re.findall(r"loss:(\S+)", log.read_text())
    assert losses["ours"] == losses["theirs"]
    assert len(losses["ours"]) == 6
    outputs = tmp_path / "ours" / "out" / "profiling_outputs"
    names = {path.name for path in (outputs / "iteration_5").iterdir()}
    (trace,) = (outputs / "iteration_5").glob("rank0.*.pt.trace.json.gz")
    assert names == {trace.name, "rank0_key_averages.txt"}
    (theirs,) = (tmp_path / "theirs").rglob("*.pt.trace.json.gz")
    assert steps_in_trace(trace) == steps_in_trace(theirs) == [3, 4]
    assert len(open_run(outputs).ranks[0].steps) == 6
