"""torchtune's profiler section: its defaults, its files, and its own instantiation where it is."""

from __future__ import annotations

import inspect

import pytest
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
