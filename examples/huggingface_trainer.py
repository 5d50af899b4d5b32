"""Train a small language model with the Trainer of transformers, and see where its steps go.

Stepscope adds one line: the callback. The model has random weights and the data is synthetic, so
that nothing is downloaded.

    python examples/huggingface_trainer.py --output profiles
    stepscope report profiles
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from stepscope.adapters.transformers import StepscopeCallback

VOCABULARY = 256


class CountingSequences(torch.utils.data.Dataset):
    """Sequences that count upwards in steps of a random size: easy to learn."""

    def __init__(self, count: int, length: int = 64) -> None:
        generator = torch.Generator().manual_seed(0)
        start = torch.randint(VOCABULARY, (count, 1), generator=generator)
        stride = torch.randint(1, 5, (count, 1), generator=generator)
        self.tokens = (start + stride * torch.arange(length)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", default="profiles", help="folder of the runs [%(default)s]")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps [%(default)s]")
    parser.add_argument("--workers", type=int, default=0, help="processes that load [%(default)s]")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )
    with tempfile.TemporaryDirectory() as checkpoints:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                checkpoints,
                max_steps=args.steps,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                eval_strategy="steps",
                eval_steps=20,
                save_steps=20,
                logging_steps=5,
                report_to=[],
                disable_tqdm=True,
                dataloader_num_workers=args.workers,
            ),
            train_dataset=CountingSequences(2048),
            eval_dataset=CountingSequences(64),
            callbacks=[StepscopeCallback(output_dir=args.output, wait=10, record_shapes=True)],
        )
        trainer.train()
    print(f"trained for {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
