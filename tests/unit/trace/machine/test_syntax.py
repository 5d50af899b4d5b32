"""The syntax of a function is found in its file, wherever the function stands there."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from stepscope.trace.machine.syntax import definition_of

SOURCE = '''
def outer():
    try:
        raise ValueError
    except ValueError:
        def inner(a: int) -> int:
            """Not `def other(b):`."""
            return a + 1
    return inner

@kept.append
@functools.cache
def decorated(a: int) -> int:
    return a + 2
'''


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.functools, module.kept = functools, []  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
    return module


def test_nested_and_decorated_functions(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(SOURCE)
    module = module_of(tmp_path / "loops.py")
    inner = definition_of(module.outer())
    assert (inner.name, inner.lineno, ast.unparse(inner.body[-1])) == ("inner", 6, "return a + 1")
    assert definition_of(module.kept[0].__wrapped__).name == "decorated"


@pytest.mark.parametrize(
    ("before", "after"),
    [("a + 1", "a - 1"), ("a + 1", "a + 3"), ("a: int", "b: int"), ("a + 1", "c + 1")],
)
def test_another_function_in_the_same_lines_is_not_taken(tmp_path, before, after) -> None:
    path = tmp_path / "changed.py"
    path.write_text(SOURCE)
    function = module_of(path).outer()
    path.write_text(SOURCE.replace(before, after) + "# longer")
    with pytest.raises(OSError, match="not in its file any more"):
        definition_of(function)


def test_a_function_whose_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    path.write_text(SOURCE)
    function = module_of(path).outer()
    path.write_text("\n" * 40)
    with pytest.raises(OSError, match=r"not in its file|could not find|lineno is out"):
        definition_of(function)
