"""What every output for people says of a snapshot."""

from __future__ import annotations

from stepscope.memory.questions.table import MemoryAnswer


def heading(answer: MemoryAnswer) -> str:
    """What was asked, and of which file."""
    return f"{answer.path}  ·  {answer.kind}  ·  {answer.question.name}"
