"""The script that writes JSON schemas, and the check of an output against its schema."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.project import ROOT

_SPEC = importlib.util.spec_from_file_location("json_schemas", ROOT / "scripts" / "json_schemas.py")
assert _SPEC is not None
assert _SPEC.loader is not None
json_schemas = importlib.util.module_from_spec(_SPEC)
sys.modules["json_schemas"] = json_schemas  # where its dataclasses look for their module
_SPEC.loader.exec_module(json_schemas)


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
    name = json_schemas.name_of(document)
    schema = schema or json_schemas.written(name)
    found = [
        f"{'/'.join(map(str, one.absolute_path))}: {one.message[:200]}"
        for one in Draft202012Validator(strict(schema)).iter_errors(document)
    ]
    if json_schemas.add_columns(schema, document):
        if "STEPSCOPE_WRITE_SCHEMAS" in os.environ:
            json_schemas.write(name, schema)
        else:
            found.append("columns that the schema lacks: see scripts/json_schemas.py")
    return found
