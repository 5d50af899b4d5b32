"""Trains a small transformer on generated text, with samples from slow storage.

Run as a module by `stepscope demo`, so that the command itself never imports torch. Every sample
costs a wait that simulates remote storage: the training thread waits if it loads its own samples,
and worker processes wait if the loader has workers. The wait is chosen once, from the measured
time of a training step, so that the bottleneck is as clear on a laptop as on a GPU.

Progress goes to standard output, one JSON object per line, for the command to read.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.adapters.profiler import Profiler
from stepscope.capture.options.config import CaptureConfig
from stepscope.run.step_record import BACKWARD, FORWARD, OPTIMIZER

_WORDS = ("the", "step", "of", "time", "and", "memory", "waits", "for", "its", "data", "again")
_BATCH = 16
_LENGTH = 64
_WIDTH = 128
_LAYERS = 3
_CALIBRATION_STEPS = 12
_LONGEST_STEP_S = 0.15  # a longer measurement means that the machine is busy, not slow
_WAIT_PER_COMPUTE = 1.6
"""Ratio of the storage's wait to the training step, typical for a slow loader."""


class SlowStorage(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Lines of generated text, each read after a wait.

    Args:
        wait_s: Seconds that reading one sample takes.
    """

    def __init__(self, lines: int, wait_s: float) -> None:
        self._lines = lines
        self._wait_s = wait_s

    def __len__(self) -> int:
        return self._lines

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = random.Random(index)  # noqa: S311 - generated text, not a secret
        time.sleep(self._wait_s)
        text = ""
        while len(text) <= _LENGTH:
            text += words.choice(_WORDS) + " "
        tokens = torch.tensor([ord(letter) for letter in text[: _LENGTH + 1]])
        return tokens[:-1], tokens[1:]


class SmallTransformer(nn.Module):
    """A language model over ASCII characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, _WIDTH)
        self.position = nn.Parameter(torch.zeros(_LENGTH, _WIDTH))
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next character for each position."""
        mask = nn.Transformer.generate_square_subsequent_mask(_LENGTH, device=tokens.device)
        hidden = self.embedding(tokens) + self.position
        scores: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return scores


class Trainer:
    """Model, loss and optimizer, on the GPU if there is one."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        # One thread: on a busy machine, threads that wait for each other make steps erratic, and
        # the loader's workers need a core, too.
        torch.set_num_threads(1)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = SmallTransformer().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loss = nn.CrossEntropyLoss()

    def step(self, batch: tuple[torch.Tensor, torch.Tensor], profiler: Profiler) -> float:
        """One training step; returns the loss, like a loop that logs it."""
        tokens, targets = (part.to(self.device) for part in batch)
        with profiler.phase(FORWARD):
            scores = self.model(tokens)
            loss = self.loss(scores.flatten(0, 1), targets.flatten())
        with profiler.phase(BACKWARD):
            loss.backward()
        with profiler.phase(OPTIMIZER):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return float(loss.item())


def calibrate() -> float:
    """Seconds that one training step takes on this machine, without its input."""
    trainer = Trainer()
    loader = DataLoader(SlowStorage(_BATCH, 0.0), batch_size=_BATCH)
    batch: Any = next(iter(loader))
    idle = Profiler(enabled=False)
    times = []
    for _ in range(_CALIBRATION_STEPS):
        started = time.perf_counter()
        trainer.step(batch, idle)
        times.append(time.perf_counter() - started)
    return min(_LONGEST_STEP_S, sorted(times[2:])[len(times[2:]) // 4])


def train(
    output_dir: str, run_name: str, steps: int, workers: int, wait_s: float, *, has_window: bool
) -> None:
    """Train under the profiler and report the progress."""
    trainer = Trainer()
    loader = DataLoader(
        SlowStorage(steps * _BATCH, wait_s),
        batch_size=_BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    config = CaptureConfig(
        output_dir=output_dir,
        run_name=run_name,
        skip_first=steps // 3,
        wait=0,
        warmup=2,
        active=3,
        window_recorder="torch" if has_window else "none",
    )
    loss = float("nan")
    with Profiler(config) as profiler:
        for number, batch in enumerate(profiler.watch(loader), start=1):
            loss = trainer.step(batch, profiler)
            profiler.count(samples=_BATCH, tokens=_BATCH * _LENGTH, loss=loss)
            print_line(step=number, steps=steps)
    print_line(run=str(profiler.run_path), loss=loss, device=str(trainer.device))


def print_line(**what: object) -> None:
    """Print one line for the command that started this process."""
    print(json.dumps(what), flush=True)  # noqa: T201


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(prog="python -m stepscope.demo.training")
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--run-name", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--without-window", action="store_true", help="record steps alone")
    parser.add_argument("--wait-us", type=int, help="wait per sample; measured if omitted")
    arguments = parser.parse_args()
    wait_us = arguments.wait_us
    if wait_us is None:
        step_s = calibrate()
        wait_us = round(step_s * _WAIT_PER_COMPUTE / _BATCH * 1e6)
        print_line(wait_us=wait_us, calibrated_step_us=round(step_s * 1e6))
    train(
        arguments.output_dir,
        arguments.run_name,
        arguments.steps,
        arguments.workers,
        wait_us / 1e6,
        has_window=not arguments.without_window,
    )


if __name__ == "__main__":
    main()
