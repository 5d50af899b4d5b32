"""The `stepscope` command: loads verbs on use, and turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import keyword
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stepscope._version import __version__
from stepscope.errors import StepscopeError, UsageError, did_you_mean
from stepscope.terminal.plain_text import escaped, tolerate_narrow_encoding
from stepscope.terminal.working import command_begins

VERBS: dict[str, str] = {
    "demo": "Plant a bottleneck in a small training, find it, fix it, measure.",
    "run": "Record a training script without changing its code.",
    "try": "Try fixes on a training script without changing it, and measure.",
    "gate": "Run two versions in turns, and fail if the new one is slower.",
    "report": "Show where the step's time goes, why, and what to change.",
    "explain": "Print a page: of a finding, a question, the quick start.",
    "show": "Answer one question about a trace: idle time, kernels, operators.",
    "memory": "Show what holds the GPU's memory, from a memory snapshot.",
    "view": "Open traces and runs in the browser.",
    "export": "Export a trace or a run to Perfetto, Chrome JSON or tables.",
    "compare": "Show what changed between two runs.",
    "hangs": "Show which collective hangs, and which rank began it.",
    "query": "Query a trace with SQL.",
    "mcp": "Let a coding assistant ask: the verbs that read, as MCP tools.",
    "monitor": "Sample GPUs, host and processes during a training.",
    "attach": "Sample the Python stacks of a running training.",
    "trigger": "Ask a running training to record a window.",
    "info": "Show what a file or directory is, and what it holds.",
    "cache": "List and remove the stores that reading traces created.",
    "dialects": "List option names of other tools that Stepscope understands.",
    "examples": "List, print or copy the ready-made examples.",
    "doctor": "Check this machine and its torch, and say how to fix problems.",
}
"""Verb to its line in the help, in the order of the help. A verb's module has its name, with an
underscore after it if Python reserves the word."""

_UNEXPECTED = 1
_OUT_OF_MEMORY = (
    "out of memory: free some, use a machine with more, or give a smaller input, such as one window"
    " or rank; a trace opened with load(PATH, store=True) is read from disk"
)
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Errors of a disk that takes no more."""
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
"""Errors of paths that this user may not use, or that cannot be: the path and the reason say it."""
_SPACES = str.maketrans("\r\n\t", "   ")
_INTERRUPTED = 130
_PIPE_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended


class _OutputClosedError(Exception):
    """The reader of our output went away, as `head` does. That is not an error."""


