"""The value and origin of each option: flag, environment, pyproject.toml, then default."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.adapters.options.catalogue import OPTIONS, Option
from stepscope.adapters.options.dialect import Dialect
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import ConfigError
from stepscope.capture.options.rules import DEFAULT_OUTPUT_DIR
from stepscope.capture.options.words import PREFIX, OptionWords
from stepscope.run.remote import is_url

_NOT_OPTIONS = {
    "STEPSCOPE_CACHE",
    "STEPSCOPE_COMPILED",
    "STEPSCOPE_DEBUG",
    "STEPSCOPE_INPUT_LIMIT",
    "STEPSCOPE_LAUNCH",
    "STEPSCOPE_REMOTE_TIMEOUT",
    "STEPSCOPE_REMOTE_TOTAL",
    "STEPSCOPE_STORES",
    "STEPSCOPE_TRACES",
    "STEPSCOPE_TRIAL",
}


@dataclass(frozen=True)
class Setting:
    """The value of one option and where it comes from.

    Attributes:
        option: The option.
        value: Its value.
        origin: Where it was set, for people.
    """

    option: Option
    value: Any
    origin: str


@dataclass(frozen=True)
class Settings:
    """All options of a capture.

    Attributes:
        dialect: The dialect in which they were given.
        settings: Canonical name to setting, in the order of the options.
        own_words: What the options are called, if not as in the dialect.
    """

    dialect: Dialect
    settings: Mapping[str, Setting]
    own_words: OptionWords | None = None

    def value(self, name: str) -> Any:
        """The value of a canonical option."""
        return self.settings[name].value

    @property
    def words(self) -> OptionWords:
        """What the options are called where they were given."""
        if self.own_words is not None:
            return self.own_words
        words = self.dialect.words
        if self.value("start_step") is None and self.value("end_step") is None:
            return words
        # They decide, not wait.
        flags = {option: flag for option, flag in words.flags.items() if option != "wait"}
        return dataclasses.replace(words, flags=flags)

    @property
    def asks_only_for_memory(self) -> bool:
        """Whether the log of memory was asked for, and nothing about recording."""
        enabled = self.settings["enabled"]
        return (
            not enabled.value
            and enabled.origin.startswith("default")
            and bool(self.value("memory_log"))
        )

    def without_effect(self) -> list[str]:
        """Lines about flags that were given although nothing is recorded without another one."""
        if self.value("enabled") or self.value("memory_log"):
            return []
        switch = self.words.name("enabled")
        given = [
            setting.origin
            for name, setting in self.settings.items()
            if setting.origin == self.words.flags.get(name)
            and (name == "deepspeed_memory" or not self._is_shared(name))
        ]
        return [f"nothing is recorded: {', '.join(given)} needs {switch}"] if given else []

    def _is_shared(self, name: str) -> bool:
        return any(flag.is_shared for flag in self.dialect.flags if flag.option == name)

    def config(self, **more: Any) -> CaptureConfig:
        """The capture's options; `more` are fields that only code can set.

        Raises:
            ConfigError: Options contradict each other.
        """
        values = {
            setting.option.field: setting.value
            for setting in self.settings.values()
            if setting.option.field
        }
        try:
            return CaptureConfig(**{**values, **more})
        except ConfigError as error:
            raise ConfigError(self.words.translated(str(error))) from None


def resolve(
    dialect: Dialect,
    given: Mapping[str, tuple[object, str]],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Determine the value of each option from all sources.

    Args:
        dialect: The dialect whose defaults and rules apply.
        given: Canonical name to the value from the command line or code, and its origin.
        environment: Environment variables; those of the process by default.
        folder: Where the search for pyproject.toml begins; the working directory by default.

    Raises:
        ConfigError: A value is invalid, or pyproject.toml has an unknown option.
    """
    variables = os.environ if environment is None else environment
    path, table = project_table(folder)
    found: dict[str, Setting] = {}
    for name, option in OPTIONS.items():
        if name in given:
            value, origin = given[name]
        elif PREFIX + name.upper() in variables:
            value, origin = variables[PREFIX + name.upper()], PREFIX + name.upper()
        elif name in table:
            value, origin = table[name], str(path)
        elif name in dialect.defaults:
            found[name] = Setting(option, dialect.defaults[name], f"default of {dialect.name}")
            continue
        else:
            found[name] = Setting(option, option.default, "default")
            continue
        found[name] = Setting(option, option.parse(value, _place(origin, name)), origin)
    try:
        _apply_rules(dialect, found)
    except ConfigError as error:
        raise ConfigError(dialect.words.translated(str(error))) from None
    return Settings(dialect, found)


