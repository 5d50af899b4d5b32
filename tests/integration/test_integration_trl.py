"""TRL's trainers take the callback of transformers."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.support.frameworks import skip_without
from tests.support.runs import manifest_of, steps_in_trace

from stepscope import open_run

skip_without("transformers", "trl", "datasets")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


def trainer_of(folder, callbacks=()):
    """Supervised fine-tuning of a tiny Llama with random weights on token numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        from trl import SFTConfig, SFTTrainer

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=words(), pad_token="w0", eos_token="w1"
        )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    samples = [
        {"input_ids": [(n * k) % 62 + 2 for k in range(1, 13)], "attention_mask": [1] * 12}
        for n in range(40)
    ]
    arguments = SFTConfig(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(samples),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def words():
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(64)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_supervised_fine_tuning(tmp_path):
    from stepscope.adapters.transformers import StepscopeCallback

    bare = trainer_of(tmp_path / "bare")
    bare.train()
    callback = StepscopeCallback(
        output_dir=tmp_path / "profiles", wait=1, warmup=1, active=2, activities="cpu"
    )
    ours = trainer_of(tmp_path / "ours", [callback])
    ours.train()
    losses = [
        [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        for trainer in (bare, ours)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    manifest = manifest_of(tmp_path / "profiles")
    assert (manifest.state, manifest.steps) == ("finished", 6)
    (rank,) = open_run(tmp_path / "profiles").ranks
    assert steps_in_trace(rank.windows[0].trace_path) == [2, 3]
    for step in rank.steps:  # after the last one, what it came to is logged
        if step.is_whole_step:
            assert {"forward", "backward", "optimizer"} <= set(step.phases)
