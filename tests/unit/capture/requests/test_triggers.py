"""Triggers: their files, the desk that decides, slow steps, and pauses together."""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import orjson
import pytest
from click.testing import CliRunner

from stepscope.capture import shared_store as together
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import Action
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.shared_store import PauseTogether, SharedStore
from stepscope.capture.triggers import TriggerDesk
from stepscope.capture.windows.planner import WindowPlanner
from stepscope.commands.trigger import command
from stepscope.errors import StepscopeError, UsageError
from stepscope.run.layout import RankLayout
from stepscope.run.manifest import JobRecord, RankManifest, write_record
from stepscope.run.step_record import StepRecord
from stepscope.run.triggers import Trigger, announce, ask, asked, put, read


class FakeStore:
    """A dictionary with torch's interface."""

    def __init__(self):
        self.values = {}
        self.is_broken = False

    def _check_alive(self):
        if self.is_broken:
            raise RuntimeError("Connection reset by peer")

    def set(self, key, value):
        self._check_alive()
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key):
        self._check_alive()
        return self.values[key]

    def check(self, keys):
        self._check_alive()
        return all(key in self.values for key in keys)

    def add(self, key, amount):
        self._check_alive()
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])

    def wait(self, keys, timeout=None):
        self._check_alive()
        if not self.check(keys):
            raise RuntimeError("wait timeout")


FEW = (1_000_000_000,) * 4


def make_desk(run, rank, world, accepted, store=None, ended=FEW, at=lambda: 0, **options):
    """A desk of a rank that is at a step, with the durations of some that ended."""
    shared = SharedStore(store, "p/") if store is not None else None
    config = CaptureConfig(**{"skip_first": 10**9, "warmup": 1, **options})
    identity = RankIdentity(rank, rank, world)
    desk = TriggerDesk(config, run, identity, lambda: shared, accepted.append, at)
    for duration_ns in ended:
        end_step(desk, duration_ns)
    return desk


def end_step(desk, duration_ns):
    desk.take(StepRecord(0, 0, duration_ns))


def running(run):
    write_record(run / "rank00000" / "manifest.json", RankManifest(0))
    return run


# -- files ----------------------------------------------------------------------------------------


def test_a_trigger_survives_its_file(tmp_path):
    trigger = Trigger("file", 7, "0,3", True, 12, 99, ("record_shapes", "with_stack"))
    assert read(put(tmp_path, trigger)) == trigger
    assert len(asked(tmp_path)) == 1


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (b'["with_stack","record_shapes"]', ("record_shapes", "with_stack")),
        (b'["with_stack","a detail of a later version",7,null]', ("with_stack",)),
        (b'"with_stack"', ()),
        (b'{"with_stack":true}', ()),
    ],
)
def test_details_that_are_not_known_are_left_out(told, known):
    data = b'{"format":"stepscope-trigger","details":' + told + b"}"
    assert Trigger.decode(data).details == known


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":"stepscope-trigger","steps":-1}',
        b'{"format":"stepscope-trigger","steps":1000000}',
        b'{"format":"stepscope-trigger","steps":"3"}',
        b'{"format":"stepscope-trigger","first_step":-5}',
        b"\xff" * 50_000,
    ],
)
def test_a_hostile_trigger_is_left_out_and_removed(tmp_path, data, caplog):
    folder = tmp_path / "triggers"
    folder.mkdir()
    accepted = []
    desk = make_desk(tmp_path, 0, 1, accepted)
    (folder / "ask-1.json").write_bytes(data)
    with caplog.at_level(logging.WARNING, "stepscope"):
        desk.look()
    assert accepted == []
    assert list(folder.iterdir()) == []
    assert "is ignored" in caplog.text


def test_only_a_running_job_can_be_asked(tmp_path):
    with pytest.raises(UsageError, match="not a run directory"):
        ask(tmp_path, Trigger())
    write_record(tmp_path / "rank00000" / "manifest.json", RankManifest(0, state="finished"))
    with pytest.raises(UsageError, match="has ended"):
        ask(tmp_path, Trigger())
    write_record(tmp_path / "rank00001" / "manifest.json", RankManifest(1))
    assert ask(tmp_path, Trigger()).exists()