def _place(origin: str, name: str) -> str:
    """Where a value was given: flags and variables say the option themselves."""
    is_clear = origin.startswith("--") or origin == PREFIX + name.upper()
    return origin if is_clear else f"{origin} ({name})"


def _apply_rules(dialect: Dialect, found: dict[str, Setting]) -> None:
    for rule in dialect.rules:
        if found[rule.option].value == rule.unless:
            continue
        for name, value in rule.sets:
            if found[name].value != value:
                found[name] = Setting(OPTIONS[name], value, rule.reason)
    _apply_steps(found)
    output, upload = found["output_dir"], found["upload_to"]
    if is_url(str(output.value)):
        if upload.value is None:
            found["upload_to"] = Setting(upload.option, output.value, output.origin)
        found["output_dir"] = Setting(output.option, DEFAULT_OUTPUT_DIR, "output_dir is a URL")
    board = found["tensorboard_dir"]
    if found["tensorboard"].value and board.value is None:
        folder = Path(found["output_dir"].value) / dialect.tensorboard_folder
        found["tensorboard_dir"] = Setting(board.option, str(folder), "tensorboard and output_dir")


def _apply_steps(found: dict[str, Setting]) -> None:
    """Translate the first step and the end of the window to a schedule."""
    start, end = found["start_step"].value, found["end_step"].value
    if start is None and end is None:
        return
    active = found["active"].value
    if start is None:
        start = max(0, end - active)
    elif end is None:
        end = start + active
    if not 0 <= start < end:
        raise ConfigError(
            f"start_step={start} and end_step={end} leave no step to record: end_step is the first "
            "step after the window, so choose a greater one"
        )
    warmup = min(found["warmup"].value, start)
    values = {
        "skip_first": 0,
        "skip_first_wait": False,
        "wait": start - warmup,
        "warmup": warmup,
        "active": end - start,
        "repeat": 1,
    }
    for name, value in values.items():
        if found[name].value != value:
            found[name] = Setting(OPTIONS[name], value, "start_step and end_step")


def project_table(folder: Path | None = None) -> tuple[Path | None, dict[str, Any]]:
    """The nearest pyproject.toml, here or in a parent folder, and its table [tool.stepscope].

    Raises:
        ConfigError: The file is not valid TOML, or the table has an unknown option.
    """
    try:
        start = (folder or Path.cwd()).absolute()
    except OSError:  # the working directory has been removed
        return None, {}
    for candidate in (start, *start.parents):
        path = candidate / "pyproject.toml"
        if path.is_file():
            return path, _read_table(path)
    return None, {}


def _read_table(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    # Most projects do not mention us, and need not be parsed.
    if "stepscope" not in text:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise ConfigError(
                f"{path}: reading it needs the package tomli on Python 3.10: pip install tomli"
            ) from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    tool = document.get("tool")
    table = tool.get("stepscope", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.stepscope] is not a table")
    for key in table:
        if key.replace("-", "_") not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{path}: [tool.stepscope] has the unknown option {key!r}{hint}")
    return {key.replace("-", "_"): value for key, value in table.items()}


def strange_hints(environment: Mapping[str, str] | None = None) -> list[str]:
    """A line for each variable that is most likely misspelled, with the nearest option."""
    known = [PREFIX + name.upper() for name in OPTIONS]
    lines = []
    for name in strange_variables(environment):
        near = difflib.get_close_matches(name, known, n=1)
        rest = f": did you mean {near[0]}?" if near else "; stepscope doctor --config lists them"
        lines.append(f"the variable {name} is not an option{rest}")
    return lines


def strange_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """STEPSCOPE_* variables that are not options, and so most likely misspelled."""
    variables = os.environ if environment is None else environment
    known = {PREFIX + name.upper() for name in OPTIONS} | _NOT_OPTIONS
    return sorted(name for name in variables if name.startswith(PREFIX) and name not in known)
