"""Fine-tune a small language model with TRL's SFTTrainer, and see where its steps go.

TRL's trainers take the callback for transformers. The model has random weights and the text is
synthetic, so that nothing is downloaded.

    python examples/trl_sft.py --output profiles
    stepscope report profiles
"""

from __future__ import annotations

import argparse
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from stepscope.adapters.transformers import StepscopeCallback

SUBJECTS = ("the optimizer", "the loader", "the model", "the kernel")
VERBS = ("waits for", "feeds", "launches", "overtakes")
SPECIAL = ("<pad>", "<end>", "<unknown>")


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each known word."""
    words = [*SPECIAL, *sorted({word for text in (*SUBJECTS, *VERBS) for word in text.split()})]
    by_word = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unknown>")
    )
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=by_word, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def sentences(count: int) -> Dataset:
    """Short texts of three sentences each."""
    chance = random.Random(0)

    def sentence() -> str:
        return f"{chance.choice(SUBJECTS)} {chance.choice(VERBS)} {chance.choice(SUBJECTS)}"

    return Dataset.from_list(
        [{"text": " ".join(sentence() for _ in range(3))} for _ in range(count)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="profiles", help="folder of the runs [%(default)s]")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps [%(default)s]")
    args = parser.parse_args()

    words = tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )
    with tempfile.TemporaryDirectory() as checkpoints:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                checkpoints,
                max_steps=args.steps,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                logging_steps=5,
                save_strategy="no",
                report_to=[],
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
            ),
            train_dataset=sentences(512),
            processing_class=words,
            callbacks=[StepscopeCallback(output_dir=args.output, wait=10)],
        )
        trainer.train()
    print(f"trained for {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
