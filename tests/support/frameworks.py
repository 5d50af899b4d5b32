"""Small trainings in frameworks: as scripts that know nothing of Stepscope, and as pieces.

The frameworks are imported where they are used: they need not be installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest
import torch

from tests.support.launching import HEAD

TRAINER_SCRIPT = (
    HEAD
    + """
from tests.support.frameworks import trainer_of

trainer = trainer_of(
    "out",
    max_steps=12,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=3,
    save_strategy="steps",
    save_steps=6,
    ddp_find_unused_parameters=False,
)
trainer.train()
rank = trainer.args.process_index
tell(trainer.state.global_step, rank, digest(trainer.model), torch.rand(1).item())
"""
)
LIGHTNING_SCRIPT = (
    HEAD
    + """
from tests.support.frameworks import fit

trainer, model = fit("PACKAGE", val_check_interval=10, **DISTRIBUTED)
tell(trainer.global_step, trainer.global_rank, digest(model), torch.rand(1).item())
"""
)


def skip_without(*packages: str) -> None:
    """Skip the tests of a file where a framework is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)


class Samples(torch.utils.data.Dataset):
    """Samples that are made of their number, for a classification into two kinds."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, object]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(8, generator=generator), "labels": index % 2}


def small_model():
    """A model for the Trainer of transformers, with random weights and dropout."""
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    class SmallConfig(PretrainedConfig):
        model_type = "small"

    class SmallModel(PreTrainedModel):
        config_class = SmallConfig

        def __init__(self, config):
            super().__init__(config)
            self.layer = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
            self.post_init()

        def _init_weights(self, module):
            return

        def forward(self, x=None, labels=None):
            logits = self.layer(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    return SmallModel(SmallConfig())


def trainer_of(folder, callbacks=(), samples=64, **arguments):
    """A Trainer on 64 samples, with batches of 4."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Trainer, TrainingArguments

        options = {
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
        }
        return Trainer(
            model=small_model(),
            args=TrainingArguments(str(folder), **{**options, **arguments}),
            train_dataset=Samples(samples),
            eval_dataset=Samples(16),
            callbacks=list(callbacks),
        )


def pytorch_of(package: str):
    """What `lightning` and `pytorch_lightning` have in common."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if package == "lightning":
            from lightning import pytorch

            return pytorch
        return importlib.import_module(package)


def lightning_model(package: str):
    """A LightningModule with random weights and dropout."""
    from torch import nn

    class Model(pytorch_of(package).LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
            self.losses = []

        def training_step(self, batch, index):
            loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            self.log("loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    torch.manual_seed(0)
    return Model()


def loaders():
    """Data for training (24 batches of 4) and for validation (4 batches)."""
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(1)

    def data(count):
        return TensorDataset(
            torch.randn(count, 8, generator=generator), torch.randn(count, 2, generator=generator)
        )

    return DataLoader(data(96), batch_size=4, shuffle=True), DataLoader(data(16), batch_size=4)


def fit(package: str, model=None, ckpt_path=None, **arguments):
    """Train for two epochs with an accumulation of 2; returns the trainer and the model."""
    model = model or lightning_model(package)
    options = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accumulate_grad_batches": 2,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pytorch_of(package).Trainer(**{**options, **arguments})
        torch.manual_seed(2)
        trainer.fit(model, *loaders(), ckpt_path=ckpt_path)
    return trainer, model
