"""Where a run is put: one folder for all ranks, and for no two processes the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import distributed

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record.journal import Clock, choose_home


class OneStore:
    """The store of a process group, as far as names go through it."""

    def __init__(self):
        self.values = {}

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def set(self, key, value):
        self.values[key] = value.encode()

    def wait(self, keys, _):
        if not all(key in self.values for key in keys):
            raise RuntimeError("nobody has set it")

    def get(self, key):
        return self.values[key]


@pytest.fixture
def store(monkeypatch):
    store = OneStore()
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)
    return store


def home(folder, rank=0, ranks=1, **options):
    config = CaptureConfig(output_dir=folder, **options)
    return choose_home(config, RankIdentity(rank, rank, ranks), Clock.start())


def test_the_place_stays_where_the_training_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout = home("profiles")
    assert layout.root.is_absolute()
    assert layout.root.parent == tmp_path / "profiles"


def test_processes_that_take_themselves_for_the_same_rank_come_to_different_places(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        layouts = list(pool.map(lambda _: home(tmp_path, run_name="x"), range(24)))
    assert len({layout.root for layout in layouts}) == 24


@pytest.mark.parametrize("options", [{}, {"run_name": "x"}])
def test_each_capture_of_a_job_has_one_place_on_all_ranks(tmp_path, store, options):
    del store
    seen = set()
    for _ in range(3):
        first, second = (home(tmp_path, rank, 2, **options).root for rank in range(2))
        assert first == second
        seen.add(first)
    assert len(seen) == 3


def test_ranks_that_are_new_after_a_restart_go_with_the_others(tmp_path, store):
    for rank in range(2):
        home(tmp_path, rank, 2, run_name="x").run_file.touch()
    store.values.clear()
    roots = {home(tmp_path, rank, 3, run_name="x").root for rank in range(3)}
    assert roots == {tmp_path / "x-2"}


def test_a_name_that_is_given_and_free_needs_no_first_rank(tmp_path, store):
    del store
    assert home(tmp_path, 3, 4, run_name="x").root == tmp_path / "x"


@pytest.mark.parametrize("options", [{}, {"run_name": "x"}])
def test_no_rank_waits_for_rank_0(tmp_path, store, options):
    """It may be waiting for that rank: the first stage of a pipeline waits for gradients."""
    del store
    roots = [home(tmp_path, rank, 3, **options).root for rank in (2, 0, 1)]
    assert len(set(roots)) == 1


def test_a_rank_that_comes_first_goes_to_a_place_of_its_own_after_a_restart(tmp_path, store):
    home(tmp_path, 0, 2, run_name="x")
    store.values.clear()
    assert {home(tmp_path, rank, 2, run_name="x").root for rank in (1, 0)} == {tmp_path / "x-2"}


def test_a_store_without_the_name_leaves_the_given_one(tmp_path, store, caplog):
    store.values["stepscope/run_name/1/came"] = 1  # and the rank that came has ended
    assert home(tmp_path, 1, 2, run_name="x").root == tmp_path / "x"
    assert "could not agree" in caplog.text


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "rank00000").touch()
    with pytest.raises(FileExistsError):
        home(tmp_path, run_name="x")
