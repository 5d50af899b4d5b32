"""The skill for coding assistants names commands that exist."""

from __future__ import annotations

import re

import yaml
from click import Context
from tests.support.project import ROOT

from stepscope.commands.main import cli

SKILL = (ROOT / "skills" / "stepscope" / "SKILL.md").read_text(encoding="utf-8")


def test_the_head_is_what_assistants_read():
    head = yaml.safe_load(SKILL.split("---\n")[1])
    assert head.keys() == {"name", "description"}
    assert head["name"] == "stepscope"
    assert 100 < len(head["description"]) <= 1024


def test_its_commands_exist_with_their_options():
    context = Context(cli)
    named = set(re.findall(r"`stepscope (\w[\w-]*)", SKILL))
    assert named <= set(cli.list_commands(context))
    assert {"run", "report", "memory", "hangs", "compare", "try", "gate", "show"} <= named
    report = cli.get_command(context, "report")
    options = {word for parameter in report.params for word in parameter.opts}
    assert {"--full", "--format"} <= options
    assert {"json", "md"} <= set(
        next(one for one in report.params if "--format" in one.opts).type.choices
    )


def test_its_questions_are_asked_as_it_says():
    from stepscope.analysis.questions import QUESTIONS

    for question in re.findall(r"`stepscope show ([a-z][\w-]*)", SKILL):
        assert question in {one.name for one in QUESTIONS}