def test_the_command_leaves_a_trigger(tmp_path):
    running(tmp_path)
    arguments = [str(tmp_path), "--steps", "4", "--ranks", "0,1", "--memory", "--with-stack"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    trigger = read(asked(tmp_path)[0])
    assert (trigger.steps, trigger.ranks, trigger.with_memory) == (4, "0,1", True)
    assert trigger.details == ("with_stack",)


@pytest.mark.parametrize(
    "arguments", [["missing"], [".", "--ranks", "first"], [".", "--steps", "0"]]
)
def test_the_command_refuses_what_cannot_be(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(running(tmp_path))
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, (StepscopeError, SystemExit))


def test_the_command_refuses_ranks_that_the_job_has_not(tmp_path):
    running(tmp_path)
    write_record(tmp_path / "run.json", JobRecord("run", 1, world_size=2))
    refused = CliRunner().invoke(command, [str(tmp_path), "--ranks", "2,5"])
    assert "no such rank, only 0 to 1" in str(refused.exception)
    assert CliRunner().invoke(command, [str(tmp_path), "--ranks", "1"]).exit_code == 0


# -- agreeing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_store", [False, True])
@pytest.mark.parametrize("asker", [0, 1, 3])
def test_all_ranks_agree_on_the_steps_whoever_asks(tmp_path, with_store, asker):
    store = FakeStore() if with_store else None
    accepted = [[] for _ in range(4)]
    ended = (50_000_000,) * 4
    desks = [
        make_desk(tmp_path, rank, 4, accepted[rank], store, ended, lambda rank=rank: 100 + rank % 2)
        for rank in range(4)
    ]
    desks[asker].ask(Trigger("slow step", 2))
    for desk in (*reversed(desks), *desks):
        desk.look()
    assert all(items == accepted[0] for items in accepted)
    (trigger,) = accepted[0]
    assert trigger.steps == 2
    # Far enough ahead for a rank that looks once a second at 50 ms a step.
    assert trigger.first_step >= 100 + 2 * (1.0 / 0.05)


def test_a_request_waits_until_a_few_steps_have_shown_how_long_one_takes(tmp_path):
    """The first step takes two seconds, and those after it 20 ms."""
    accepted = [[], []]
    store = FakeStore()
    desks = [
        make_desk(tmp_path, rank, 2, accepted[rank], store, (), lambda: 20) for rank in range(2)
    ]
    desks[1].ask(Trigger("code", 2))
    for known in ([], [2_000_000_000], [20_000_000] * 3):
        assert accepted == [[], []]
        for duration_ns in known:
            end_step(desks[0], duration_ns)
        for desk in (desks[1], desks[0], desks[1]):
            desk.look()
    assert accepted[0] == accepted[1]
    (trigger,) = accepted[0]
    assert trigger.first_step >= 20 + 3.0 / 0.02


def test_steps_that_become_faster_leave_time_to_hear_of_a_window(tmp_path):
    accepted = []
    ended = (100_000_000,) * 14 + (20_000_000,) * 6
    desk = make_desk(tmp_path, 0, 2, accepted, FakeStore(), ended, lambda: 20)
    desk.ask(Trigger("code", 2))
    desk.look()
    assert accepted[0].first_step >= 20 + 3.0 / 0.02


def test_several_requests_come_in_order_and_once(tmp_path):
    accepted = [[], []]
    desks = [make_desk(tmp_path, rank, 2, accepted[rank], FakeStore()) for rank in range(2)]
    for number in range(1, 4):
        desks[0].ask(Trigger("code", number))
    for _ in range(3):
        for desk in desks:
            desk.look()
    assert [trigger.steps for trigger in accepted[0]] == [1, 2, 3]
    assert len(accepted[1]) == 0 or accepted[1] == accepted[0]


def test_what_all_ranks_notice_at_once_is_one_window(tmp_path):
    store = FakeStore()
    accepted = [[], [], []]
    step = 0
    desks = [
        make_desk(tmp_path, rank, 3, accepted[rank], store, at=lambda: step) for rank in range(3)
    ]
    for _ in range(2):
        for desk in desks:
            desk.ask(Trigger("slow step", 2))
    for _ in range(3):
        for desk in desks:
            desk.look()
    (first,) = accepted[0]
    assert accepted == [[first]] * 3
    step = first.first_step + 2
    for desk in desks:
        desk.ask(Trigger("slow step", 2))
        desk.look()
    assert len(accepted[0]) == 2


def test_windows_that_are_asked_for_do_not_meet(tmp_path):
    accepted = []
    desk = make_desk(tmp_path, 0, 2, accepted, warmup=2)
    desk.ask(Trigger("file", 3))
    desk.ask(Trigger("file", 3))
    desk.ask(Trigger("code", 4))
    desk.look()
    assert [trigger.steps for trigger in accepted] == [3, 3, 4]
    for before, after in itertools.pairwise(accepted):
        assert after.first_step - 2 > before.first_step + before.steps - 1


def test_windows_that_are_asked_for_do_not_meet_the_schedules(tmp_path):
    accepted = []
    options = {"skip_first": 0, "wait": 30, "warmup": 2, "active": 5, "repeat": 0}
    schedule, step = CaptureConfig(**options).schedule, 0
    desk = make_desk(tmp_path, 0, 2, accepted, at=lambda: step, **options)
    for now in range(0, 80, 7):
        step = now
        desk.ask(Trigger("file", 3))
        desk.look()
    for trigger in accepted:
        for step in range(trigger.first_step - 2, trigger.first_step + 3):
            assert schedule.action(step) is Action.NONE


def test_a_store_that_dies_is_given_up_and_files_do(tmp_path, caplog):
    store = FakeStore()
    accepted = [[], []]
    desks = [make_desk(tmp_path, rank, 2, accepted[rank], store) for rank in range(2)]
    for desk in desks:
        desk.look()
    store.is_broken = True
    with caplog.at_level(logging.WARNING, "stepscope"):
        desks[0].ask(Trigger("code", 5))
        for _ in range(3):
            for desk in desks:
                desk.look()
    assert [trigger.steps for trigger in accepted[1]] == [5]
    assert caplog.text.count("store is gone") == 1 or len(caplog.records) <= 2


def test_a_trigger_from_before_the_start_is_not_taken(tmp_path):
    put(tmp_path, Trigger())
    accepted = []
    desk = make_desk(tmp_path, 0, 1, accepted)
    desk.look()
    assert accepted == []


def test_a_request_without_steps_gets_the_usual_number(tmp_path):
    accepted = []
    desk = make_desk(tmp_path, 0, 1, accepted, active=9)
    desk.ask(Trigger("file"))
    desk.look()
    assert accepted[0].steps == 9


def test_an_agreement_that_a_stranger_wrote_does_not_break_the_listening(tmp_path):
    accepted = []
    desk = make_desk(tmp_path, 1, 2, accepted)
    announce(tmp_path, 1, Trigger("file", 2, first_step=5))
    path = tmp_path / "triggers" / "agreed-000001.json"
    path.write_bytes(b"nonsense")
    desk.look()
    assert accepted == []
    path.write_bytes(orjson.dumps({"format": "stepscope-trigger", "steps": 2, "first_step": 5}))
    desk.look()
    assert accepted[0].first_step == 5


@pytest.mark.parametrize(
    ("ranks", "scheduled", "expected"),
    [("", "all", [0, 1, 2]), ("", "7", []), ("1", "all", [1]), ("every:2", "7", [0, 2])],
)
def test_whom_a_trigger_is_for(tmp_path, ranks, scheduled, expected):
    config = CaptureConfig(ranks=scheduled, skip_first=100)
    found = []
    for rank in range(3):
        identity, layout = RankIdentity(rank, rank, 3), RankLayout(tmp_path)
        planner = WindowPlanner(config, layout, identity, lambda *_: None)
        planner.request(Trigger(ranks=ranks, steps=1, first_step=7))
        plan = planner.next_plan(7 - config.warmup)
        found += [] if plan is None else [rank]
    assert found == expected


# -- slow steps -----------------------------------------------------------------------------------


def slow_steps(run, durations, **options):
    """The steps after which a window is requested."""
    accepted, found = [], []
    desk = make_desk(run, 0, 1, accepted, ended=(), **options)
    for step, duration_ns in enumerate(durations):
        before = len(accepted)
        desk.take(StepRecord(step, 0, duration_ns))
        found += [step] * (len(accepted) - before)
    return found


def test_a_slow_step_is_noticed_once_within_the_cooldown(tmp_path):
    durations = [10] * 15 + [29, 31, 100, 10, 10] + [10] * 20 + [50]
    assert slow_steps(tmp_path, durations, slow_step_factor=3.0, slow_step_cooldown=20) == [16, 40]


def test_nothing_is_slow_before_the_usual_is_known(tmp_path):
    durations = [10 * 2**step for step in range(10)]
    assert slow_steps(tmp_path, durations, slow_step_factor=2.0, slow_step_cooldown=5) == []


# -- pauses together ------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only while somebody sleeps."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


def test_nobody_waits_where_nobody_records(clock):
    store = SharedStore(FakeStore(), "")
    assert PauseTogether(lambda: store, limit_s=60).wait(5) == 0


def test_nobody_waits_without_a_process_group(clock):
    pauses = PauseTogether(lambda: None, limit_s=60)
    pauses.announce(5, "open")
    assert pauses.wait(5) == 0


def test_a_pause_that_is_over_costs_nothing(clock):
    store = SharedStore(FakeStore(), "")
    pauses = PauseTogether(lambda: store, limit_s=60)
    pauses.announce(5, "open")
    pauses.announce(5, "begun")
    pauses.announce(5, "done")
    assert pauses.wait(5) == 0


@pytest.mark.parametrize(("has_begun", "waits_s"), [(True, 10.0), (False, 2.0)])
def test_waiting_for_a_dead_rank_has_a_limit(clock, caplog, has_begun, waits_s):
    store = SharedStore(FakeStore(), "")
    pauses = PauseTogether(lambda: store, limit_s=10.0)
    pauses.announce(5, "open")
    if has_begun:
        pauses.announce(5, "begun")
    with caplog.at_level(logging.WARNING, "stepscope"):
        assert pauses.wait(5) == pytest.approx(waits_s, abs=0.1)
    assert "continued after waiting" in caplog.text


def test_a_dead_store_ends_the_waiting(clock):
    store = FakeStore()
    shared = SharedStore(store, "")
    pauses = PauseTogether(lambda: shared, limit_s=60)
    pauses.announce(5, "open")
    store.is_broken = True
    assert pauses.wait(5) == 0
