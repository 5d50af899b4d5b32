"""JSON schemas of what `--format json` prints: writes `src/stepscope/report/schemas`.

    python scripts/json_schemas.py
    python scripts/json_schemas.py check PATH…   # does every verb's output on these inputs fit?

The fields of an object come from the dataclass of the result, or from `SHAPES` where `to_json`
makes an object of its own. Columns of tables are in no type: a schema keeps those that it has, and
the tests that compare outputs with schemas add new ones under STEPSCOPE_WRITE_SCHEMAS=1:

    STEPSCOPE_WRITE_SCHEMAS=1 pytest -n 0 tests/unit/report/test_schemas.py
    STEPSCOPE_WRITE_SCHEMAS=1 pytest -n 0 -m slow tests/conformance/test_schemas_real.py

A column never goes by itself. Readers must bear columns that they do not know.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import importlib
import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl
from click.testing import CliRunner

from stepscope.advice.finding import Finding
from stepscope.advice.rank.ladder import Ladder
from stepscope.advice.rank.summary import RankSummary
from stepscope.analysis.comparison.compare import StepChange
from stepscope.analysis.comparison.gate import Check as ComparisonCheck
from stepscope.analysis.comparison.repeated_runs import RunsChange
from stepscope.analysis.questions import QUESTIONS
from stepscope.analysis.record.summary import ExcludedSteps, StepSummary
from stepscope.commands.main import cli
from stepscope.doctor.check import Check
from stepscope.errors import StepscopeError
from stepscope.fleet.hangs.answer import HANGS
from stepscope.fleet.scaling import Scaling
from stepscope.fleet.what_if.tables import WhatIfOfOperations
from stepscope.memory.questions import (
    composition,
    fit,
    fragmentation,
    growth,
    oom,
    outside,
    settings,
    shard,
    timeline,
    totals,
)
from stepscope.memory.questions.names import ABOUT
from stepscope.opening.trials import TrialsRecord
from stepscope.report.findings import NOT_WRITTEN
from stepscope.report.outputs import JSON, OUTPUTS
from stepscope.report.render.json import NAMES, SCHEMA_VERSION
from stepscope.run.manifest import JobRecord, RankManifest
from stepscope.run.metrics import MetricsRecord
from stepscope.skew.rank_skew import RankSkew

FOLDER = Path(__file__).resolve().parents[1] / "src" / "stepscope" / "report" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
OF_MEMORY = {
    "overview": totals.totals,
    "peak": composition.peak,
    "held": composition.composition,
    "timeline": timeline.timeline,
    "growth": growth.growth,
    "oom": oom.out_of_memory,
    "fragmentation": fragmentation.fragmentation,
    "settings": settings.settings,
    "diff": composition.difference,
    "outside": outside.outside,
    "fit": fit.will_it_fit,
    "shard": shard.shard,
}
"""What answers each question about a snapshot."""


OTHER_RESULTS = {"what-if-ranks": WhatIfOfOperations}
"""What questions answer about inputs of another kind, with fields of its own."""


# -- shapes: a type, {field: shape}, [shape of the items], or one of these -------------------------


@dataclass(frozen=True)
class Maybe:
    """A shape, or null."""

    of: Any


@dataclass(frozen=True)
class Fields:
    """The fields of a dataclass, without some and with others; `optional` ones may be missing."""

    of: type
    without: tuple[str, ...] = ()
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hints:
    """The fields of a dataclass of this name, as `Fields` has them."""

    of: type
    name: str


ROWS = pl.DataFrame
INTEGERS = {"type": "object", "additionalProperties": {"type": "integer"}}
ANYTHING: dict[str, Any] = {}
SCOPE = {
    "steps": Maybe([int]),
    "devices": [int],
    "events": str,
    "counted": int,
    "excluded": dict[str, int],
    "window_step_ns?": Maybe(int),
    "run_step_ns?": Maybe(int),
}
PARTITION = {
    "basis": str,
    "steps": int,
    "total_ns": int,
    "parts": [{"name": str, "total_ns": int, "share": float}],
}
METRICS = {
    "path": str,
    "samples": int,
    "span_ns": Maybe(int),
    "gpus": ROWS,
    "host": dict[str, Any],
    "skipped_lines": int,
    "record": Maybe(MetricsRecord),
}
FINDING = Fields(Finding, NOT_WRITTEN, {"page": str})
SIDE = {
    "path": str,
    "basis": str,
    "steps": [int],
    "scope": {
        name if name == "steps" else f"{name.removesuffix('?')}?": shape
        for name, shape in SCOPE.items()
    },
    "step_ns": [float],
    "parts_basis": str,
    "operators_basis": str,
}


def shapes() -> Iterator[tuple[str, Any]]:
    """The name of each schema, and the shape of what it describes."""
    for question in (*QUESTIONS, HANGS):
        function = question._function()
        more = {"question": (question.name,), "path": str, "scope": SCOPE}
        found = _of_result(function, more)
        if (other := OTHER_RESULTS.get(question.name)) is not None:
            known = _hints(found.of)
            added = {f"{name}?": of for name, of in _hints(other).items() if name not in known}
            found = dataclasses.replace(found, more={**added, **found.more})
        yield f"show-{question.name}", found
    for name in ABOUT:
        more = {"question": (name,), "path": str, "kind": str}
        yield f"memory-{name}", _of_result(OF_MEMORY[name], more, without=("scope",))
    yield "report", REPORT
    yield "samples", _of_result(_function_of("python-functions"), {**_SAMPLES, "scope": SCOPE})
    overview = _of_result(
        OF_MEMORY["overview"], {"rank": int, "path": str, "verdict": str}, ("scope",)
    )
    yield (
        "memory-report",
        {
            "path": str,
            "verdict": str,
            "rank_shown": int,
            "findings": [FINDING],
            "snapshots": [overview],
        },
    )
    yield from SHAPES.items()
    for kind, outputs in OUTPUTS.items():
        name = NAMES.get(kind, kind)
        if name not in {*SHAPES, *_MADE_ABOVE} and any(one.format is JSON for one in outputs):
            yield name, _taken_by(importlib.import_module(f"stepscope.report.{kind}").to_json)


_MADE_ABOVE = ("show", "memory", "report", "samples", "memory-report", "rows")
"""Results whose shapes follow from questions, or that are no objects of their own."""


def _taken_by(to_json: Any) -> type:
    """The type of a result that is printed field by field: what its `to_json` takes."""
    (parameter,) = inspect.signature(to_json).parameters.values()
    found: type = _resolve(parameter.annotation, sys.modules[to_json.__module__])
    return found


_SAMPLES = {"path": str, "verdict": str}


def _function_of(name: str) -> Any:
    return next(one for one in QUESTIONS if one.name == name)._function()


def _of_result(function: Any, more: Mapping[str, Any], without: tuple[str, ...] = ()) -> Fields:
    """The fields of what a function returns that are shown."""
    result = _resolve(
        inspect.signature(function).return_annotation, sys.modules[function.__module__]
    )
    hidden = [one.name for one in dataclasses.fields(result) if not one.metadata.get("show", True)]
    return Fields(result, (*hidden, *without), more)


RANK = {
    "rank": int,
    "state": Maybe(str),
    "ended": Maybe(str),
    "windows": Hints(RankManifest, "windows"),
    "capture_problems": Hints(RankManifest, "problems"),
    "step_ns": Maybe(int),
    "purpose": Hints(RankSummary, "purpose"),
    "together_ns": Maybe(int),
    "ladder": Fields(Ladder, more={"next_limit": str}),
    "step_record": Maybe(
        Fields(
            StepSummary,
            ("excluded",),
            {
                "steps": None,
                "scope": {"steps": [int], "excluded": ExcludedSteps},
                "partition": PARTITION,
            },
        )
    ),
    "trace": Maybe(
        {
            "path": Maybe(str),
            "scope": SCOPE,
            "partition": PARTITION,
            "steps": ROWS,
            "critical_path?": PARTITION,
            "compute": Hints(RankSummary, "compute"),
        }
    ),
    "metrics": Maybe(METRICS),
    "notes": [str],
}
REPORT = {
    "path": str,
    "job": Maybe(JobRecord),
    "verdict": str,
    "rank_shown": int,
    "ranks": [RANK],
    "rank_skew": Maybe(RankSkew),
    "between_ranks": Maybe(
        {
            "straggler": Maybe(int),
            "steps": int,
            "clock": str,
            "clock_reason": str,
            "matched_by": str,
            "ranks": ROWS,
            "scope": SCOPE,
        }
    ),
    "odd_parts": ROWS,
    "findings": [FINDING],
    "trials": Maybe(TrialsRecord),
    "problems": [str],
    "notes": [str],
}
SHAPES: dict[str, Any] = {
    "compare": {
        "a": SIDE,
        "b": SIDE,
        "step": StepChange,
        "changes": ROWS,
        "differences": [str],
        "notes": [str],
        "runs": RunsChange,
        "checks": [ComparisonCheck],
        "failed": Maybe(str),
        "unclear": Maybe(str),
        "scaling?": Fields(Scaling, more={"scope": SCOPE}),
    },
    "run": {
        "path": str,
        "ranks": [
            {
                "rank": int,
                "directory": str,
                "steps": Maybe(int),
                "metrics": Maybe(METRICS),
                "windows": [{"window": int, "trace": Maybe(str), "size_bytes": Maybe(int)}],
            }
        ],
        "external": [
            {
                "tool": str,
                "directory": str,
                "files": [{"path": str, "size_bytes": int}],
                "problems": [str],
            }
        ],
        "problems": [str],
        "unrelated": int,
    },
    "metrics": METRICS,
    "doctor": {"worst": str, "counts": dict[str, int], "checks": [Check]},
    "config": {"dialect": str, "options": [{"name": str, "value": ANYTHING, "origin": str}]},
    "dialects": {
        "dialects": [
            {
                "name": str,
                "about": str,
                "step_unit": str,
                "ranks": str,
                "flags": [{"names": [str], "option": str, "default": ANYTHING, "form": str}],
                "defaults": dict[str, Any],
                "rules": [
                    {"option": str, "unless": ANYTHING, "sets": dict[str, Any], "reason": str}
                ],
                "needs": [str],
                "files": [str],
            }
        ]
    },
    "stores": {
        "stores": [
            {
                "place": str,
                "source": Maybe(str),
                "size_bytes": int,
                "derived_bytes": int,
                "used_unix_s": int,
                "state": str,
                "trace_is_gone": bool,
            }
        ]
    },
    "fixes": {
        "fixes": [
            {
                "name": str,
                "title": str,
                "answers": [str],
                "applies_to": str,
                "risks": str,
                "group": str,
                "only_if_asked": bool,
            }
        ]
    },
    "demo": {
        "before": {"run": str, "step_ns": int, "had_busy_cpus": bool},
        "after": {"run": str, "step_ns": int, "had_busy_cpus": bool},
        "first_finding": str,
        "predicted_step_ns": int,
        "predicted_share": float,
        "measured_share": float,
        "measured_share_low": float,
        "measured_share_high": float,
        "prediction_error": float,
        "workers": int,
        "same_loss": bool,
    },
}


# -- from shapes to schemas ------------------------------------------------------------------------


def schema_of(name: str, shape: Any) -> dict[str, Any]:
    """The schema of one kind of output."""
    kind = name if name.startswith("memory-report") else name.split("-", maxsplit=1)[0]
    whole = dict(_schema(shape))
    head = {"format": {"const": f"stepscope-{kind}"}, "schema_version": {"const": SCHEMA_VERSION}}
    whole["properties"] = {**whole["properties"], **head}
    whole["required"] = sorted({*whole["required"], *head})
    return {"$schema": DIALECT, "title": f"stepscope {name.replace('-', ' ', 1)}", **whole}


def _schema(shape: Any) -> dict[str, Any]:
    if shape is ANYTHING or shape is Any:
        return {}
    if isinstance(shape, Maybe):
        return _or_null(_schema(shape.of))
    if isinstance(shape, tuple):
        return {"enum": list(shape)}
    if isinstance(shape, list):
        return {"type": "array", "items": _schema(shape[0])}
    if isinstance(shape, dict):
        return _object({name: _schema(one) for name, one in shape.items() if one is not None})
    if isinstance(shape, Hints):
        return _schema(_hints(shape.of)[shape.name])
    if isinstance(shape, Fields):
        found = {name: hint for name, hint in _hints(shape.of).items() if name not in shape.without}
        return _schema({**found, **shape.more})
    return _of_type(shape)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Fields whose name ends with "?" may be missing. A later version may have others, too."""
    return {
        "type": "object",
        "properties": {name.removesuffix("?"): one for name, one in sorted(properties.items())},
        "required": sorted(name for name in properties if not name.endswith("?")),
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str) and len(schema) == 1:
        return {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


_PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # JSON has no NaN
    str: {"type": "string"},
    type(None): {"type": "null"},
    Path: {"type": "string"},
    object: {},
    pl.DataFrame: {"type": "array", "items": {"type": "object", "properties": {}}},
}


