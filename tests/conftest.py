"""For all tests: none of them judges by the clock, or by how it was started."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stepscope.system import allowed_cpus
from tests.support.in_turn import waiting_for_the_first
from tests.support.warm_python import variables_put_back

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

# Examples that take long on a busy machine are no failures, nor is it one to make them slowly; and
# they are the same each time, so that a run judges the code and not its luck (the fuzzers of the
# slow tests look further). Where the slow tests run, each property is tried on more of them.
for name, examples in (("default", 40), ("with the slow tests", 100)):
    settings.register_profile(
        f"untimed {name}",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
        max_examples=examples,
    )
settings.load_profile("untimed default")

# Workers and the processes of the tests read each other's compiled modules: without them, each
# worker takes ten seconds to rewrite what it collects. Nothing else of a test depends on it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each processor has a busy worker: with more threads than one in each, and in each process that a
# test starts, a fifth of their time goes into handing work around. Our own threads stay as they
# are, for their number follows the processors. Polars reads this while it is imported.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

# Where this is exported, as workers of xdist have it, nothing is as wide as in a pipe.
os.environ.pop("COLUMNS", None)

# A job in a shell's background ignores Ctrl-C, and so would every program that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Try more examples where the slow tests run."""
    if "not slow" not in config.option.markexpr:
        settings.load_profile("untimed with the slow tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most parameters of tests marked `sampled` to the slow tests; begin with `long` ones."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in families.values():
        marker = family[0].get_closest_marker("sampled")
        most = marker.args[0] if marker is not None else len(family)
        kept = {index * len(family) // most for index in range(min(most, len(family)))}
        for index, item in enumerate(family):
            if index not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are processors: many tests wait for processes and timers."""
    return allowed_cpus() + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are imported and tests made: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let one worker rewrite a new module of tests, which takes longer than importing it."""
    if not IS_WORKER or not isinstance(collector, pytest.Module):
        return (yield)
    with waiting_for_the_first(collector.path):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where torch finds none."""
    is_marked = item.get_closest_marker("gpu") is not None
    if is_marked and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("torch finds no GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Leave no test the variables that a verb sets for its process: with them, all is slow."""
    with variables_put_back():
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Share what workers would do each, and keep them from what only costs time."""
    # Threads that share an operator wait in a loop for one another: where each processor has a
    # worker already, a small training takes twenty times as long.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # Modules and tests stay: no collection of garbage has to look at them.
    gc.collect()
    gc.freeze()
    # Large documents hold no garbage either: to look for it every 700 objects takes a quarter of
    # the time of reading them.
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure() -> None:
    """Let Python free all at its end: what stays is reported as leaked by DuckDB, line by line."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[None, None, None]:
    """Caches in place of the user's: memos of all traces are kept in ours.

    torch, which builds DeepSpeed's extensions, waits without end for the lock of a build that was
    killed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_CACHE", str(tmp_path_factory.mktemp("cache") / "of-all"))
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield


@pytest.fixture(autouse=True)
def _cache_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory of its own for each test, unless those of its module share one.

    What another test made under altered code is not found.
    """
    shared = Path(os.environ.get("STEPSCOPE_CACHE", ""))
    if shared.name == "of-all":
        name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
        monkeypatch.setenv("STEPSCOPE_CACHE", str(shared.with_name(name)))


@pytest.fixture(scope="module")
def cache_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """One cache directory for all tests of a module: what one works out, the next ones find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own cache directory, not made yet, in place of the user's."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("STEPSCOPE_CACHE", str(directory))
    return directory
