"""What is derived is kept in the store: the same as computed, and never anything else's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.support.chrome_traces import write

from stepscope.trace import model
from stepscope.trace.derive import columns
from stepscope.trace.derive.columns import derive
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.trace.store import derived as derived_store
from stepscope.trace.store import directory
from stepscope.trace.store.derived import DERIVED
from stepscope.trace.store.directory import MANIFEST

pytestmark = pytest.mark.usefixtures("cache")

STEP = {"ph": "X", "cat": "user_annotation", "pid": 5, "tid": 5}
EVENTS_LISTED = [
    event
    for number in range(4)
    for event in (
        STEP | {"name": f"ProfilerStep#{number}", "ts": 100 * number, "dur": 100},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 5,
         "ts": 100 * number + 10, "dur": 50},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": 5,
         "ts": 100 * number + 20, "dur": 5, "args": {"correlation": number + 1}},
        {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7,
         "ts": 100 * number + 40, "dur": 90,
         "args": {"correlation": number + 1, "device": 0, "stream": 7}},
    )
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(write(EVENTS_LISTED))
    return path


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever something is derived anew."""
    calls: list[int] = []

    def counting(*arguments: object) -> object:
        calls.append(1)
        return derive(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "derive", counting)
    return calls


def assert_as_computed(trace: Trace) -> None:
    expected = derive(trace.tables())
    assert_frame_equal(trace.derived.collect(), expected.columns.collect())
    assert_frame_equal(trace.device_steps, expected.device_steps)
    assert_frame_equal(trace.event_problems, expected.problems)
    assert_frame_equal(trace.steps, expected.host_steps)


def kept_in(path: Path) -> Path:
    return path.with_name(path.name + ".stepscope") / DERIVED


def test_it_is_computed_once(path: Path, computed: list[int]) -> None:
    assert_as_computed(load(path, store=True))
    assert computed == [1]
    again = load(path)
    assert again.steps["step"].to_list() == [0, 1, 2, 3]
    assert_as_computed(again)
    assert computed == [1]
    names = {file.name for file in kept_in(path).iterdir()}
    assert names == {
        "columns.parquet", "host_steps.parquet", "device_steps.parquet", "overruns.parquet",
        "problems.parquet",
        MANIFEST,
    }  # fmt: skip


def test_queries_read_it_where_it_is(path: Path, computed: list[int]) -> None:
    query = "SELECT step, count(*) AS n, sum(self_ns) AS ns FROM events GROUP BY ALL ORDER BY 1"
    first = load(path, store=True).sql(query)
    again = load(path)
    for table in ("derived", "host_steps", "device_steps"):
        (file,) = again.parquet_files(table)
        assert file.parent == kept_in(path)
    assert_frame_equal(again.sql(query), first)
    for view in ("steps", "device_steps", "kernels", "launches", "problems"):
        assert_frame_equal(
            again.sql(f"SELECT * FROM {view}"),
            load(path, store=False).sql(f"SELECT * FROM {view}"),
            check_row_order=False,
        )
    assert again.sql("SELECT count(*) AS n FROM steps")["n"].to_list() == [4]
    assert computed == [1] * 6  # once for the store, and for each trace in memory


def _cut(place: Path) -> None:
    file = place / "columns.parquet"
    file.write_bytes(file.read_bytes()[:-10])


def _flip(place: Path) -> None:
    file = place / "columns.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _lose(place: Path) -> None:
    (place / "host_steps.parquet").unlink()


def _blank(place: Path) -> None:
    (place / MANIFEST).write_text("{")


