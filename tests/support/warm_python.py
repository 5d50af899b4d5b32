"""A Python that has imported torch before it starts, for tests of what a script does and writes.

Importing torch, its first optimizer step and the end of such a process take about five seconds of
processor time, whatever a script does between. `warm_python()` is the path of a program that takes
a command line as Python does, and runs it in a fork of a process that imported torch once, and
Polars with it.

The fork is as a new process is: both and what they bring are hidden until the script imports them,
so hooks on that import work; directory, variables, arguments, open files and signals are the
caller's; functions that were registered for the end run. What differs is its process id, its parent
and its session, and that no module is taken down at its end: tests of these use `sys.executable`,
and so does whatever this program does not know (options of Python, variables that libraries read
while they are imported, and our own processes, which import no torch).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("torch", "numpy")
LATER = (
    "torch._dynamo",
    "torch.distributed.run",
    "torch.profiler",
    "torch.multiprocessing.spawn",
)
"""What torch imports when it is used, which takes as long again."""
BESIDE = ("polars",)
"""What many scripts import for themselves, and torch does not bring with it."""
VARIABLES = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
"""Those of a script in a process of this kind: each processor is busy with another test."""
READ_EARLY = (
    "CUDA",
    "GOMP",
    "GLOO",
    "KINETO",
    "KMP",
    "LD_",
    "MALLOC",
    "MKL",
    "NCCL",
    "OMP",
    "OPENBLAS",
    "POLARS",
    "PYTORCH",
    "TORCH",
)
"""Beginnings of the names of variables that libraries read while they are loaded."""
READ_LATE = ("TORCHELASTIC_", "TORCHINDUCTOR_CACHE_DIR", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
"""Of these, variables that change nothing of what a library is."""
OF_PYTHON = ("PYTHON", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""Variables of Python itself that a fork obeys."""
HASH_SEED = {"PYTHONHASHSEED": "0"}
"""That of the process that forks, which a command line may ask for, too."""
NEW_PROCESSES = ("stepscope.__main__", "stepscope.artifacts.finish", "stepscope.monitor")
"""Modules that import no torch."""

SHARED_IN = Path(tempfile.gettempdir())
KEPT_OPEN: list[int] = []
"""Ends of pipes that are closed when this process ends, in whatever way."""
DETACHED = f"import os\nif os.fork():\n    os._exit(0)\nfrom {__name__} import serve\n"
"""Makes the server nobody's child: tests look at the children that they have."""

CLIENT = r"""#!{python} -IS
import json, os, signal, socket, sys
REAL, ADDRESS, SET = {real!r}, {address!r}, {variables!r}
EARLY, LATE, OBEYED = {early!r}, {late!r}, {obeyed!r}
NEW, SEED = {new!r}, {seed!r}
words = sys.argv[1:]


def is_known():
    if not words or words[0] == "-" or (words[0][0] == "-" and words[0] not in ("-m", "-c", "-u")):
        return False
    if words[0] == "-m" and f"{{words[1]}}.__main__".startswith(NEW):
        return False
    early = {{k for k in os.environ if k.startswith(EARLY) and not k.startswith(LATE)}}
    if {{k: os.environ[k] for k in early}} != SET:
        return False
    of_python = {{k for k in os.environ if k.startswith("PYTHON") and k not in OBEYED}}
    return all(SEED.get(k) == os.environ[k] for k in of_python)


with socket.socket(socket.AF_UNIX) as server:
    try:
        if not is_known():
            raise ConnectionError
        server.connect(ADDRESS)
    except OSError:
        os.execv(REAL, [REAL, *words])
    there = server.fileno()
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [file for file in files if file != there and os.path.exists(f"/proc/self/fd/{{file}}")]
    umask = os.umask(0)
    what = dict(words=words, environ=dict(os.environ), folder=os.getcwd(), files=files, umask=umask)
    body = json.dumps(what).encode("utf-8", "surrogateescape")
    signals = {{signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
               signal.SIGALRM, signal.SIGQUIT, signal.SIGCONT}}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for one in signals:
        signal.signal(one, lambda number, frame: server.sendall(bytes([number])))
    socket.send_fds(server, [len(body).to_bytes(8, "little")], files)
    server.sendall(body)
    os.closerange(0, there)
    os.closerange(there + 1, 1024)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    answer = server.recv(1)
    # A signal that ended the script ends this process, too.
    if answer and answer[0] > 128 and server.recv(1) == b"s":
        number = answer[0] - 128
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(answer[0] if answer else 255)
"""


