"""Samples and tokens per second, from the batches that `watch` passes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stepscope
from stepscope import open_run


def _counts(
    folder: Path, loader: Iterable[Any], use: Callable[..., object], **more: Any
) -> list[Any]:
    with stepscope.Profiler(
        output_dir=folder, window_recorder="none", monitor=False, announce=False
    ) as profiler:
        for batch in profiler.watch(loader, **more):
            use(profiler, batch)
    (rank,) = open_run(folder).ranks
    return [(record.samples, record.tokens) for record in rank.steps if not record.is_partial]


def _texts() -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": torch.ones(5)} for _ in range(10)]


@pytest.mark.parametrize(
    ("loader", "use", "more", "counts"),
    [
        (DataLoader(torch.ones(10, 3), batch_size=4), lambda *_: 0, {}, [4, 4, 2]),
        (
            DataLoader(torch.ones(12, 3), batch_size=4),
            lambda *_: 0,
            {"batches_per_step": 2},
            [8, 4],
        ),
        (
            DataLoader(torch.ones(8, 3), batch_size=4),
            lambda profiler, _: profiler.step(),
            {},
            [4, 4],
        ),
        (
            DataLoader(torch.ones(8, 3), batch_size=4),
            lambda profiler, _: profiler.count(samples=1),
            {},
            [1, 1],
        ),
        (
            DataLoader(torch.ones(8, 3), batch_size=4),
            lambda profiler, _: profiler.step(samples=7),
            {},
            [7, 7],
        ),
        (DataLoader(torch.ones(3, 3), batch_size=None), lambda *_: 0, {}, [None] * 3),
        ([torch.ones(3)] * 2, lambda *_: 0, {}, [None] * 2),
    ],
)
def test_samples_of_a_watched_loader(
    tmp_path: Path,
    loader: Iterable[Any],
    use: Callable[..., object],
    more: dict[str, Any],
    counts: list[int | None],
) -> None:
    found = _counts(tmp_path, loader, use, **more)
    assert found == [(count, None) for count in counts]


def test_tokens_of_a_watched_loader(tmp_path: Path) -> None:
    found = _counts(tmp_path, DataLoader(_texts(), batch_size=4), lambda *_: 0)  # type: ignore[arg-type]
    assert found == [(4, 20), (4, 20), (2, 10)]
