"""Machine code is kept for the next process, and never taken from anybody else."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir
from tests.support.watched import Watched

from stepscope.terminal import working
from stepscope.trace.machine import build
from stepscope.trace.machine.calling import CompiledFunction
from stepscope.trace.machine.instructions import Instruction
from stepscope.trace.machine.kinds import I64, UntranslatableError
from stepscope.trace.machine.translate import translate

ADDED = 3


def add(first: int) -> int:
    return first + ADDED


def last_above(values: npt.NDArray[np.int64], limit: int) -> int:
    """The place of the last value above a limit, -1 for none."""
    found = -1
    for place in range(len(values)):
        if values[place] > limit or (place & 1 and values[place] == limit):
            found = place
    return found


@pytest.fixture
def kept(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path))
    return tmp_path


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """Names of the functions that were compiled, and not found."""
    names = []
    compile_it = build._compiled

    def noted(function, machine):
        names.append(function.function.__name__)
        return compile_it(function, machine)

    monkeypatch.setattr(build, "_compiled", noted)
    return names


def test_code_is_compiled_once(kept, made):
    assert [CompiledFunction(add)(number) for number in (1, 2)] == [4, 5]
    assert made == ["add"]
    (file,) = kept.iterdir()
    assert file.stat().st_mode & 0o022 == 0


def test_code_is_compiled_anew_if_a_constant_that_it_uses_changes(kept, made, monkeypatch):
    assert CompiledFunction(add)(1) == 4
    monkeypatch.setattr(sys.modules[__name__], "ADDED", 10)
    assert CompiledFunction(add)(1) == 11
    assert made == ["add", "add"]


@pytest.mark.parametrize("keep", [0, 10, 40, 100, -1])
def test_damaged_code_is_compiled_anew(kept, made, keep):
    CompiledFunction(add)(1)
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    assert CompiledFunction(add)(1) == 4
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]


def test_changed_code_is_not_run(kept, made):
    CompiledFunction(add)(1)
    (file,) = kept.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]


@pytest.mark.parametrize("longest", [0, 10**9])
def test_long_functions_do_what_short_ones_do(kept, monkeypatch, longest):
    monkeypatch.setattr(build, "_LONG_CHARACTERS", longest)
    values = np.array([5, 2, 9, 2, 1])
    found = [CompiledFunction(last_above)(values, limit) for limit in range(11)]
    assert found == [last_above(values, limit) for limit in range(11)]


def test_long_functions_take_fewer_passes_where_llvmlite_has_them(kept, monkeypatch):
    asked = []
    few = build._few_passes
    monkeypatch.setattr(build, "_few_passes", lambda: asked.append(few()) or asked[-1])
    CompiledFunction(last_above)(np.array([1]), 0)
    assert not asked
    monkeypatch.setattr(build, "_LONG_CHARACTERS", 0)
    monkeypatch.setattr(build, "_FEW_PASSES", ("sroa", "unheard_of"))
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(kept / "other"))
    assert CompiledFunction(last_above)(np.array([1, 3]), 0) == 1
    assert asked == [None]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_code_that_others_can_write_is_not_run(kept, made):
    CompiledFunction(add)(1)
    (file,) = kept.iterdir()
    file.chmod(0o666)
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_code_of_another_user_is_not_run(kept, made, monkeypatch):
    CompiledFunction(add)(1)
    owner = Path(build.__file__).stat().st_uid
    (file,) = kept.iterdir()
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(file, owner + 4321, -1)
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]


def test_without_a_place_every_process_compiles(made, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path / "file" / "below"))
    assert [CompiledFunction(add)(1), CompiledFunction(add)(1)] == [4, 4]
    assert made == ["add", "add"]


def test_it_is_known_that_code_cannot_be_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path / "new" / "below"))
    assert not build.compiles_anew()
    (tmp_path / "new").write_text("")
    assert build.compiles_anew()


def test_a_path_that_cannot_be_is_no_place_and_no_error(made, monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path / ("long" * 100) / "deeper"))
    assert CompiledFunction(add)(1) == 4
    build.compiles_anew()


def test_whoever_watches_is_told_of_compiling_and_only_then(kept, monkeypatch):
    line = Watched()
    monkeypatch.setattr(working, "current_line", lambda: line)
    assert [CompiledFunction(add)(1), CompiledFunction(add)(2)] == [4, 5]
    assert line.stages == ["Compiling, once per installation"]
    assert line.left == 1


def test_a_read_only_package_keeps_its_code_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("STEPSCOPE_COMPILED", raising=False)
    monkeypatch.setattr(build, "user_cache", lambda: tmp_path)
    monkeypatch.setattr(build, "__file__", str(tmp_path / "no-folder.py" / "build.py"))
    (tmp_path / "no-folder.py").write_text("")
    assert list(build._directories())[-1] == tmp_path / "machine-code"
    build._keep("add.o", b"k" * 32, b"code")
    assert (tmp_path / "machine-code" / "add.o").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_code_in_a_directory_that_others_can_write_is_not_run(kept, made):
    CompiledFunction(add)(1)
    kept.chmod(0o777)
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]
    assert build.compiles_anew()
    kept.chmod(0o755)
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]
    assert not build.compiles_anew()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_a_link_or_a_pipe_is_no_kept_code(kept, made, tmp_path_factory):
    CompiledFunction(add)(1)
    (file,) = kept.iterdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "code"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert CompiledFunction(add)(1) == 4
    file.unlink()
    os.mkfifo(file)
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add", "add"]


def test_the_directory_is_made_so_that_others_cannot_write_to_it(made, monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_COMPILED", str(tmp_path / "new" / "below"))
    before = os.umask(0)
    try:
        assert [CompiledFunction(add)(1), CompiledFunction(add)(1)] == [4, 4]
    finally:
        os.umask(before)
    assert made == ["add"]


# -- the key says as much as the text for LLVM -----------------------------------------------------


def generated(factor: int) -> Instruction:
    """An instruction whose text depends on a number that its own code does not hold."""

    def generate(builder, arguments):
        return builder.mul(arguments[0], ir.Constant(I64.llvm_type, factor))

    return Instruction("multiplied", (I64,), I64, generate)


multiplied = cast("Callable[[int], int]", generated(3))


def multiplies(values: npt.NDArray[np.int64]) -> int:
    return multiplied(values[0])


def test_code_is_compiled_anew_if_an_instruction_changes(kept, made, monkeypatch):
    def call() -> Any:
        return CompiledFunction(multiplies)(np.array([2]))

    assert [call(), call()] == [6, 6]
    monkeypatch.setattr(sys.modules[__name__], "multiplied", generated(5))
    assert [call(), call()] == [10, 10]
    assert made == ["multiplies"] * 2


PROGRAM = """
import random
import numpy as np, numpy.typing as npt
from stepscope.trace.machine import instructions
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import jit_helper, jit_inline
{shadow}
LIMIT = {constant}
choose = {extreme}
convert = {conversion}
element = instructions.{instruction}
@{helper}
def helped(values: npt.NDArray[np.{dtype}], number: int) -> int:
    return int(values[0]) + number {operator} {literal}
