"""Rules between options, and the normal form of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.capture.options.option import ConfigError
from stepscope.capture.options.schedule import Schedule
from stepscope.capture.together.ranks import parse_ranks
from stepscope.errors import UsageError

DEFAULT_OUTPUT_DIR = "profiles"
ACTIVITIES = ("cpu", "cuda", "xpu")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")
_WORKER = re.compile(r"[A-Za-z0-9_+=@-]{1,100}")

Values = dict[str, Any]
"""The options by name."""


def settle(values: Values) -> None:
    """Check the options against each other and normalise them in place.

    Args:
        values: All options, each already checked on its own.

    Raises:
        ConfigError: Options contradict each other.
    """
    # In this order: later rules see the results of earlier ones.
    _trial_step(values)
    _cycle(values)
    _max_steps(values)
    _ranks(values)
    _memory(values)
    _activities(values)
    _folders(values)
    for name in ("on_trace_ready", "trigger_when", "artifacts"):
        values[name] = _functions(name, values[name])


def _trial_step(values: Values) -> None:
    for name in ("max_pause_s", "max_window_bytes"):
        if values[name] is not None and values["warmup"] == 0:
            raise ConfigError(
                f"{name}={values[name]!r} needs a trial step before the window: "
                "give warmup=1 or more"
            )


def _cycle(values: Values) -> None:
    length, warmup, active = values["cycle_length"], values["warmup"], values["active"]
    if length is None or values["repeat"] != 0:
        return
    wait = length - warmup - active
    if wait < 0:
        raise ConfigError(
            f"cycle_length={length} is too short for warmup={warmup} and active={active}: give at "
            f"least {warmup + active}"
        )
    values["wait"] = wait


def _max_steps(values: Values) -> None:
    if values["max_steps"] == 0:
        raise ConfigError("max_steps=0 leaves nothing to do: give -1 for no limit")
    if values["max_steps"] > 0:
        names = ("skip_first", "wait", "warmup", "active", "repeat", "skip_first_wait")
        needed = Schedule(*(values[name] for name in names)).first_end()
        values["max_steps"] = max(values["max_steps"], needed)


def _ranks(values: Values) -> None:
    try:
        values["ranks"] = parse_ranks(values["ranks"])
    except UsageError as error:
        raise ConfigError(str(error)) from None
    for name, number in dict(values["coordinates"] or {}).items():
        if not str(name).isidentifier() or isinstance(number, bool) or number < 0:
            raise ConfigError(
                f"coordinates={values['coordinates']!r}: give names with whole numbers, such as "
                '{"dp": 3, "tp": 0}'
            )


def _memory(values: Values) -> None:
    if values["memory_timeline"] != "off" or values["memory_census"]:
        values["profile_memory"] = True
    if values["memory_timeline"] == "torch":
        values["record_shapes"] = values["with_stack"] = True
    steps: Sequence[int] | None = values["memory_history_steps"]
    if steps is None:
        return
    if len(steps) != 2 or not 0 <= steps[0] <= steps[1]:
        raise ConfigError(
            f"memory_history_steps={steps!r}: give the first and the last step, as (10, 20)"
        )
    values["memory_history_steps"] = tuple(steps)


def _activities(values: Values) -> None:
    activities = values["activities"]
    if activities == "auto":
        return
    words = (activities,) if isinstance(activities, str) else tuple(activities)
    for word in words:
        if word not in (*ACTIVITIES, "auto"):
            raise ConfigError(
                f"activities={word!r} is unknown: choose one of {', '.join(ACTIVITIES)}, auto"
            )
    if not words or "auto" in words:
        raise ConfigError(
            f"activities={activities!r}: give 'auto', or some of {', '.join(ACTIVITIES)}"
        )
    values["activities"] = tuple(dict.fromkeys(words))


def _folders(values: Values) -> None:
    name, output = values["run_name"], values["output_dir"]
    if name is not None and not _RUN_NAME.fullmatch(str(name)):
        raise ConfigError(
            f"run_name={name!r} is not a valid directory name: use up to 200 letters, digits and "
            ". _ + = @ -, beginning with a letter or digit"
        )
    if _is_url(output):
        values["upload_to"] = values["upload_to"] or output
        values["output_dir"] = DEFAULT_OUTPUT_DIR
    if values["upload_to"] is not None:
        _check_url("upload_to", values["upload_to"])
    worker = str(values["tensorboard_worker"])
    if not _WORKER.fullmatch(re.sub(r"\{(rank|host|pid)\}", "x", worker)):
        raise ConfigError(
            f"tensorboard_worker={worker!r} is not part of a file name: use letters, digits, _ - "
            "and {rank}, {host}, {pid}"
        )
    if _is_url(str(values["tensorboard_dir"] or "")):
        raise ConfigError(
            f"tensorboard_dir={values['tensorboard_dir']!r}: give a local folder; one inside the "
            "run's own is copied with it to upload_to"
        )
    try:
        values["output_dir"] = Path(values["output_dir"])
    except TypeError:
        raise ConfigError(f"output_dir={output!r} is not a path") from None


def _functions(name: str, value: object) -> tuple[Callable[..., Any], ...]:
    """One or more functions, as a tuple."""
    given = () if value is None else value if isinstance(value, Sequence) else (value,)
    for function in given:
        if not callable(function):
            raise ConfigError(
                f"{name}={function!r} cannot be called: give a function of one argument"
            )
    return tuple(given)


def _is_url(value: object) -> bool:
    if not isinstance(value, str) or "://" not in value:
        return False
    from stepscope.run.remote import is_url

    return is_url(value)


def _check_url(name: str, value: object) -> None:
    """Check that the URL can be written to in principle, without accessing the network."""
    if not isinstance(value, str) or not _is_url(value):
        raise ConfigError(f"{name}={value!r} is not a URL: give one such as s3://bucket/profiles")
    import fsspec

    try:
        fsspec.get_filesystem_class(value.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{name}={value!r} cannot be written to: {error}") from None
