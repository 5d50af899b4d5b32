"""Training scripts that know nothing of Stepscope, each with something planted.

Where it can, a step sleeps rather than computes, so that other work on the machine hardly changes
its length.
"""

from __future__ import annotations

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
for batch in DataLoader(Samples(0.006), batch_size=BATCH, shuffle=True):
    step(batch, 0.05)
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
    step(batch, 0.05)
"""


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
        time.sleep(0.006)
        return self.data[index]


if __name__ == "__main__":
    trainer = trainer_of("out", samples=4000, max_steps=500)
    trainer.train_dataset = Slow(trainer.train_dataset)
    compute_loss = trainer.compute_loss
    trainer.compute_loss = lambda *given, **named: time.sleep(0.05) or compute_loss(*given, **named)
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
    model.training_step = lambda *given: time.sleep(0.05) or train(*given)
    trainer = pytorch_of("lightning").Trainer(
        accelerator="cpu",
        max_steps=500,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Pairs(0.006), batch_size=BATCH, shuffle=True))
"""
)
FRAMEWORKS = {"transformers": TRAINER, "lightning": LIGHTNING}
"""Framework to a script with a slow data set."""