def entry(values: npt.NDArray[np.{dtype}], number: int) -> int:
    first = int(convert(element(number, {literal})))
    return choose(first, helped(values, number)) + int({narrow}(LIMIT))
"""
SLOTS: dict[str, tuple[str, ...]] = {
    "shadow": ("", "min, max = max, min", "def min(a, b): return a", "import math as np_like"),
    "constant": (
        "3",
        *map(str, range(4, 30)),
        "True",
        "3.0",
        "2**70",
        "np.uint64(3)",
        "np.int64(3)",
        "'3'",
    ),
    "extreme": ("min", "max", "sum", "random.choice"),
    "conversion": ("int", "float", "np.int64", "np.uint64", "np.int32"),
    "instruction": ("byte_at", "int_at", "long_at"),
    "helper": ("jit_helper", "jit_inline", "staticmethod"),
    "dtype": ("int64", "int32", "uint64", "bool_"),
    "operator": ("+", "-", "&"),
    "literal": ("1", *map(str, range(2, 20)), "-1"),
    "narrow": ("np.int64", "np.uint64", "int"),
}


def test_programs_with_one_key_have_one_text(tmp_path) -> None:
    """A change of anything at random: where the text for LLVM changes, so does its key."""
    dice = random.Random(45)
    target = build._this_machine()
    usual = {slot: choices[0] for slot, choices in SLOTS.items()}
    texts: dict[bytes, set[str]] = {}
    for number in range(400):
        changed = dice.sample(list(SLOTS), dice.choice((0, 1, 1, 2, 4)))
        path = tmp_path / str(number) / "changing.py"
        path.parent.mkdir()
        slots = usual | {slot: dice.choice(SLOTS[slot]) for slot in changed}
        path.write_text(PROGRAM.format_map(slots))
        spec = importlib.util.spec_from_file_location("changing", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with contextlib.suppress(UntranslatableError):
            spec.loader.exec_module(module)
            function = CompiledFunction(module.entry)
            key = build._key_of(function, target)
            assert key is not None
            try:
                text = str(translate(function))
            except UntranslatableError:
                text = "refused"
            texts.setdefault(key, set()).add(text)
    assert len(texts) > 100
    assert len(set.union(*texts.values())) > 50
    assert {key: found for key, found in texts.items() if len(found) > 1} == {}


def test_code_is_not_kept_if_the_compiler_was_upgraded_while_it_was_imported(
    kept, made, monkeypatch
):
    CompiledFunction(add)(1)
    content = {file: file.read_bytes() for file in kept.iterdir()}
    monkeypatch.setattr(
        build, "FILES_AT_IMPORT", {**build.FILES_AT_IMPORT, Path(__file__): (1, 2, 3)}
    )
    assert build._digest_of_package() is None
    monkeypatch.setattr(build, "_TRANSLATION", build._digest_of_package())
    assert CompiledFunction(add)(1) == 4
    assert made == ["add", "add"]
    assert {file: file.read_bytes() for file in kept.iterdir()} == content
