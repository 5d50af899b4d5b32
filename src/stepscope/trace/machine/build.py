"""Makes machine code of compiled functions, and keeps it for the next process."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from stepscope.opening.user_cache import user_cache
from stepscope.run.files import write_atomically
from stepscope.terminal.working import COMPILING, stage
from stepscope.trace.machine import FILES_AT_IMPORT, files_now
from stepscope.trace.machine.ending import takes_arrays
from stepscope.trace.machine.functions import JitFunction, called_by, meaning_of
from stepscope.trace.machine.translate import translate

_DIGEST_BYTES = 32
_LONG_CHARACTERS = 20_000
"""Functions that are longer than this in LLVM's language branch at each step.

Most of what LLVM could do finds nothing to improve in them, and takes long."""
_FEW_PASSES = ("always_inliner", "sroa", "instruction_combine", "simplify_cfg")


@dataclass(frozen=True)
class MachineCode:
    """Machine code in memory.

    Attributes:
        engine: Keeps the code in memory.
    """

    engine: Any
    address: int


def machine_code_of(function: JitFunction) -> MachineCode:
    """Returns the machine code of a function and all that it calls, for this processor.

    It is kept next to this module, or in the user's cache directory if the package is read-only;
    `STEPSCOPE_COMPILED` moves it. Without a place, each process makes it again, which takes about
    half a second for the scanner.

    Raises:
        UntranslatableError: A function uses something that cannot be translated.
        OSError: The source code is not available.
    """
    target = _this_machine()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.processor, features=target.features, opt=2, codemodel="jitdefault", jit=True
    )
    key = _key_of(function, target)
    name = f"{function.name}.{target.digest}.o"
    content = None if key is None else _kept(name, key)
    if content is None:
        with stage(COMPILING):
            content = _compiled(function, machine)
        if key is not None and key == _key_of(function, target):
            _keep(name, key, content)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return MachineCode(engine, engine.get_function_address(function.name))


@dataclass(frozen=True)
class _Target:
    triple: str
    processor: str
    features: str

    def __str__(self) -> str:
        return f"{self.triple} {self.processor} {self.features}"

    @property
    def digest(self) -> str:
        """Names the target in names of files."""
        return hashlib.blake2b(str(self).encode(), digest_size=6).hexdigest()


@functools.cache
def _this_machine() -> _Target:
    """The machine that this process runs on. LLVM takes a while to say, and is asked once."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return _Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def _can_be_written(directory: Path) -> bool:
    """Whether a directory, which may not exist yet, can be written to."""
    places = (directory, *directory.parents)
    there = next(path for path in places if os.path.exists(path))  # noqa: PTH110 - raises nothing
    if there == directory and _has_owners():
        try:
            with _trusted_directory(directory):
                pass
        except OSError:
            return False
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _compiled(function: JitFunction, machine: Any) -> bytes:
    text = str(translate(function))
    module = llvm.parse_assembly(text)
    module.verify()
    # Higher levels compile up to twice as long, and save too little to notice on one file.
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    if takes_arrays(function):
        # Loops over arrays decide at each element how to go on: neither can take several at once.
        tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager()
    if len(text) > _LONG_CHARACTERS:
        passes = _few_passes() or passes
    passes.run(module, builder)
    content: bytes = machine.emit_object(module)
    return content


def _few_passes() -> Any | None:
    """Returns passes that take a sixth of the time of all; None if llvmlite is too old for them."""
    passes = llvm.create_new_module_pass_manager()
    names = [f"add_{name}_pass" for name in _FEW_PASSES]
    if not all(hasattr(passes, name) for name in names):
        return None
    for name in names:
        getattr(passes, name)()
    return passes


# -- code that is kept -----------------------------------------------------------------------------


