"""Curves of the step record: averages, ranks, and writers that fail."""

from __future__ import annotations

import logging
import sys
import threading
from types import SimpleNamespace

import pytest

from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record.scalars import ScalarSink, merged
from stepscope.capture.shared_store import SharedStore
from stepscope.run.step_record import StepRecord


class Dictionary:
    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


def step(number, milliseconds, **more):
    return StepRecord(number, 0, round(milliseconds * 1e6), **more)


def sink(tmp_path, writer, rank=0, world=1, every=2):
    return ScalarSink(writer, every, tmp_path, RankIdentity(rank, rank, world))


def test_steps_are_averaged_and_unusual_ones_left_out(tmp_path):
    written = []
    curves = sink(tmp_path, lambda values, at: written.append((at, values)), every=4)
    curves.step_ended(step(0, 10, data_wait_ns=2_000_000, phases={"forward": 4_000_000}, tokens=5))
    curves.step_ended(step(1, 900, window=0))
    curves.step_ended(step(2, 900, kind="evaluation"))
    curves.step_ended(step(3, 30, data_wait_ns=4_000_000, phases={"forward": 8_000_000}, tokens=5))
    curves.look(None)
    ((at, values),) = written
    assert at == 3
    assert values == {
        "stepscope/step_ms": 20.0,
        "stepscope/worst_step_ms": 30.0,
        "stepscope/data_wait_ms": 3.0,
        "stepscope/phase_ms/forward": 6.0,
        "stepscope/tokens_per_second": pytest.approx(10 / 0.04),
    }


def test_ranks_are_gathered_with_least_and_greatest(tmp_path):
    store = SharedStore(Dictionary(), "")
    written = []
    sinks = [
        sink(tmp_path, lambda values, at: written.append(values), rank, 3) for rank in range(3)
    ]
    for rank, curves in enumerate(sinks):
        for number in range(2):
            curves.step_ended(step(number, 10 * (rank + 1)))
    sinks[0].look(store)
    assert written == [], "rank 0 waits for the others' averages, without holding anything"
    for curves in (sinks[1], sinks[2], sinks[0]):
        curves.look(store)
    (values,) = written
    assert values["stepscope/step_ms"] == pytest.approx(20.0)
    assert values["stepscope/step_ms/min"] == 10.0
    assert values["stepscope/step_ms/max"] == 30.0


def test_the_store_does_not_grow_with_the_run(tmp_path):
    content = Dictionary()
    store = SharedStore(content, "")
    curves = sink(tmp_path, lambda values, at: None, rank=1, world=2)
    for number in range(400):
        curves.step_ended(step(number, 10))
        curves.look(store)
    assert len(content.values) == 1
    assert len(content.values["scalars/1"]) < 2000


def test_a_dead_rank_is_left_out_at_the_end(tmp_path):
    written = []
    curves = sink(tmp_path, lambda values, at: written.append(values), world=2)
    for number in range(2):
        curves.step_ended(step(number, 10))
    curves.close(SharedStore(Dictionary(), ""))
    assert written[0]["stepscope/step_ms"] == 10.0


def test_nothing_piles_up_while_nobody_looks(tmp_path):
    written = []
    curves = sink(tmp_path, lambda values, at: written.append(at))
    for number in range(1000):
        curves.step_ended(step(number, 1))
    curves.look(None)
    assert len(written) <= 10
    assert written[-1] == 999


def test_a_writer_that_fails_is_given_up_with_one_line(tmp_path, caplog):
    def broken(values, at):
        raise OSError("disk full")

    curves = sink(tmp_path, broken)
    with caplog.at_level(logging.WARNING, "stepscope"):
        for number in range(8):
            curves.step_ended(step(number, 1))
            curves.look(None)
    assert len(caplog.records) == 1
    assert "disk full" in caplog.text


