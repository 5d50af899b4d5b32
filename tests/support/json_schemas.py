"""The script that writes JSON schemas, and the check of an output against its schema."""

from __future__ import annotations

import importlib.util
import sys

from tests.support.project import ROOT

_SPEC = importlib.util.spec_from_file_location("json_schemas", ROOT / "scripts" / "json_schemas.py")
assert _SPEC is not None
assert _SPEC.loader is not None
json_schemas = importlib.util.module_from_spec(_SPEC)
sys.modules["json_schemas"] = json_schemas  # where its dataclasses look for their module
_SPEC.loader.exec_module(json_schemas)


strict = json_schemas.strict
problems_of = json_schemas.problems_of