def _nonsense(place: Path) -> None:
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["files"]["columns"] = 7
    (place / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("harm", [_cut, _flip, _lose, _blank, _nonsense])
def test_what_does_not_count_is_computed_and_kept_anew(
    path: Path, computed: list[int], harm
) -> None:
    assert_as_computed(load(path, store=True))
    harm(kept_in(path))
    assert_as_computed(load(path))
    assert computed == [1, 1]
    assert_as_computed(load(path))
    assert computed == [1, 1]
    assert [entry.name for entry in kept_in(path).parent.glob("derived*")] == ["derived"]


def test_a_store_that_was_made_anew_does_not_get_an_older_ones(
    path: Path, computed: list[int]
) -> None:
    slow = load(path, store=True)
    path.write_bytes(write(EVENTS_LISTED[:8]))
    changed = load(path, store=True)
    # Whoever opened the older store finishes computing only now.
    derived = derive(load(path, store=False).tables())
    assert slow.derived_files is not None
    slow.derived_files.keep(derived)
    assert changed.derived.collect().height == 8
    assert computed == [1]


def test_a_store_that_cannot_be_written_to(
    path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(path, store=True)

    def refuse(self: Path, *rest: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        assert_as_computed(load(path))
        assert_as_computed(load(path))
    assert computed == [1, 1]
    assert not kept_in(path).exists()


def test_a_full_disk_leaves_nothing(
    path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(path, store=True)

    def full(self: pl.DataFrame, file: Path, **options: object) -> None:
        file.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", full)
        assert load(path).derived.collect().height == 16
    assert not list(kept_in(path).parent.glob("derived*"))


def test_an_interrupt_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = load(path, store=True)

    def interrupted(directory: Path, names: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(directory, "contents_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trace.derived.collect()
    assert not list(kept_in(path).parent.glob("derived*"))
    assert_as_computed(trace)


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of any size are freed once they are cached."""
    for module in (derived_store, model):
        monkeypatch.setattr(module, "FREED_FROM_EVENTS", 0)


@pytest.mark.usefixtures("freed")
def test_large_tables_are_read_from_the_store_once_they_are_there(
    path: Path, computed: list[int]
) -> None:
    trace = load(path, store=True)
    assert_as_computed(trace)
    (file,) = trace.parquet_files("derived")
    assert file.parent == kept_in(path)
    assert "parquet" in trace.derived.explain().lower()
    assert_as_computed(load(path))
    assert computed == [1]


@pytest.mark.usefixtures("freed")
def test_tables_that_are_cached_take_no_memory_but_for_operators_and_parents(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[weakref.ref[Any]] = []
    plain = columns.nullable

    def nullable(values: Any, present: Any, name: str) -> pl.Series:
        numbers.append(weakref.ref(values))
        return plain(values, present, name)

    monkeypatch.setattr(columns, "nullable", nullable)
    trace = load(path, store=True)
    assert_as_computed(trace)
    in_memory = [one for one in numbers if one() is not None]
    assert len(in_memory) == 2, "operators and parents stay, which most analyses ask for"
    assert trace.derived_numbers("op").cast(pl.Int64).equals(trace.derived.collect()["op"])
    assert (trace.parents == trace.derived.collect()["parent"].fill_null(-1).to_numpy()).all()
    trace.close()
    assert all(one() is None for one in in_memory)
    assert_as_computed(trace)


@pytest.mark.usefixtures("freed")
def test_large_tables_stay_in_memory_if_the_disk_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load(path, store=True)

    def full(self: pl.DataFrame, file: Path, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", full)
        assert_as_computed(trace)
        assert trace.parquet_files("derived") == []
    assert_as_computed(trace)
    assert not list(kept_in(path).parent.glob("derived*"))


def test_several_processes_at_once(path: Path) -> None:
    load(path, store=True)
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\nfrom stepscope.trace.load import load\n"
        f"print(load({str(path)!r}).derived.collect().height)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=120)[0] for process in running] == ["16\n"] * 3
    assert [entry.name for entry in kept_in(path).parent.glob("derived*")] == ["derived"]
    assert_as_computed(load(path))


def test_a_trace_in_memory_keeps_nothing(path: Path) -> None:
    assert_as_computed(load(path, store=False))
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.json"]


def test_a_moved_store_is_still_good(path: Path, computed: list[int], tmp_path: Path) -> None:
    assert_as_computed(load(path, store=True))
    other = tmp_path / "elsewhere"
    other.mkdir()
    status = path.stat()
    for entry in (path, path.with_name(path.name + ".stepscope")):
        shutil.move(entry, other / entry.name)
    os.utime(other / path.name, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert_as_computed(load(other / path.name))
    assert computed == [1]