class VerbGroup(click.Group):
    """A group that knows its verbs by name and imports one only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click gives it
        """The verbs, in the order of the table."""
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click gives it
        cmd_name: str,
    ) -> click.Command | None:
        """Import the verb's module and return its command; None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = importlib.import_module(f"stepscope.commands.{module}").command
        assert isinstance(command, click.Command)
        _take_debug(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; if there is none of that name, suggest the nearest."""
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            hint = did_you_mean(word, VERBS, "")
            ctx.fail(f"no verb '{word}'" + (f": {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table: help imports none of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, VERBS[verb]) for verb in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; catch a closed pipe before click does."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _OutputClosedError from None
        return result


@dataclass
class _Debugging:
    """Whether tracebacks are shown, known only once the arguments are read."""

    is_on: bool = False


def _switch_debug_on(context: click.Context, _parameter: click.Parameter, given: bool) -> None:
    state = context.find_root().obj
    if given and isinstance(state, _Debugging):
        state.is_on = True


@click.command(
    cls=VerbGroup,
    name="stepscope",
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="VERB [ARGUMENTS]...",
    epilog="`stepscope VERB --help` explains a verb; each takes --debug, too.",
)
@click.version_option(__version__, "--version", message="stepscope %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    envvar="STEPSCOPE_DEBUG",
    expose_value=False,
    callback=_switch_debug_on,
    help="Show the traceback of an error. Also: STEPSCOPE_DEBUG=1.",
)
def cli() -> None:
    """Show where every PyTorch training step's time and memory go, and what to do about it."""


def _take_debug(command: click.Command) -> None:
    """Let a verb, and what is below it, take `--debug` as the group does."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _take_debug(below)
    if not any("--debug" in parameter.opts for parameter in command.params):
        command.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                is_eager=True,
                hidden=True,
                expose_value=False,
                callback=_switch_debug_on,
            )
        )


def main(arguments: Sequence[str] | None = None, command: click.Command = cli) -> int:
    """Run the command line; turn every ending into a message and an exit code.

    If a verb returns an integer, that is the exit code; `--fail-on` uses this.

    Args:
        arguments: The words after `stepscope`; by default those of this process.

    Returns:
        0 for success; 1 if a condition of `--fail-on` holds, and for unexpected errors; 2 for
        wrong usage and output that cannot be written; 3 for input that cannot be read; 130 if
        interrupted; 141 if the reader of the output went away.
    """
    command_begins()
    _prepare_streams()
    if (owners := sys.modules.get("stepscope.trace.store.owners")) is not None:
        owners.BELIEF.was_asked = False
    argv = list(sys.argv[1:] if arguments is None else arguments)
    debugging = _Debugging(_wants_debug(argv))
    try:
        result = command.main(
            args=argv, prog_name="stepscope", standalone_mode=False, obj=debugging
        )
    except _OutputClosedError:
        _discard_output()
        return _PIPE_CLOSED
    except click.Abort as error:
        # click turns Ctrl-C into Abort, and also the end of input at a prompt.
        return _INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else _UNEXPECTED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption):
            _hint_at_files(argv)
        return error.exit_code
    except StepscopeError as error:
        _print_error(str(error), debugging.is_on)
        return error.exit_code
    except MemoryError:
        _print_error(_OUT_OF_MEMORY, debugging.is_on)
        return _UNEXPECTED
    except OSError as error:
        if error.errno in _CLOSED and error.filename:
            _print_error(f"{error.filename}: {error.strerror}", debugging.is_on)
            return UsageError.exit_code
        if error.errno not in _FULL:
            return _fail(error, argv, command, debugging.is_on)
        _print_error(
            f"{error.filename or 'the output'}: cannot be written: {error.strerror}",
            debugging.is_on,
        )
        return UsageError.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        return _fail(error, argv, command, debugging.is_on)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what Polars raises for damaged columns
            raise
        return _fail(error, argv, command, debugging.is_on)
    _announce_recompilation()
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _fail(error: BaseException, argv: list[str], command: click.Command, is_debug: bool) -> int:
    """Say that something unexpected went wrong; run the verb again if a store may be why.

    A store's contents may not hold, or it may be gone, since another process replaced it.
    """
    # Another thread may be in the middle of importing it.
    belief = getattr(sys.modules.get("stepscope.trace.store.owners"), "BELIEF", None)
    if belief is None or not belief.was_asked or belief.is_lost:
        hint = "" if is_debug else " (--debug shows where)"
        _print_error(f"unexpected {type(error).__name__}: {error}{hint}", is_debug)
        return _UNEXPECTED
    _print_error(
        "a store may be why this failed: it is run again, on the traces themselves", is_debug=False
    )
    belief.is_lost = True
    try:
        return main(argv, command)
    finally:
        belief.is_lost = False


def _hint_at_files(argv: Sequence[str]) -> None:
    """Say how to write a file whose name was taken for options."""
    for word in argv:
        if len(word) > 1 and word.startswith("-") and Path(word).exists():
            click.echo(f"For the file of that name, write ./{escaped(word)}", err=True)


def _announce_recompilation() -> None:
    """Say, after a verb that compiled code, that it was for nothing, and how to keep it."""
    compiler = sys.modules.get("stepscope.trace.machine.build")
    # A thread may still be importing it, as when Ctrl-C ends a viewer that has just begun. It is
    # defined last there.
    compiles_anew = getattr(compiler, "compiles_anew", None)
    if compiles_anew is not None and compiles_anew():
        _print_error(
            "compiled code cannot be kept, so each command compiles it again: set"
            " STEPSCOPE_COMPILED to a writable directory",
            is_debug=False,
        )


def _wants_debug(argv: Sequence[str]) -> bool:
    """Whether --debug is on before the verb. Checked before click parses, because that can fail."""
    if os.environ.get("STEPSCOPE_DEBUG", "").lower() in {"1", "true", "yes", "on"}:
        return True
    for word in argv:
        if not word.startswith("-"):
            return False
        if word == "--debug":
            return True
    return False


def _print_error(message: str, is_debug: bool) -> None:
    """Print an error on one line, below its traceback with --debug."""
    if is_debug:
        traceback.print_exc()
    # A name from a file may contain line breaks or control codes.
    line = escaped(message.translate(_SPACES))
    click.echo(f"stepscope: {line}", err=True)


def _prepare_streams() -> None:
    """Have output replace characters that the terminal cannot show, instead of failing.

    A stream that the shell has closed (`>&-`) is replaced by one that takes everything.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        tolerate_narrow_encoding(stream)


def _discard_output() -> None:
    """Discard what is still buffered: flushing it at exit would fail again."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
