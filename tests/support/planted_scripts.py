"""Training scripts that know nothing of Stepscope, each with something planted, and its fix.

Where it can, a step sleeps rather than computes, so that other work on the machine hardly changes
its length.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import gc, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH = 8


class Samples(Dataset):
    def __init__(self, delay_s=0.0):
        self.delay_s = delay_s

    def __len__(self):
        return 40_000

    def __getitem__(self, index):
        if self.delay_s:
            time.sleep(self.delay_s)
        return torch.full((64,), float(index % 7) / 7)


model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step(batch, rest_s=0.0):
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(rest_s)
    return loss


"""

SLOW_DATA_SET = """
for batch in DataLoader(Samples(0.02), batch_size=BATCH, shuffle=True):
    step(batch, 0.15)
"""
SLOW_COLLATE = """
def collate(samples):
    time.sleep(0.12)
    return torch.stack(samples)


for batch in DataLoader(Samples(), batch_size=BATCH, shuffle=True, collate_fn=collate):
    step(batch, 0.15)
"""
GARBAGE_COLLECTOR = """
kept = [[number] for number in range(60_000)]
for batch in DataLoader(Samples(), batch_size=BATCH, shuffle=True):
    step(batch, 0.15)
    gc.collect()
"""
UNFUSED_OPTIMIZER = """
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(150)))
head = nn.Linear(64, 16)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
for batch in DataLoader(Samples(), batch_size=BATCH, shuffle=True):
    loss = model(head(batch)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""
TOO_MANY_THREADS = """
torch.set_num_threads(16 * os.cpu_count())
model = nn.Sequential(*(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)) * 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Samples(), batch_size=256, shuffle=True):
    step(batch)
"""
LOGGING = """
log = open(os.devnull, "w")
for number, batch in enumerate(DataLoader(Samples(), batch_size=BATCH, shuffle=True)):
    loss = step(batch, 0.02)
    for name, parameter in model.named_parameters():
        for value in parameter.flatten()[:200]:
            print(number, name, value.item(), loss.item(), file=log, flush=True)
"""
TINY_BATCHES = """
for batch in DataLoader(Samples(), batch_size=1, shuffle=True):
    step(batch)
"""
TWO_FINDINGS = """
kept = [[number] for number in range(60_000)]
for batch in DataLoader(Samples(0.02), batch_size=BATCH, shuffle=True):
    step(batch, 0.15)
    gc.collect()
"""
RANKS = """
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
data = Samples()
sampler = torch.utils.data.DistributedSampler(data)
for batch in DataLoader(data, batch_size=BATCH, sampler=sampler):
    step(batch, 0.02)
torch.distributed.destroy_process_group()
"""
HEALTHY = """
for batch in DataLoader(Samples(), batch_size=BATCH, shuffle=True):
    step(batch, 0.15)
"""


@dataclass(frozen=True)
class PlantedScript:
    """A script with something planted.

    Attributes:
        name: What is planted.
        text: The script.
        wins: The trial that is to be kept; empty if nothing can help.
        within: How far the promise may be off.
        is_at_least: Whether the promise is a lower bound, as the page of `stepscope try` says.
        by_hand: What writing the fix into the script replaces by what.
    """

    name: str
    text: str
    wins: str
    within: float = 0.1
    is_at_least: bool = False
    by_hand: tuple[tuple[str, str], ...] = ()

    @property
    def fixed(self) -> str:
        """The script with its fix; empty if nothing can help."""
        text = self.text if self.by_hand else ""
        for words, others in self.by_hand:
            if words not in text:
                raise ValueError(f"{self.name}: no {words!r} to replace")
            text = text.replace(words, others)
        return text


WITH_WORKERS = ("shuffle=True", "shuffle=True, num_workers=2")
_RARE_GC = ("    gc.collect()\n", "")
_FUSED = ("lr=1e-3", "lr=1e-3, fused=True")
_ONE_THREAD = ("torch.set_num_threads(16 * os.cpu_count())", "torch.set_num_threads(1)")
PLANTED = {
    one.name: one
    for one in (
        PlantedScript(
            "slow data set", HEAD + SLOW_DATA_SET, "loader-workers", by_hand=(WITH_WORKERS,)
        ),
        PlantedScript(
            "slow collate", HEAD + SLOW_COLLATE, "loader-workers", by_hand=(WITH_WORKERS,)
        ),
        PlantedScript(
            "garbage collector", HEAD + GARBAGE_COLLECTOR, "rare-gc", by_hand=(_RARE_GC,)
        ),
        PlantedScript(
            "unfused optimizer",
            HEAD + UNFUSED_OPTIMIZER,
            "fused-optimizer",
            0.25,
            by_hand=(_FUSED,),
        ),
        PlantedScript(
            "too many threads",
            HEAD + TOO_MANY_THREADS,
            "threads",
            is_at_least=True,
            by_hand=(_ONE_THREAD,),
        ),
        PlantedScript("logging", HEAD + LOGGING, ""),
        PlantedScript("tiny batches", HEAD + TINY_BATCHES, ""),
        PlantedScript(
            "two findings",
            HEAD + TWO_FINDINGS,
            "loader-workers + rare-gc",
            by_hand=(WITH_WORKERS, _RARE_GC),
        ),
    )
}


TRAINER = (
    HEAD
    + """
from tests.support.frameworks import trainer_of


class Slow(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        time.sleep(0.04)
        return self.data[index]


if __name__ == "__main__":
    trainer = trainer_of("out", samples=4000, max_steps=500)
    trainer.train_dataset = Slow(trainer.train_dataset)
    compute_loss = trainer.compute_loss
    trainer.compute_loss = lambda *given, **named: time.sleep(0.15) or compute_loss(*given, **named)
    trainer.train()
"""
)
LIGHTNING = (
    HEAD
    + """
from tests.support.frameworks import lightning_model, pytorch_of


class Pairs(Samples):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample[:8], sample[:2]


if __name__ == "__main__":
    model = lightning_model("lightning")
    train = model.training_step
    model.training_step = lambda *given: time.sleep(0.15) or train(*given)
    trainer = pytorch_of("lightning").Trainer(
        accelerator="cpu",
        max_steps=500,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Pairs(0.02), batch_size=BATCH, shuffle=True))
"""
)
FRAMEWORKS = {
    "transformers": (
        TRAINER,
        TRAINER.replace("samples=4000,", "samples=4000, dataloader_num_workers=2,"),
    ),
    "lightning": (LIGHTNING, LIGHTNING.replace(*WITH_WORKERS)),
}
"""Framework to a script with a slow data set, and the same with workers that make its batches."""