def read_early() -> dict[str, str]:
    """The variables of this process that libraries read while they are loaded.

    A command line that brings others than `VARIABLES` gets a new process.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(READ_EARLY) and not name.startswith(READ_LATE)
    }


@contextlib.contextmanager
def variables_put_back() -> Iterator[None]:
    """Put back what is read early as it was before.

    Verbs set some of it for their own process, which a test that runs one in its process shares
    with all tests after it: each of those that hands on its variables would import torch anew.
    """
    before = read_early()
    try:
        yield
    finally:
        for name in read_early().keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@functools.cache
def warm_python() -> str:
    """The program's path; `sys.executable` where forks cannot be watched as Linux allows.

    Workers of xdist share one such process: whichever needs it first starts it, and it ends with
    the last of those that used it.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return sys.executable
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        folder = Path(tempfile.mkdtemp(prefix="warm-python-"))
    else:
        folder = SHARED_IN / f"warm-python-{run}"
        folder.mkdir(mode=0o700, exist_ok=True)
    if not is_served(folder):
        # It has ended already, and the folder with it.
        folder = Path(tempfile.mkdtemp(prefix="warm-python-"))
        is_served(folder)
    return str(folder / "python")


def is_served(folder: Path) -> bool:
    """Start the process of a folder unless it runs, and keep it as long as this one lives.

    False where it has ended.
    """
    import fcntl  # which Windows has not

    users, client = folder / "users", folder / "python"
    try:
        held = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not users.exists():
            os.mkfifo(users)
            # Whoever opens one end of a pipe waits for somebody at the other.
            both = os.open(users, os.O_RDWR)
            _start(folder)
            KEPT_OPEN.append(os.open(users, os.O_WRONLY))
            os.close(both)
        else:
            KEPT_OPEN.append(os.open(users, os.O_WRONLY | os.O_NONBLOCK))
        return client.exists()
    except OSError:
        return False
    finally:
        os.close(held)


def _start(folder: Path) -> None:
    address, client = str(folder / "socket"), str(folder / "python")
    server = subprocess.Popen(
        [sys.executable, "-c", DETACHED + f"serve({address!r}, {client!r})"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": str(ROOT),
            **VARIABLES,
            **HASH_SEED,
        },
        start_new_session=True,
    )
    Path(client).write_text(
        CLIENT.format(
            # Where Python was found by a link, the environment's packages belong to the link.
            python=os.path.realpath(sys.executable),
            real=sys.executable,
            address=address,
            variables=VARIABLES,
            early=READ_EARLY,
            late=READ_LATE,
            obeyed=OF_PYTHON,
            new=NEW_PROCESSES,
            seed=HASH_SEED,
        )
    )
    Path(client).chmod(0o700)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "no process could be made that forks"
    server.stdout.close()
    server.wait()


# -- the process that forks ------------------------------------------------------------------------


def serve(address: str, client: str) -> None:
    """Import, and fork whenever a client asks, until nobody is left who might."""
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, Path(address).parent)
        listening = ending.enter_context(socket.socket(socket.AF_UNIX))
        selector = ending.enter_context(selectors.DefaultSelector())
        listening.bind(address)
        listening.listen(64)
        users = os.open(Path(address).parent / "users", os.O_RDONLY)
        print("ready", flush=True)
        kept = _import_and_hide()
        selector.register(users, selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        children: dict[socket.socket, int] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj == users:
                    for pid in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    request = _receive(connection)
                    if request is None:
                        connection.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        _become(*request, kept, client)
                    for descriptor in request[1]:
                        os.close(descriptor)
                    children[connection] = pid
                    selector.register(connection, selectors.EVENT_READ)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, connection)
                elif key.data is None:
                    connection = key.fileobj
                    if connection.fileno() < 0:  # its process ended at the same moment
                        continue
                    try:
                        sent = connection.recv(64)
                    except ConnectionError:
                        sent = b""
                    for number in sent or [signal.SIGKILL]:
                        if connection in children:
                            os.kill(children[connection], number)
                    if not sent:
                        selector.unregister(connection)
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    _tell_the_end(key.data, children.pop(key.data))
                    with contextlib.suppress(KeyError, ValueError):
                        selector.unregister(key.data)
                    key.data.close()


def _tell_the_end(connection: socket.socket, pid: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(bytes([128 - code]) + b"s" if code < 0 else bytes([code]) + b"c")


def _receive(connection: socket.socket) -> tuple[dict, list[int]] | None:
    """What a client asks for, and its open files."""
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 250)
    rest = int.from_bytes(length, "little")
    body = b""
    while len(body) < rest:
        piece = connection.recv(rest - len(body))
        if not piece:
            return None
        body += piece
    return (json.loads(body), descriptors) if body else None


