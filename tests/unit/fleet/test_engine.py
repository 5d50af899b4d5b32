"""One function on many items: local processes and Dask give the same, whatever goes wrong."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from tests.support import fleet_tasks as tasks

from stepscope.commands.options import engine_of
from stepscope.errors import UsageError
from stepscope.fleet.engines import local
from stepscope.fleet.engines.dask import DaskEngine, check_address
from stepscope.fleet.engines.local import LocalEngine, LocalWorkers
from stepscope.fleet.engines.outcome import Failure

ROOT = Path(__file__).parents[3]
needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask is not installed"
)


@pytest.fixture(autouse=True)
def workers_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's workers take the import path from the environment."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture(
    params=[
        pytest.param(LocalEngine(1), id="here"),
        pytest.param(LocalEngine(3), id="processes"),
        pytest.param(DaskEngine(workers=2), id="dask", marks=[needs_dask, pytest.mark.slow]),
    ]
)
def engine(request):  # type: ignore[no-untyped-def]
    return request.param


def all_of(items: Iterable[int]) -> dict[int, str]:
    return {item: f"<{item}>" for item in items}


def test_values_are_in_the_order_of_the_items(engine) -> None:  # type: ignore[no-untyped-def]
    seen: list[tuple[int, int]] = []
    outcome = engine.run(tasks.text_of, range(23), progress=lambda *counts: seen.append(counts))
    assert list(outcome.values.items()) == list(all_of(range(23)).items())
    assert outcome.failures == ()
    assert [done for done, _ in seen] == list(range(1, 24))
    assert {total for _, total in seen} == {23}


def test_no_items_give_nothing(engine) -> None:  # type: ignore[no-untyped-def]
    outcome = engine.run(tasks.text_of, [])
    assert outcome.values == {}


def test_what_cannot_be_read_is_left_out_and_named(engine) -> None:  # type: ignore[no-untyped-def]
    outcome = engine.run(tasks.refuses_sevens, range(20))
    assert outcome.values == all_of(set(range(20)) - {7, 17})
    # Trying again would not make it a trace.
    assert outcome.failures == (
        Failure(7, "item 7 is no trace", 1),
        Failure(17, "item 17 is no trace", 1),
    )


def test_what_fails_for_a_while_is_tried_again(engine, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    items = [(str(tmp_path), number) for number in range(8)]
    outcome = engine.run(tasks.fails_twice, items)
    assert outcome.values == all_of(range(8))
    assert len(list(tmp_path.glob("3-*"))) == 3


def test_what_never_works_is_given_up_with_the_reason(engine) -> None:  # type: ignore[no-untyped-def]
    outcome = engine.run(tasks.always_broken, range(3))
    assert outcome.values == {}
    assert outcome.failures[1] == Failure(1, "RuntimeError: no 1", 3)


@pytest.mark.parametrize(
    "engine",
    [
        LocalEngine(2),
        pytest.param(DaskEngine(workers=2), marks=[needs_dask, pytest.mark.slow], id="dask"),
    ],
)
def test_a_killed_worker_loses_nothing(engine, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    items = [(str(tmp_path), number) for number in range(16)]
    outcome = engine.run(tasks.dies_once, items)
    assert (tmp_path / "died").exists()
    assert outcome.values == all_of(range(16))


def test_an_item_that_kills_every_worker_is_given_up_and_the_others_are_not() -> None:
    outcome = LocalEngine(2).run(tasks.always_dies, range(6))
    assert outcome.values == all_of({0, 1, 2, 4, 5})
    assert [failure.index for failure in outcome.failures] == [3]
    assert "ended early" in outcome.failures[0].reason
    assert outcome.restarts == 3


def test_nothing_is_left_running_after_an_interruption() -> None:
    before = set(psutil.Process().children(recursive=True))

    def interrupt(_done: int, _of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalEngine(2).run(tasks.slow, range(20), progress=interrupt)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_workers_are_other_processes_and_what_they_print_does_no_harm() -> None:
    used = set(LocalEngine(2).run(tasks.process_of, range(12)).values.values())
    assert len(used) == 2
    assert os.getpid() not in used
    assert LocalEngine(2).run(tasks.prints, range(3)).values == all_of(range(3))


def test_items_with_equal_keys_go_to_the_same_process() -> None:
    with LocalWorkers(tasks.process_of, 3, key=lambda item: item) as workers:
        first = workers.run([0, 1, 2]).values
        assert len(set(first.values())) == 3
        assert workers.run([2, 0]).values == {0: first[2], 1: first[0]}
        assert workers.run([1, 2, 0]).values == {0: first[1], 1: first[2], 2: first[0]}


def test_a_process_without_items_takes_those_of_another() -> None:
    with LocalWorkers(tasks.process_of, 2, key=lambda item: 0) as workers:
        workers.run([0])
        values = workers.run(range(1, 9)).values
    assert len(values) == 8
    assert len(set(values.values())) == 2


def test_items_of_a_killed_process_are_done_by_others(tmp_path: Path) -> None:
    items = [(str(tmp_path), number) for number in range(16)]
    with LocalWorkers(tasks.dies_once, 2, key=lambda item: item[1]) as workers:
        # The one with item 5 is killed in the second run, when it has others, too.
        (tmp_path / "died").touch()
        assert workers.run(items).values == all_of(range(16))
        (tmp_path / "died").unlink()
        outcome = workers.run(items)
    assert outcome.values == all_of(range(16))
    assert outcome.restarts == 1


def test_processes_end_with_their_context() -> None:
    before = set(psutil.Process().children(recursive=True))
    with LocalWorkers(tasks.process_of, 2) as workers:
        workers.run(range(2))
        assert len(set(psutil.Process().children(recursive=True)) - before) >= 2
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from stepscope.fleet.engines.local import LocalEngine
            from tests.support import fleet_tasks as tasks

            print("once")
            print(*LocalEngine(2).run(tasks.text_of, range(4)).values.values())
            """
        )
    )
    # A module of this name in the current folder is nobody's import.
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "struct.py").write_text("raise SystemExit('imported from the current folder')")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "once\n<0> <1> <2> <3>\n", done.stderr


