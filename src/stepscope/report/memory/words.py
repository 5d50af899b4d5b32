"""What every output for people says of a snapshot."""

from __future__ import annotations

from stepscope.analysis.memory.question_names import PREFIX
from stepscope.memory.questions.names import NamedQuestion
from stepscope.memory.questions.table import MemoryAnswer


def heading(answer: MemoryAnswer) -> str:
    """What was asked, and of which file."""
    return f"{answer.path}  ·  {answer.kind}  ·  {answer.question.name}"


def question_of(answer: MemoryAnswer) -> NamedQuestion:
    """The question under its name in `show`: another question about traces can have its own."""
    asked = answer.question
    return NamedQuestion(PREFIX + asked.name, asked.about, asked.titles)
