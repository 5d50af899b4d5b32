"""Forward passes are found in loops of every kind: by the modules that the loop calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as modules
from torch.utils.data import DataLoader

import stepscope
from stepscope import open_run
from stepscope.run.step_record import StepRecord

_STEPS = 6
_NAP_S = 0.02
_NAP_NS = 20_000_000


class Net(torch.nn.Module):
    """Each forward pass takes `_NAP_S` and little more."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(_NAP_S)
        return self.layers(values)  # type: ignore[no-any-return]


def plain(model: Any) -> torch.Tensor:
    time.sleep(_NAP_S)  # no part of the forward pass: the batch is made
    return model(torch.ones(2, 4)).sum()  # type: ignore[no-any-return]


def slow_loss(model: Any) -> torch.Tensor:
    loss = model(torch.ones(2, 4)).sum()
    time.sleep(2 * _NAP_S)
    return loss  # type: ignore[no-any-return]


def chained(model: Any) -> torch.Tensor:
    hidden = model(torch.ones(2, 4))
    time.sleep(_NAP_S)  # what is done with it is differentiated, too
    return model(hidden + 1).sum()  # type: ignore[no-any-return]


def rollout(model: Any) -> torch.Tensor:
    total = torch.zeros(())
    for _ in range(3):
        total = total + model(torch.ones(2, 4)).sum()
        time.sleep(2 * _NAP_S)  # the environment's step
    return total + model(torch.ones(2, 4)).sum()


def without_gradients(model: Any) -> torch.Tensor:
    with torch.no_grad():
        wanted = model(torch.ones(2, 4))
    time.sleep(2 * _NAP_S)
    return (model(torch.ones(2, 4)) - wanted).sum()  # type: ignore[no-any-return]


def part(model: Any) -> torch.Tensor:
    """Calls a part of what holds the model only, as a LightningModule does."""
    return model.net(torch.ones(2, 4)).sum()  # type: ignore[no-any-return]


def recorded(folder: Path, loss_of: Callable[[Any], torch.Tensor], model: Any) -> list[StepRecord]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.Profiler(
        output_dir=folder, window_recorder="none", auto_phases=True, monitor=False, announce=False
    ) as profiler:
        for _ in range(_STEPS):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    (rank,) = open_run(folder).ranks
    return list(rank.steps)


@pytest.mark.parametrize(
    ("loss_of", "naps"),
    [(plain, 1), (slow_loss, 3), (chained, 3), (rollout, 4), (without_gradients, 2), (part, 1)],
)
def test_forward_is_the_calls_of_modules_and_the_loss(
    tmp_path: Path, loss_of: Callable[[Any], torch.Tensor], naps: int
) -> None:
    model: Any = Net()
    if loss_of is part:
        holder: Any = torch.nn.Module()
        holder.net, model = model, holder
    records = recorded(tmp_path, loss_of, model)
    for record in records[2:]:  # the first backward passes reveal what to look at
        assert set(record.phases) == {"forward", "backward", "optimizer"}
    shortest_ns = min(record.phases["forward"] for record in records[2:])
    assert naps * _NAP_NS <= shortest_ns < (naps + 1) * _NAP_NS


def test_batches_fetched_ahead_of_their_forward_passes(tmp_path: Path) -> None:
    def batches() -> Iterator[list[torch.Tensor]]:
        while True:
            yield list(DataLoader(torch.ones(3, 4), batch_size=1))

    source = batches()

    def loss_of(model: Any) -> torch.Tensor:
        first, *others = next(source)
        for batch in others:
            model(batch).sum().backward()
        return model(first).sum()  # type: ignore[no-any-return]

    for record in recorded(tmp_path, loss_of, Net())[2:]:
        assert record.phases["forward"] >= 3 * _NAP_NS


def test_classes_and_modules_are_torchs_own_afterwards(tmp_path: Path) -> None:
    recorded(tmp_path, plain, Net())
    assert "__call__" not in vars(Net)
    assert "__call__" not in vars(torch.nn.Linear)
    assert not modules._has_any_global_hook()


def test_calls_within_other_calls_are_left_alone(tmp_path: Path) -> None:
    seen = []

    def loss_of(model: Any) -> torch.Tensor:
        seen.append(("__call__" in vars(Net), "__call__" in vars(torch.nn.Linear)))
        return plain(model)

    recorded(tmp_path, loss_of, Net())
    assert seen[0] == (False, False)
    assert seen[-1][0]


def test_a_model_is_found_that_a_wrapper_compiles(tmp_path: Path) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(4, 1), backend=backend, fullgraph=True)
    records = recorded(tmp_path, plain, model)
    assert len(graphs) == 1
    assert all(set(record.phases) >= {"forward"} for record in records[2:])


class Doubled(torch.nn.Linear):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values) * 2


@pytest.mark.parametrize("is_overridden", [False, True])
def test_a_function_compiled_after_its_model_was_found_is_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_overridden: bool
) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    if is_overridden:

        def call_of_its_own(self: Doubled, *given: Any) -> Any:
            return torch.nn.Linear.__call__(self, *given)

        monkeypatch.setattr(Doubled, "__call__", call_of_its_own)
    torch._dynamo.reset()
    model = Doubled(4, 1)
    compiled = torch.compile(lambda values: model(values).sum(), backend=backend, fullgraph=True)
    steps = iter(range(_STEPS))

    def loss_of(_: Any) -> torch.Tensor:
        if next(steps) < 3:
            return model(torch.ones(2, 4)).sum()
        assert vars(Doubled)["__call__"].__module__.startswith("torch.nn") or is_overridden
        return compiled(torch.ones(2, 4))  # type: ignore[no-any-return]

    recorded(tmp_path, loss_of, model)
    assert len(graphs) == 1
    assert ("__call__" in vars(Doubled)) is is_overridden
