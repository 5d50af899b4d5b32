"""Every command of the documentation is one that the command line takes, and every name exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest
from tests.support.project import ROOT

from stepscope.commands.main import cli
from stepscope.errors import StepscopeError

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELL = {"", "console", "bash", "sh"}
NOT_OURS = re.compile(r"\[|…|\.\.\.")
"""A synopsis, as in `stepscope show QUESTION [--rows N]`, is no command."""


def fences(page: Path, languages: set[str]) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [body for language, body in FENCE.findall(text) if language in languages]


def commands_of(page: Path) -> list[str]:
    """The commands that begin a line of a shell's block, with their continued lines."""
    found = []
    for body in fences(page, SHELL):
        lines = iter(body.replace("\\\n", " ").splitlines())
        for line in lines:
            text = re.sub(r"^\s*\$ ", "", line.rstrip())
            if re.match(r"(\w+=\S+ )*stepscope ", text):
                while text.count('"') % 2:  # a query of several lines
                    text += "\n" + next(lines)
                if not NOT_OURS.search(text):
                    found.append(text)
    return found


COMMANDS = [(page, command) for page in PAGES for command in commands_of(page)]


def test_commands_are_found():
    assert len(COMMANDS) > 80


def commands_of_examples() -> list[tuple[Path, str]]:
    """The commands in the docstrings of examples."""
    found = []
    for page in sorted((ROOT / "examples").glob("*.py")):
        lines = (ast.get_docstring(ast.parse(page.read_text(encoding="utf-8"))) or "").splitlines()
        texts = (line.strip() for line in lines)
        found += [(page, text) for text in texts if text.startswith("stepscope ")]
    return found


EXAMPLES = commands_of_examples()


def test_no_page_sends_a_signal_that_would_end_the_training():
    pages = [*PAGES, *(ROOT / "examples").glob("*.*")]
    assert [page.name for page in pages if "USR2" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("page", "text"), EXAMPLES, ids=[f"{page.stem}:{text[:60]}" for page, text in EXAMPLES]
)
def test_the_command_line_takes_those_of_examples(page, text):
    test_the_command_line_takes_it(page, text)


@pytest.mark.parametrize(
    ("page", "text"), COMMANDS, ids=[f"{page.stem}:{text[:60]}" for page, text in COMMANDS]
)
def test_the_command_line_takes_it(page, text):
    words = shlex.split(text, comments=True)
    words = words[words.index("stepscope") + 1 :]
    ends = [place for place, word in enumerate(words) if word in {"|", ">", "&&", "2>", "&", ";"}]
    words = words[: min(ends, default=len(words))]
    context = click.Context(cli, info_name="stepscope", **cli.context_settings)
    while words and words[0].startswith("-"):
        if words[0] in {"--help", "--version", "-h"}:
            return
        words = words[1:]
    command = cli.get_command(context, words[0])
    assert command is not None, f"{page.name}: no verb {words[0]}"
    try:
        while isinstance(command, click.Group):
            inside = command.make_context(words[0], list(words[1:]), parent=context)
            words = [*inside._protected_args, *inside.args] if words[1:] else []
            if not words:
                return
            command = command.get_command(inside, words[0])
            assert command is not None, f"{page.name}: {text}"
        command.make_context(words[0], list(words[1:]), parent=context)
    except click.exceptions.Exit:
        return  # --help
    except (click.ClickException, StepscopeError) as error:
        pytest.fail(f"{page.name}: {text}\n{error}")


def _of_the_package(body: str) -> list[ast.ImportFrom | ast.Attribute]:
    """Imports from the package, and what is taken from it by its name."""
    return [
        node
        for node in ast.walk(ast.parse(body))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stepscope"))
        or (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "stepscope"
        )
    ]


BLOCKS = [(page, body) for page in PAGES for body in fences(page, {"python"})]


def test_names_of_the_package_are_found():
    found = [type(node) for _, body in BLOCKS for node in _of_the_package(body)]
    assert found.count(ast.ImportFrom) > 10
    assert found.count(ast.Attribute) > 20


@pytest.mark.parametrize(
    ("page", "body"), BLOCKS, ids=[f"{page.stem}-{place}" for place, (page, _) in enumerate(BLOCKS)]
)
def test_what_programs_take_from_the_package_exists(page, body):
    import stepscope

    for node in _of_the_package(body):
        if isinstance(node, ast.ImportFrom):
            try:
                module = importlib.import_module(node.module)
            except ImportError as error:
                # The framework is missing: the source says what there is.
                assert not str(error.name).startswith("stepscope"), f"{page.name}: {error}"
                source = Path(importlib.util.find_spec(node.module).origin).read_text()
                names = {word for name in node.names for word in [name.name]}
                assert names <= set(re.findall(r"\w+", source)), page.name
                continue
            for name in node.names:
                assert hasattr(module, name.name), f"{page.name}: {node.module}.{name.name}"
        else:
            assert node.attr in stepscope.__all__ or node.attr == "adapters", (
                f"{page.name}: stepscope.{node.attr}"
            )