def test_the_options_choose_the_engine() -> None:
    assert engine_of("local", None, None) is None
    assert engine_of("local", None, 4) == LocalEngine(4)
    assert engine_of("dask", "tcp://127.0.0.1:8786", None) == DaskEngine("tcp://127.0.0.1:8786")
    with pytest.raises(UsageError, match="give --engine dask"):
        engine_of("local", "tcp://127.0.0.1:8786", None)


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786", "tls://10.0.0.7:8786"],
)
def test_schedulers_here_or_behind_tls_are_talked_to(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://10.0.0.7:8786", "not encrypted"),
        ("tcp://scheduler.example:8786", "not encrypted"),
        ("tcp://127.0.0.1.example:8786", "not encrypted"),
        ("10.0.0.7:8786", "is no address"),
        ("http://10.0.0.7", "is no address"),
        ("", "is no address"),
    ],
)
def test_schedulers_in_the_open_are_refused(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DaskEngine(address)


@needs_dask
@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match=r"tcp://127\.0\.0\.1:9 cannot be reached"):
        DaskEngine("tcp://127.0.0.1:9").run(tasks.text_of, range(2))


@needs_dask
@pytest.mark.slow
def test_a_scheduler_that_is_there_is_used() -> None:
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        engine = DaskEngine(cluster.scheduler_address)
        assert engine.run(tasks.text_of, range(9)).values == all_of(range(9))


def test_processes_share_the_cpus_instead_of_each_using_all(monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    monkeypatch.setattr(local, "allowed_cpus", lambda: 6)
    run = LocalEngine(2).run(tasks.environment, ["POLARS_MAX_THREADS"] * 2)
    assert run.values == {0: "3", 1: "3"}
    monkeypatch.setenv("POLARS_MAX_THREADS", "5")
    run = LocalEngine(2).run(tasks.environment, ["POLARS_MAX_THREADS"] * 2)
    assert run.values == {0: "5", 1: "5"}