def _import_and_hide() -> list[dict[str, types.ModuleType]]:
    """Import torch, and forget it: its modules, those of its first use, and those beside it."""
    steps = []
    before = dict(sys.modules)
    for names in (FIRST, LATER, BESIDE):
        for name in names:
            importlib.import_module(name)
        found = {name: one for name, one in sys.modules.items() if name not in before}
        steps.append({name: one for name, one in found.items() if not _is_of_python(name)})
        before = dict(sys.modules)
    for name in [*(one for step in steps for one in step), "tests", "tests.support", __name__]:
        sys.modules.pop(name, None)
    gc.collect()
    gc.freeze()
    return steps


def _is_of_python(name: str) -> bool:
    """Modules of Python itself stay: others hold what is theirs, and there is one of each."""
    return name.partition(".")[0].lstrip("_") in {
        one.lstrip("_") for one in sys.stdlib_module_names
    } or name.startswith("_sysconfigdata")


class _Kept:
    """Finds modules that were imported before the script began, where it finds them as usual."""

    def __init__(self, steps: list[dict[str, types.ModuleType]]) -> None:
        self.steps = steps

    def find_spec(self, name, path=None, target=None):
        step = next((one for one in self.steps if name in one), None)
        if step is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        module = step[name]
        spec.loader.create_module = lambda _: module
        spec.loader.exec_module = lambda _: self._bring(step, name)
        return spec

    def _bring(self, step, name: str) -> None:
        """Everything that came with it; of other packages, what is theirs."""
        top = name.partition(".")[0]
        for other, module in step.items():
            if top == "torch" or other.partition(".")[0] == top:
                sys.modules.setdefault(other, module)


def _become(request, received, kept, client: str) -> None:
    """Be a Python that was just started with a request; never returns."""
    code = 1
    try:
        _take_over(request, received)
        code = _run(request["words"], kept, client)
    except BaseException:  # the test reads it
        traceback.print_exc()
    finally:
        os._exit(code)


def _take_over(request, received) -> None:
    import fcntl  # which Windows has not

    os.setsid()
    gc.unfreeze()
    wanted = request["files"]
    above = 1 + max([*wanted, *(int(one.name) for one in Path("/proc/self/fd").iterdir())])
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, above) for one in received]
    os.closerange(0, above)
    for one, number in zip(moved, wanted, strict=True):
        os.dup2(one, number)
        os.close(one)
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    os.chdir(request["folder"])
    os.umask(request["umask"])
    is_plain = bool(os.environ.get("PYTHONUNBUFFERED")) or request["words"][0] == "-u"
    for number, name, mode, errors in (
        (0, "stdin", "r", "strict"),
        (1, "stdout", "w", "strict"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        file = None
        if number in wanted:
            raw = io.FileIO(number, mode, closefd=False)
            file = io.TextIOWrapper(
                io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw),
                "utf-8",
                errors,
                line_buffering=number == 2 or raw.isatty(),
                write_through=is_plain,
            )
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


def _run(words: list[str], steps, client: str) -> int:
    if words[0] == "-u":
        words = words[1:]
    sys.executable = client
    sys.orig_argv = [client, *words]
    with contextlib.suppress(KeyError):
        sys.modules["multiprocessing.spawn"].set_executable(client)
    paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    others = [one for one in sys.path if one not in {str(ROOT), "", *paths}]
    sys.path[:] = [*paths, *others]
    sys.path_importer_cache.clear()
    sys.meta_path.insert(-1, _Kept(steps))
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    try:
        try:
            sys.modules.pop("sitecustomize", None)
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module("sitecustomize")
            if words[0] == "-m":
                sys.argv = ["-m", *words[2:]]
                sys.path.insert(0, str(Path.cwd()))
                runpy._run_module_as_main(words[1])
            elif words[0] == "-c":
                sys.argv = ["-c", *words[2:]]
                sys.path.insert(0, "")
                exec(compile(words[1], "<string>", "exec"), main.__dict__)
            else:
                sys.argv = words[:]
                path = Path.cwd() / words[0]
                sys.path.insert(0, str(path.resolve().parent))
                main.__file__ = str(path)
                main.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
                exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)
            code = 0
        except SystemExit as ending:
            code = _code_of(ending)
        except BaseException as error:
            below = error.__traceback__ and error.__traceback__.tb_next
            sys.excepthook(type(error), error, below)
            code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            threading._shutdown()
        atexit._run_exitfuncs()
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                file.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code & 0xFF


def _code_of(ending: SystemExit) -> int:
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code & 0xFF
    print(ending.code, file=sys.stderr)
    return 1
