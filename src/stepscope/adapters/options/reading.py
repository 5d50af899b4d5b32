"""Reads the options back from parsed arguments, or from any namespace with a dialect's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stepscope.adapters.options.dialects import DIALECTS, find_dialect
from stepscope.adapters.options.settings import Settings, resolve
from stepscope.errors import UsageError

DIALECT = "stepscope_dialect"
"""Attribute of parsed arguments: their dialect."""
GIVEN = "stepscope_given"
"""Attribute of parsed arguments: those that were given on the command line."""
_WORDS = ("model_name", "train_type")


def settings_of(args: Any, dialect: str | None = None) -> Settings:
    """The settings that parsed arguments stand for, each with its origin.

    Raises:
        UsageError: `args` did not come from `add_arguments`, and no dialect is given.
        ConfigError: A value is invalid.
    """
    values = values_of(args)
    noted = values.get(DIALECT)
    name = dialect or noted or _recognised(values)
    if name is None:
        raise UsageError(
            "these arguments did not come from stepscope.add_arguments: name their dialect, "
            "such as dialect='megatron'"
        )
    chosen = find_dialect(name)
    is_ours = name == noted
    defaults = resolve(chosen, {}) if is_ours else None
    flagged = set(values.get(GIVEN, ()))
    given: dict[str, tuple[object, str]] = {}
    for flag in chosen.flags:
        value = values.get(flag.destination)
        if value is None or value == []:
            continue
        if flag.destination in flagged:
            origin = flag.names[0]
        elif defaults is None or value != flag.spoken(defaults.value(flag.option)):
            origin = f"arguments.{flag.destination}"
        else:
            continue
        given[flag.option] = (flag.meant(value), origin)
    for needed in chosen.needs:
        if values.get(needed) is False:
            given["enabled"] = (False, f"arguments.{needed}")
    return resolve(chosen, given)


def is_parsed(args: Any) -> bool:
    """Whether these arguments come from a parser to which `add_arguments` was applied."""
    return DIALECT in values_of(args)


def _recognised(values: Mapping[str, Any]) -> str | None:
    """The dialect that these names identify, or None."""
    for dialect in DIALECTS.values():
        if dialect.known_by and all(name in values for name in dialect.known_by):
            return dialect.name
    return None


def values_of(args: Any) -> Mapping[str, Any]:
    """A namespace, mapping or object as a mapping."""
    if isinstance(args, Mapping):
        return args
    if dataclasses.is_dataclass(args) and not isinstance(args, type):
        return {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    try:
        values: dict[str, Any] = vars(args)
    except TypeError:
        raise UsageError(f"{type(args).__name__} has no named arguments") from None
    return values


def words_of(args: Any) -> dict[str, str]:
    """The script's names for its model and its training, if the arguments have them."""
    if args is None:
        return {}
    values = values_of(args)
    return {name: str(values[name]) for name in _WORDS if values.get(name)}