def test_a_look_that_is_slow_and_the_end_write_nothing_twice(tmp_path):
    """Importing a writer's package may take longer than the end waits for the listening thread."""
    written, begun, may_go_on = [], threading.Event(), threading.Event()

    def slow(values, at):
        begun.set()
        assert may_go_on.wait(120)
        written.append(at)

    curves = sink(tmp_path, slow, every=1)
    for number in range(3):
        curves.step_ended(step(number, 10))
    looking = threading.Thread(target=curves.look, args=(None,))
    looking.start()
    assert begun.wait(120)
    curves.step_ended(step(3, 10))
    ending = threading.Thread(target=curves.close, args=(None,))
    ending.start()
    may_go_on.set()
    looking.join()
    ending.join()
    assert written == [0, 1, 2, 3]
    curves.step_ended(step(4, 10))
    curves.look(None)
    assert written == [0, 1, 2, 3], "nothing is written after the end"


def test_wandb_gets_values_beside_the_trainings_own(tmp_path, monkeypatch):
    logged = []
    fake = SimpleNamespace(run=object(), log=lambda values, commit: logged.append((values, commit)))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    curves = sink(tmp_path, "wandb")
    for number in range(2):
        curves.step_ended(step(number, 10))
    curves.look(None)
    ((values, commit),) = logged
    assert commit is False
    assert values["stepscope/step"] == 1


class FakeWandb:
    """wandb's rows: values gather in a row until it is committed, as `wandb.log` describes."""

    def __init__(self):
        self.rows, self._row = [], {}
        self.run = self
        self.step = 0

    def log(self, values, step=None, commit=None):
        if step is not None and step > self.step:
            self._commit(step)
        self._row.update(values)
        if commit or (commit is None and step is None):
            self._commit(self.step + 1)

    def _commit(self, step):
        if self._row:
            self.rows.append((self.step, self._row))
        self._row, self.step = {}, step

    def finish(self):
        self._commit(self.step + 1)


@pytest.mark.parametrize("has_steps", [False, True], ids=["wandb counts", "explicit steps"])
@pytest.mark.parametrize("every", [1, 10, 100])
def test_every_point_reaches_wandb_however_seldom_the_training_logs(
    tmp_path, monkeypatch, every, has_steps
):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    curves = sink(tmp_path, "wandb")
    for number in range(300):
        curves.step_ended(step(number, number))
        curves.look(None)
        if number % every == every - 1:
            fake.log({"loss": number}, **({"step": number} if has_steps else {}))
    curves.close(None)
    fake.log({"accuracy": 0.5}, **({"step": 300} if has_steps else {}))
    fake.finish()
    points = [row["stepscope/step"] for _, row in fake.rows if "stepscope/step" in row]
    assert points == list(range(1, 300, 2))
    times = {
        row["stepscope/step"]: row["stepscope/step_ms"] for _, row in fake.rows if len(row) > 1
    }
    assert times == {point: point - 0.5 for point in points}
    # The training's own rows have the steps that they would have without us.
    own = [(at, row["loss"]) for at, row in fake.rows if "loss" in row]
    wanted = [number for number in range(300) if number % every == every - 1]
    assert [loss for _, loss in own] == wanted
    assert [at for at, _ in own] == (wanted if has_steps else list(range(len(wanted))))
    assert [row["accuracy"] for _, row in fake.rows if "accuracy" in row] == [0.5]


def test_what_is_missing_for_curves_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    curves = sink(tmp_path, "wandb")
    with caplog.at_level(logging.WARNING, "stepscope"):
        for number in range(8):
            curves.step_ended(step(number, 1))
            curves.look(None)
    assert len(caplog.records) == 1
    assert "wandb.init" in caplog.text


def test_tensorboard_files_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    curves = sink(tmp_path, "tensorboard")
    for number in range(2):
        curves.step_ended(step(number, 1))
    curves.close(None)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_one_rank_has_no_least_and_greatest():
    assert merged([{"a": 1.0}]) == {"a": 1.0}