def _of_type(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return copy.deepcopy(_PLAIN[hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        rest = [one for one in inner if one is not type(None)]
        found = [_of_type(one) for one in rest]
        several = {} if {} in found else {"anyOf": found} if len(found) > 1 else found[0]
        return _or_null(several) if len(rest) < len(inner) else several
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is tuple and Ellipsis not in inner:
        return {"type": "array", "prefixItems": [_of_type(one) for one in inner], "items": False}
    if origin in (tuple, list, set, frozenset) or (
        isinstance(origin, type) and issubclass(origin, Sequence)
    ):
        return {"type": "array", "items": _of_type(inner[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of_type(inner[1])}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}
    if dataclasses.is_dataclass(hint):
        return _schema(_hints(hint))
    raise TypeError(f"no schema for {hint!r}")


def _hints(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass, those of its bases first."""
    homes = {
        name: sys.modules[base.__module__]
        for base in reversed(kind.__mro__)
        for name in vars(base).get("__annotations__", {})
    }
    return {one.name: _resolve(one.type, homes[one.name]) for one in dataclasses.fields(kind)}


def _resolve(annotation: Any, module: types.ModuleType) -> Any:
    """A type from its text, also where the module imports it for type checkers alone."""
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {**vars(module), **_names_for_type_checkers(module)})


@functools.cache
def _names_for_type_checkers(module: types.ModuleType) -> dict[str, Any]:
    """What a module imports for type checkers alone."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for one in node.body:
                if isinstance(one, ast.ImportFrom) and one.module:
                    home = importlib.import_module(one.module)
                    names |= {
                        each.asname or each.name: getattr(home, each.name) for each in one.names
                    }
    return names


# -- columns of tables -----------------------------------------------------------------------------


def _tables(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of a schema, by where they are in it."""
    for key, value in schema.items():
        if isinstance(value, dict):
            if value.get("type") == "array" and _is_row(value.get("items")):
                yield key, value["items"]["properties"]
            for where, found in _tables(value):
                yield f"{key}/{where}", found
        elif isinstance(value, list):
            for at, one in enumerate(value):
                for where, found in _tables(one) if isinstance(one, dict) else ():
                    yield f"{key}/{at}/{where}", found


def _is_row(items: Any) -> bool:
    return isinstance(items, dict) and items.get("type") == "object" and "required" not in items


def keep_columns(schema: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Give the tables of a schema the columns that an earlier one has."""
    known = dict(_tables(earlier))
    for where, columns in _tables(schema):
        columns.update(known.get(where, {}))


def add_columns(schema: dict[str, Any], value: Any) -> bool:
    """Add the columns of the tables of an output; whether there are new ones."""
    added = False
    for one in (*schema.get("anyOf", ()), schema):
        if isinstance(value, dict):
            for name, inner in one.get("properties", {}).items():
                added |= name in value and add_columns(inner, value[name])
        elif isinstance(value, list) and one.get("type") == "array":
            items = one.get("items")
            for row in value if isinstance(items, dict) else ():
                added |= _add_row(items, row) if _is_row(items) else add_columns(items, row)
    return added


def _add_row(items: dict[str, Any], row: dict[str, Any]) -> bool:
    """Add a row's columns, and the types of their values. Each may be null."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    names |= {list: "array", dict: "object"}
    added = False
    for column, value in row.items():
        added |= column not in items["properties"]
        known = items["properties"].setdefault(column, {})
        if value is None:
            continue
        kind = names[type(value)]
        earlier = set(known.get("type", ()))
        if kind not in earlier and not (kind == "integer" and "number" in earlier):
            added |= bool(earlier)
            earlier -= {"integer"} if kind == "number" else set()
            known["type"] = sorted({*earlier, kind, "null"})
    return added


# -- outputs ---------------------------------------------------------------------------------------


def commands(path: str) -> Iterator[list[str]]:
    """Every command that prints JSON about an input; some of them refuse it."""
    yield ["report", path]
    yield ["info", path]
    yield ["compare", path, path]
    yield ["hangs", path]
    yield from (["show", question.name, path] for question in QUESTIONS)
    for name in ABOUT:
        more = {"diff": ["--before-at", "start"], "shard": ["--target", "2"]}
        yield ["memory", path, name, *more.get(name, [])]


WITHOUT_INPUT = (
    ["doctor"],
    ["doctor", "--config"],
    ["dialects"],
    ["cache", "list"],
    ["try", "--list"],
)


def outputs(command: Sequence[str]) -> list[dict[str, Any]]:
    """What a command prints; nothing if it refuses its input."""
    done = CliRunner().invoke(cli, [*command, "--format", "json"])
    if done.exception is not None and not isinstance(done.exception, (StepscopeError, SystemExit)):
        raise done.exception
    if not done.stdout.strip():
        return []
    found = json.loads(done.stdout)
    return found if isinstance(found, list) else [found]


def name_of(document: Mapping[str, Any]) -> str:
    """The schema that describes an output."""
    kind = str(document["format"]).removeprefix("stepscope-")
    return f"{kind}-{document['question']}" if kind in {"show", "memory"} else kind


def written(name: str) -> dict[str, Any]:
    """A schema of the package; empty if there is none."""
    file = FOLDER / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def current() -> dict[str, dict[str, Any]]:
    """All schemas as they should be, with the columns that those of the package have."""
    found = {}
    for name, shape in shapes():
        found[name] = schema_of(name, shape)
        keep_columns(found[name], written(name))
    return found


def write(name: str, schema: Mapping[str, Any]) -> None:
    """Write a schema to the package."""
    text = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


# -- checking --------------------------------------------------------------------------------------


def strict(schema: Any) -> Any:
    """A schema whose objects have no field that it does not name; rows of tables may."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(one) for name, one in schema.items()}
    if isinstance(schema.get("properties"), dict) and isinstance(schema.get("required"), list):
        found["additionalProperties"] = False
    return found


def problems_of(document: dict[str, Any], schema: dict[str, Any] | None = None) -> list[str]:
    """How an output differs from its schema; fields and columns that the schema lacks, too."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    name = name_of(document)
    schema = schema or written(name)
    found = [
        f"{'/'.join(map(str, one.absolute_path))}: {one.message[:200]}"
        for one in Draft202012Validator(strict(schema)).iter_errors(document)
    ]
    if add_columns(schema, document):
        if "STEPSCOPE_WRITE_SCHEMAS" in os.environ:
            write(name, schema)
        else:
            found.append("columns that the schema lacks: see scripts/json_schemas.py")
    return found


def check(paths: Sequence[Path]) -> int:
    """Ask every verb about inputs, and print how many outputs each has and what does not fit."""
    wrong = 0
    for path in paths:
        count = 0
        for command in commands(str(path)):
            for document in outputs(command):
                count += 1
                for problem in problems_of(document):
                    wrong += 1
                    print(f"{' '.join(command)}: {problem}")
        print(f"{count:4} outputs  {path}", flush=True)
    print(f"{wrong} problems in the outputs on {len(paths)} inputs")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        from same_answers import readable

        sys.exit(check([one for path in sys.argv[2:] for one in readable(Path(path))]))
    for each, its_schema in current().items():
        write(each, its_schema)