def _digest_of(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest()


def _digest_of_package() -> bytes | None:
    """Returns a digest of this package as this process imported it; None if nobody can tell."""
    files = sorted(FILES_AT_IMPORT)
    content = b"".join(file.name.encode() + b"\0" + file.read_bytes() + b"\0" for file in files)
    return _digest_of(content) if files and files_now() == FILES_AT_IMPORT else None


_TRANSLATION = _digest_of_package()


def _key_of(function: JitFunction, target: _Target) -> bytes | None:
    """Returns a digest of all that the text for LLVM is made from in this process.

    So equal keys mean equal texts: the translator's own files, the code of each function (whose
    source `definition_of` only takes if it compiles to that code), its types, and the meaning of
    each name, without which `Code.found` refuses it. The text itself as the key would cost more
    than it saves: of the five functions of a report 126 to 250 ms of CPU time, where this takes
    3 ms and loading the code 12 ms.
    None if the files of this package changed while it was imported, or cannot be found.
    """
    if _TRANSLATION is None:
        return None
    digest = hashlib.blake2b(_TRANSLATION, digest_size=_DIGEST_BYTES)
    digest.update(f"{llvmlite.__version__} {llvm.llvm_version_info} {target}".encode())
    reached = [function]
    for each in reached:
        code = each.function.__code__
        digest.update(code.co_code + code.co_linetable)
        kinds = [kind.name for kind in (*each.takes.values(), each.gives)]
        named = {name: each.named(name) for name in code.co_names}
        means = [(name, meaning_of(each, value)) for name, value in named.items()]
        names = (code.co_varnames, code.co_freevars, code.co_firstlineno)
        known = (each.name, each.is_inlined, [*each.takes], kinds, means, names)
        digest.update(repr((known, code.co_consts)).encode())
        called = (called_by(each, value) for value in named.values())
        reached += [one for one in called if one is not None and one not in reached]
    return digest.digest()


def _directories() -> Iterator[Path]:
    """Yields where code is kept, the preferred place first."""
    chosen = os.environ.get("STEPSCOPE_COMPILED")
    if chosen:
        yield Path(chosen)
        return
    if sys.flags.dont_write_bytecode == 0:
        yield Path(__file__).parent / "__pycache__"
    yield user_cache() / "machine-code"


def _kept(name: str, key: bytes) -> bytes | None:
    """Returns the content of a kept object file, unless it is another's or damaged."""
    for directory in _directories():
        with contextlib.suppress(OSError):
            content = _trusted_content(directory, name)
            found, digest = content[:_DIGEST_BYTES], content[_DIGEST_BYTES : 2 * _DIGEST_BYTES]
            code = content[2 * _DIGEST_BYTES :]
            if found == key and digest == _digest_of(code):
                return code
    return None


def _trusted_content(directory: Path, name: str) -> bytes:
    """Returns the content of a file that nobody wrote who could not change this module as well.

    It is checked through what was opened: a name may lead elsewhere a moment later.

    Raises:
        OSError: There is no such file, or another user could have written it.
    """
    if not _has_owners():
        return (directory / name).read_bytes()
    with _trusted_directory(directory) as inside:
        options = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, options, dir_fd=inside), "rb") as file:
            _check_owner(file.fileno())
            return file.read()


def _has_owners() -> bool:
    return hasattr(os, "getuid") and os.open in os.supports_dir_fd


@contextlib.contextmanager
def _trusted_directory(directory: Path) -> Iterator[int]:
    """Opens a directory to which nobody can write who could not change this module as well.

    Raises:
        OSError: There is none, or another user can write to it.
    """
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(opened)
        yield opened
    finally:
        os.close(opened)


def _check_owner(opened: int) -> None:
    """Raises an OSError if another user could have written what was opened."""
    status = os.fstat(opened)
    is_own = status.st_uid == os.getuid() or status.st_uid == Path(__file__).stat().st_uid
    if status.st_mode & 0o022 or not is_own:
        raise PermissionError(errno.EPERM, "another user could have written it")


def _keep(name: str, key: bytes, code: bytes) -> None:
    """Keeps an object file in the first place where it can be written, and is believed."""
    for directory in _directories():
        with contextlib.suppress(OSError):
            if not directory.exists():
                directory.mkdir(parents=True)
                directory.chmod(0o755)  # whatever the user's mask lets others do
            if _has_owners():
                with _trusted_directory(directory):
                    pass
            write_atomically(directory / name, key + _digest_of(code) + code)
            (directory / name).chmod(0o644)
            return


# The last of this module: the command asks for it at its end, and another thread may still be in
# the middle of importing the module then. So whoever finds it also finds what it calls.
def compiles_anew() -> bool:
    """Whether no directory for machine code is writable, so that each process makes it again."""
    return not any(_can_be_written(directory) for directory in _directories())
