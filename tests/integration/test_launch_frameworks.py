"""`stepscope run` on unmodified scripts of frameworks, where those are installed."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
from tests.integration.test_launch import HEAD, plainly, recorded
from tests.support.guides import environment

from stepscope import open_run

TRAINER = (
    HEAD
    + """
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Config(PretrainedConfig):
    model_type = "small"


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(8, 2)
        self.post_init()

    def _init_weights(self, module):
        return

    def forward(self, x=None, labels=None):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Data(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(8, generator=generator), "labels": index % 2}


model = Model(Config())
arguments = TrainingArguments(
    "out",
    max_steps=12,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=5,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    save_strategy="no",
)
trainer = Trainer(model=model, args=arguments, train_dataset=Data(400), eval_dataset=Data(40))
trainer.train()
print("RESULT", trainer.state.global_step, digest(model))
"""
)
LIGHTNING = (
    HEAD
    + """
import warnings

import pytorch_lightning as lightning

warnings.simplefilter("ignore")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


train = TensorDataset(torch.randn(96, 8), torch.randn(96, 2))
other = TensorDataset(torch.randn(16, 8), torch.randn(16, 2))
model = Model()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accumulate_grad_batches=2,
    val_check_interval=10,
)
trainer.fit(model, DataLoader(train, batch_size=4, shuffle=True), DataLoader(other, batch_size=4))
print("RESULT", trainer.global_step, digest(model))
"""
)


@pytest.mark.parametrize(
    ("package", "script", "steps"),
    [("transformers", TRAINER, 12), ("pytorch_lightning", LIGHTNING, 24)],
)
def test_an_unmodified_script_is_counted_right_and_gives_the_same(tmp_path, package, script, steps):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    # Where the package was found, and what it needs may lie elsewhere than the repository.
    paths = os.pathsep.join([environment()["PYTHONPATH"], *filter(None, sys.path)])
    bare = plainly(tmp_path, script, PYTHONPATH=paths)
    ours = recorded(tmp_path, script, PYTHONPATH=paths)
    assert bare.returncode == ours.returncode == 0, ours.stderr
    (wanted,) = (line for line in bare.stdout.splitlines() if line.startswith("RESULT"))
    assert wanted.split()[1] == str(steps)
    assert wanted in ours.stdout
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert rank.manifest.steps == steps
    for step in rank.steps:
        assert set(step.phases) == {"forward", "backward", "optimizer"}
    assert "gradients are accumulated: 2 batches" in ours.stderr
