"""The command line's frame: which verbs there are, what help costs, and how errors end."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import click
import pytest
from tests.support.project import ROOT

from stepscope._version import __version__
from stepscope.commands.main import VERBS, VerbGroup, cli, main
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError

COMMANDS = ROOT / "src" / "stepscope" / "commands"
HEAVY = ("torch", "numpy", "polars", "duckdb", "llvmlite", "rich", "orjson")


def run_python(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
        **options,
    )


def run_into_closed_pipe(command: list[str]) -> subprocess.CompletedProcess:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command, check=False, stdout=writer, stderr=subprocess.PIPE, timeout=250
        )
    finally:
        os.close(writer)


@click.command(cls=VerbGroup, name="stepscope")
@click.option("--debug", is_flag=True)
def fake(debug: bool) -> None:
    """A group with verbs that end badly."""


def ending_with(error: BaseException):
    """The fake group, with a verb `fall` that raises."""

    class Falling(type(fake)):
        def get_command(self, ctx, cmd_name):
            @click.command("fall")
            def fall() -> None:
                raise error

            return fall

    return Falling(name="stepscope", params=fake.params)


class TestVerbs:
    def test_help_lists_the_verbs_in_the_order_of_the_table(self, capsys):
        assert main(["--help"]) == 0
        text = capsys.readouterr().out
        _, _, listing = text.partition("Verbs:\n")
        listed = [line.split()[0] for line in listing.splitlines() if line.startswith("  ")]
        assert [word for word in listed if word in VERBS] == list(VERBS)

    def test_every_verb_is_a_module_and_every_other_module_is_shared(self):
        shared = {"entry", "main", "options", "remembered", "sinks"}
        # `try` is a keyword of Python, so its module is `try_`.
        modules = {path.stem.removesuffix("_") for path in COMMANDS.glob("[!_]*.py")}
        assert modules - shared == set(VERBS)

    @pytest.mark.parametrize("verb", list(VERBS))
    def test_a_verb_explains_itself(self, verb, capsys):
        assert main([verb, "--help"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: stepscope {verb}")
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert command.name == verb
        assert command.help

    def test_lines_of_the_table_fit_into_eighty_columns(self):
        width = max(map(len, VERBS))
        assert all(len(line) + width + 4 <= 80 for line in VERBS.values())

    def test_version(self, capsys):
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"stepscope {__version__}\n"

    def test_an_unknown_verb_is_wrong_usage(self, capsys):
        assert main(["frobnicate"]) == 2
        assert "no verb 'frobnicate'" in capsys.readouterr().err

    def test_a_misspelt_verb_is_recognised(self, capsys):
        assert main(["repotr"]) == 2
        assert "did you mean 'report'?" in capsys.readouterr().err

    def test_an_unknown_option_is_wrong_usage(self, capsys):
        assert main(["report", "--frobnicate", "x"]) == 2
        assert "--frobnicate" in capsys.readouterr().err


class TestCost:
    @pytest.mark.parametrize(
        "code",
        [
            "import stepscope",
            "from stepscope.commands.main import main; main(['--help'])",
            "from stepscope.commands.main import main; main(['--version'])",
            "from stepscope.commands.main import main; main(['doctor', '--help'])",
        ],
    )
    def test_no_heavy_import(self, code):
        ended = run_python(
            f"{code}\nimport sys\nprint([n for n in {HEAVY!r} if n in sys.modules], "
            "file=sys.stderr)"
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.strip().splitlines()[-1] == "[]"

    def test_the_check_for_heavy_imports_can_fail(self):
        ended = run_python("import numpy, sys; print('numpy' in sys.modules)")
        assert ended.stdout.strip() == "True"

    def test_help_imports_no_verb(self):
        ended = run_python(
            "from stepscope.commands.main import main; main(['--help'])\nimport sys\n"
            "print(sorted(n for n in sys.modules if n.startswith('stepscope.commands.')), "
            "file=sys.stderr)"
        )
        assert ended.stderr.strip().splitlines()[-1] == "['stepscope.commands.main']"


class TestEndings:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (UsageError("option x=3 is wrong: give 4"), 2),
            (UnreadableInputError("a.json: not a trace"), 3),
            (StepscopeError("a.json: not a trace"), 3),
        ],
    )
    def test_our_errors_are_one_line_with_their_code(self, error, code, capsys):
        assert main(["fall"], ending_with(error)) == code
        seen = capsys.readouterr()
        assert seen.out == ""
        assert seen.err == f"stepscope: {error}\n"

    def test_a_missing_file_is_unreadable_input(self, tmp_path, capsys):
        missing = tmp_path / "nothing-here"
        assert main(["report", str(missing)]) == 3
        error = capsys.readouterr().err
        assert error.startswith("stepscope: ")
        assert str(missing) in error
        assert error.count("\n") == 1

    def test_running_out_of_memory_is_one_line_with_remedies(self, capsys):
        @click.command()
        def verb():
            raise MemoryError

        assert main([], verb) == 1
        said = capsys.readouterr().err
        assert said.startswith("stepscope: out of memory: ")
        assert "unexpected" not in said
        assert said.count("\n") == 1

    def test_an_unexpected_error_names_its_type_and_the_way_on(self, capsys):
        assert main(["fall"], ending_with(ZeroDivisionError("oh"))) == 1
        error = capsys.readouterr().err
        assert error.startswith("stepscope: unexpected ZeroDivisionError: oh (")
        assert "--debug" in error
        assert error.count("\n") == 1

    @pytest.mark.parametrize("error", [ZeroDivisionError("oh"), UsageError("oh")])
    def test_debug_shows_the_traceback(self, error, capsys):
        main(["--debug", "fall"], ending_with(error))
        seen = capsys.readouterr().err
        assert "Traceback (most recent call last)" in seen
        assert seen.splitlines()[-1].startswith("stepscope: ")

    def test_debug_by_variable(self, monkeypatch, capsys):
        monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
        main(["fall"], ending_with(UsageError("oh")))
        assert "Traceback" in capsys.readouterr().err

    def test_debug_behind_the_verb_belongs_to_the_verb(self, capsys):
        main(["fall", "--debug"], ending_with(UsageError("oh")))
        assert "Traceback" not in capsys.readouterr().err

    def test_interrupted(self, capsys):
        assert main(["fall"], ending_with(KeyboardInterrupt())) == 130
        assert "Traceback" not in capsys.readouterr().err

    @pytest.mark.parametrize("size", [10, 5_000_000], ids=["still buffered", "under way"])
    def test_a_closed_pipe_is_no_error(self, size):
        code = (
            "import sys, click\n"
            "from stepscope.commands.main import main, VerbGroup\n"
            "class Talking(VerbGroup):\n"
            "    def get_command(self, ctx, cmd_name):\n"
            f"        return click.Command('talk', callback=lambda: print('x' * {size}))\n"
            "sys.exit(main(['talk'], Talking('stepscope')))\n"
        )
        ended = run_into_closed_pipe([sys.executable, "-c", code])
        assert ended.stderr == b""
        assert ended.returncode == 141

    def test_help_into_a_closed_pipe_is_quiet(self):
        ended = run_into_closed_pipe([sys.executable, "-m", "stepscope", "--help"])
        assert ended.stderr == b""

    @pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (1, 1), (True, 0), ("x", 0)])
    def test_a_whole_number_that_a_verb_returns_is_the_code(self, value, code):
        assert main([], click.Command("verb", callback=lambda: value)) == code

    def test_control_codes_of_hostile_names_do_not_reach_the_terminal(self, capsys):
        error = UnreadableInputError("evil\x1b[2Jname\nsecond\udc80: not a trace")
        assert main(["fall"], ending_with(error)) == 3
        assert capsys.readouterr().err == "stepscope: evil\\x1b[2Jname second\\udc80: not a trace\n"

    def test_a_narrow_terminal_encoding_does_not_end_the_program(self):
        ended = run_python(
            "import sys, click\nfrom stepscope.commands.main import main\n"
            "sys.exit(main([], click.Command('verb', callback=lambda: print('5 µs → ok'))))",
            env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        )
        assert ended.returncode == 0, ended.stderr
        assert "ok" in ended.stdout

    def test_module_form(self):
        ended = subprocess.run(
            [sys.executable, "-m", "stepscope", "--version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert ended.stdout == f"stepscope {__version__}\n"


def test_a_compiler_that_a_thread_is_still_importing_is_no_error(monkeypatch):
    name = "stepscope.trace.machine.build"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert main(["examples"]) == 0
