"""What a run says about its job, and what it must not say."""

from __future__ import annotations

import pytest

from stepscope.run.manifest import hide_secrets


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["train.py", "--lr", "3"], ("train.py", "--lr", "3")),
        (["--api-key", "abc"], ("--api-key", "(hidden)")),
        (["--api_key=abc"], ("--api_key=(hidden)",)),
        (["--wandb_key", "abc", "--lr", "1"], ("--wandb_key", "(hidden)", "--lr", "1")),
        (["--hf-token=x"], ("--hf-token=(hidden)",)),
        (["--token", "x"], ("--token", "(hidden)")),
        (["--password", "x"], ("--password", "(hidden)")),
        (["hf_abcdefghijkl"], ("(hidden)",)),
        (["--note", "sk-abcdefghijkl"], ("--note", "(hidden)")),
        (["WANDB_API_KEY=abc"], ("WANDB_API_KEY=(hidden)",)),
        (["--push_token", "--fast"], ("--push_token", "--fast")),
        (["--max-tokens", "128"], ("--max-tokens", "128")),
        (["--url=https://user:pw@host/x"], ("--url=https://(hidden)@host/x",)),
        (["--key=hf_abcdefghijkl"], ("--key=(hidden)",)),
    ],
)
def test_secrets_are_hidden(given, expected):
    assert hide_secrets(given) == expected
