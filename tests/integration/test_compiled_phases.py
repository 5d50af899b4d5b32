"""A loop's own phases, marks and counts inside a function that torch.compile compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope import Profiler

torch = pytest.importorskip("torch")


class _Backend:
    """Runs the graphs that it is given as they are, and counts them and their runs."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*inputs: Any) -> Any:
            self.runs += 1
            return graph.forward(*inputs)

        return run


@pytest.mark.parametrize("auto_phases", [False, True])
def test_phases_marks_and_counts_break_no_graph(tmp_path: Path, auto_phases: bool) -> None:
    torch._dynamo.reset()
    backend = _Backend()
    with Profiler(
        output_dir=tmp_path,
        window_recorder="none",
        announce=False,
        monitor=False,
        auto_phases=auto_phases,
    ) as profiler:

        @profiler.phase("activation")
        def activation(values: Any) -> Any:
            return torch.relu(values)

        class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(8, 4)

            @profiler.phase("whole")
            def forward(self, values: Any) -> Any:
                profiler.mark("evaluation")
                profiler.count(tokens=4, samples=2)
                with profiler.phase("layer"):
                    values = self.layer(values)
                return activation(values)

        compiled = torch.compile(Net(), backend=backend, fullgraph=True)
        for _ in range(4):
            compiled(torch.randn(2, 8)).sum().backward()
            profiler.step()
    assert (backend.graphs, backend.runs) == (1, 4)
