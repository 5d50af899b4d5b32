"""Which collective hangs and who began it: every form of dump, every way to hang."""

from __future__ import annotations

import json
import pickle
import time

import pytest
from click.testing import CliRunner
from tests.support.flight_dumps import FORMS, FRAMES, as_cpp, as_json, as_python, document, entry

from stepscope.commands.hangs import command
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.fleet.hangs.dump import COMPLETED, TIMED_OUT, parse_dump, rank_of_dump, read_dump
from stepscope.fleet.hangs.find_hang import find_hang

ALL = {"0": range(4)}


def dumps(histories, groups=None, form=as_python):
    """Dumps of ranks: rank -> entries."""
    return [
        parse_dump(form(document(entries, groups or ALL)), rank, f"rank_{rank}")
        for rank, entries in histories.items()
    ]


def up_to(number, **last):
    """Operations 1 to `number`, of which the last may differ."""
    return [*(entry(place) for place in range(1, number)), entry(number, **last)]


WAITS = up_to(5, state="started")


@pytest.mark.parametrize("form", FORMS)
def test_the_rank_that_did_not_come_is_named(form):
    hang = find_hang(dumps({0: WAITS, 1: WAITS, 2: up_to(4), 3: WAITS}, form=FORMS[form]))
    assert hang.culprits == (2,)
    assert (
        "all_reduce 5 of group 0 (default_pg) hangs: ranks 0, 1, 3 wait for rank 2" in hang.verdict
    )
    row = hang.hanging.row(0, named=True)
    assert (row["waiting"], row["missing"], row["members"]) == ([0, 1, 3], [2], 4)
    assert row["where"] == ("train.py:12 in train" if form != "json" else None)
    first = hang.ranks.row(0, named=True)
    assert (first["rank"], first["did"], first["last_sequence"]) == (2, "in no operation", 4)
    assert dict(hang.members.select("rank", "did").iter_rows()) == {
        0: "waiting", 1: "waiting", 2: "not there", 3: "waiting",
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_culprit_is_named_without_its_dump(form):
    hang = find_hang(dumps({0: WAITS, 1: WAITS, 3: WAITS}, form=FORMS[form]))
    assert hang.culprits == (2,)
    assert "which left no dump" in hang.verdict
    assert "no dump of rank 2 of 4" in hang.notes
    assert hang.ranks.row(0, named=True)["did"] == "no dump"


@pytest.mark.parametrize("form", FORMS)
def test_a_different_operation_is_named(form):
    odd = up_to(5, operation="all_gather", state="started")
    hang = find_hang(dumps({0: WAITS, 1: odd, 2: WAITS, 3: WAITS}, form=FORMS[form]))
    assert hang.culprits == (1,)
    assert "rank 1 called all_gather(Float[4×8]), the others all_reduce(Float[4×8])" in hang.verdict


def test_a_different_shape_is_named_where_shapes_must_agree():
    odd = up_to(5, state="started", sizes=[[4, 9]])
    assert find_hang(dumps({0: WAITS, 1: odd, 2: WAITS, 3: WAITS})).culprits == (1,)
    # Ranks of an all_to_all may well send different amounts.
    varied = {
        rank: up_to(5, operation="all_to_all", state="started", sizes=[[4, rank]])
        for rank in range(4)
    }
    assert find_hang(dumps(varied)).culprits == ()


def test_a_shape_with_as_many_elements_is_no_different_call():
    odd = up_to(5, state="started", sizes=[[32]])
    hang = find_hang(dumps({0: WAITS, 1: odd, 2: WAITS, 3: WAITS}))
    assert hang.culprits == ()
    assert "with all its members in it" in hang.verdict
    assert hang.mismatched.is_empty()


def test_calls_that_differ_are_told_where_the_operation_was_completed():
    odd = [*up_to(3), entry(4, input_dtypes=["Int"]), entry(5)]
    hang = find_hang(dumps({0: up_to(5), 1: up_to(5), 2: odd, 3: up_to(5)}))
    assert hang.culprits == ()
    assert hang.verdict.endswith("but ranks called some of them differently")
    assert hang.mismatched.select("sequence", "call", "ranks", "is_completed").rows() == [
        (4, "all_reduce(Float[4×8])", [0, 1, 3], True),
        (4, "all_reduce(Int[4×8])", [2], True),
    ]
    (note,) = hang.notes
    assert note.startswith("operation 4 of group 0 (default_pg) was completed although its calls")
    assert "ranks 0, 1, 3 called all_reduce(Float[4×8]), rank 2 called all_reduce(Int[4×8])" in note
    assert find_hang(dumps({0: up_to(5), 1: up_to(5)})).notes == ("no dump of ranks 2, 3 of 4",)


def test_an_operation_that_hangs_is_no_completed_one_with_different_calls():
    odd = up_to(5, state="started", input_dtypes=["Int"])
    hang = find_hang(dumps({0: WAITS, 1: odd, 2: WAITS, 3: WAITS}))
    assert hang.culprits == (1,)
    assert hang.notes == ()
    assert hang.mismatched["is_completed"].to_list() == [False, False]


KINDS = ("all_reduce", "broadcast", "all_to_all", "reduce_scatter", "_all_gather_base")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_calls_differ_where_torchs_own_analyzer_says_so(kind, other):
    """Except by the shape alone, where the elements are as many: that goes well."""
    pytest.importorskip("torch")
    from torch.distributed.flight_recorder.components.types import MatchState, Op

    sound = {
        MatchState.FULLY_MATCHED,
        MatchState.COLLECTIVE_STATE_MISMATCH,
        MatchState.UNDECIDED,
    }

    def call(operation, size, dtype):
        # Sizes that these operations give rise to in a group of two.
        output = {"reduce_scatter": size // 2, "_all_gather_base": 2 * size}.get(operation, size)
        return entry(
            1,
            operation,
            sizes=[[size]],
            output_sizes=[[output]],
            input_dtypes=[dtype],
            output_dtypes=[dtype],
        )

    for size in (8, 12):
        for dtype in ("Float", "Int"):
            one, two = call(kind, 8, "Float"), call(other, size, dtype)
            first, second = (Op(event, {"0": {0, 1}}, "0") for event in (one, two))
            found = find_hang(dumps({0: [one], 1: [two]}, {"0": range(2)}))
            differs = first.match(second).state not in sound
            assert found.mismatched.is_empty() != differs, (size, dtype)
            assert found.operations["calls_differ"].to_list() == [differs]


def test_operations_stand_side_by_side_the_last_first():
    late = [*up_to(3), entry(4, created_ns=1_700_000_000_004_000_000 + 70)]
    hang = find_hang(dumps({0: WAITS, 1: WAITS, 2: late, 3: up_to(4)}))
    columns = ["sequence", "completed", "inside", "calls_differ", "last_rank", "call_spread_ns"]
    assert hang.operations.select(columns).rows() == [
        (5, [], [0, 1], False, 1, 0),
        (4, [0, 1, 2, 3], [], False, 2, 70),
        (3, [0, 1, 2, 3], [], False, 3, 0),
        (2, [0, 1, 2, 3], [], False, 3, 0),
        (1, [0, 1, 2, 3], [], False, 3, 0),
    ]
    assert hang.operations["first_call_time_ns"][0] == 1_700_000_000_005_000_000


def test_a_send_and_its_receive_are_meant_to_differ():
    pair = {
        0: [entry(1, "send 0->1", is_p2p=True)],
        1: [entry(1, "recv 1<-0", is_p2p=True)],
    }
    hang = find_hang(dumps(pair, {"0": range(2)}))
    assert hang.mismatched.is_empty()
    assert hang.operations["completed"].to_list() == [[0, 1]]


def test_waiting_is_followed_to_the_group_where_it_began():
    """Ranks 0 and 1 wait for 2 and 3, which wait in their own group: rank 3 for nobody."""
    groups = {"0": range(4), "7": (2, 3)}
    waits_in_pair = [*up_to(4), entry(1, "reduce_scatter", group=("7", "mesh_tp"), state="started")]
    hang = find_hang(dumps({0: WAITS, 1: WAITS, 2: waits_in_pair, 3: up_to(4)}, groups))
    assert hang.culprits == (3,)
    assert "rank 3" in hang.verdict
    by_group = dict(hang.hanging.select("group", "missing").iter_rows())
    assert by_group["0 (default_pg)"] == [2, 3]
    assert by_group["7 (mesh_tp)"] == [3]


def test_one_dump_that_lists_the_group_speaks_for_all():
    """Groups without ranks, as gloo records them, are those of their name."""
    bare = document(WAITS, {})
    found = [
        parse_dump(as_cpp(bare), 0, "a"),
        parse_dump(as_cpp(document(WAITS, {"0": range(3)})), 1, "b"),
    ]
    assert find_hang(found).culprits == (2,)
    # Where none does, the default group is that of all ranks that are known.
    assert find_hang([parse_dump(as_cpp(bare), rank, "a") for rank in (0, 2)], 3).culprits == (1,)


def test_a_circle_of_orders_is_called_so():
    groups = {"1": (0, 1), "2": (0, 1)}
    first = [entry(1, group=("1", "a"), state="started")]
    second = [entry(1, group=("2", "b"), state="started")]
    hang = find_hang(dumps({0: first, 1: second}, groups))
    assert hang.culprits == (0, 1)
    assert "different orders" in hang.verdict


def test_a_circle_shows_in_what_has_not_begun():
    """Each rank calls both, in another order, and its GPU begins the second after the first."""
    groups = {"1": (0, 1), "2": (0, 1)}
    a, b = ("1", "a"), ("2", "b")
    first = [entry(1, group=a, state="started"), entry(1, group=b, state="scheduled")]
    second = [entry(1, group=b, state="started"), entry(1, group=a, state="scheduled")]
    hang = find_hang(dumps({0: first, 1: second}, groups))
    assert hang.culprits == (0, 1)
    assert "different orders" in hang.verdict
    # A circle is no circle if one of them waits for somebody else there.
    groups = {"1": (0, 1), "2": (1, 2)}
    third = [entry(1, group=b, state="completed")]
    hang = find_hang(dumps({0: first[:1], 1: second}, groups))
    assert hang.culprits == (2,)
    hang = find_hang(dumps({0: first[:1], 1: second, 2: third}, groups))
    assert hang.culprits == ()
    assert "of group 2 (b) hangs: rank 1 waits in it, which rank 2 completed" in hang.verdict


def test_a_gpu_that_does_not_begin_is_named():
    stuck = up_to(5, state="scheduled")
    hang = find_hang(dumps({0: WAITS, 1: stuck, 2: WAITS, 3: WAITS}))
    assert hang.culprits == (1,)
    assert "whose GPU has not begun it" in hang.verdict
    assert hang.members.filter(rank=1)["did"].to_list() == ["queued"]
    # Where no rank's recorder tells what has begun, nothing is queued.
    hang = find_hang(dumps(dict.fromkeys(range(4), stuck)))
    assert hang.culprits == ()


def test_where_half_call_something_else_each_call_is_named():
    other = up_to(5, state="started", sizes=[[4, 9]], output_sizes=[[4, 9]])
    hang = find_hang(dumps({0: WAITS, 1: WAITS, 2: other, 3: other}))
    assert hang.culprits == (0, 1, 2, 3)
    assert hang.verdict.endswith(
        "ranks 0, 1 called all_reduce(Float[4×8]), ranks 2, 3 called all_reduce(Float[4×9])"
    )


def test_who_completed_it_is_not_said_to_be_in_it():
    hang = find_hang(dumps({0: WAITS, 1: WAITS, 2: WAITS, 3: up_to(7)}))
    assert hang.culprits == ()
    assert "ranks 0 to 2 wait in it, which rank 3 completed: the network" in hang.verdict


def test_all_in_it_is_nobodys_fault():
    hang = find_hang(dumps(dict.fromkeys(range(4), WAITS)))
    assert hang.culprits == ()
    assert "the network or the GPUs" in hang.verdict


def test_nothing_hangs():
    hang = find_hang(dumps(dict.fromkeys(range(4), up_to(6))))
    assert hang.culprits == ()
    assert hang.verdict.startswith("nothing hangs")
    assert hang.hanging.is_empty()


def test_retired_without_completion_is_a_time_out():
    retired = up_to(5, state="started", retired=True)
    found = dumps({0: retired})[0]
    assert found.entries[-1].state == TIMED_OUT
    hang = find_hang([found], ranks=4)
    assert hang.hanging["timed_out"].to_list() == [True]
    assert hang.culprits == (1, 2, 3)


def test_gloo_retires_what_it_completed():
    entries = [entry(1, backend="gloo", state="scheduled", retired=True),
               entry(2, backend="gloo", state="scheduled", retired=False)]  # fmt: skip
    states = [one.state for one in dumps({0: entries})[0].entries]
    assert states == [COMPLETED, "scheduled"]


def test_the_status_of_a_group_is_no_number_of_its_collectives():
    """It counts sends and receives with them: gloo and NCCL both do."""
    whole = document([entry(3, state="started")], ALL)
    whole["pg_status"] = {"0": {"last_completed_collective": 9, "last_enqueued_collective": 9}}
    assert parse_dump(as_cpp(whole), 0, "d").entries[0].state == "started"


def test_a_send_waits_for_its_receive_only():
    groups = {"0": range(4), "3": (1, 3)}
    pair = ("3", "pipe")
    sends = [entry(1, "send 0->1", group=pair, is_p2p=True, state="started")]
    hang = find_hang(dumps({0: [], 1: sends, 2: [], 3: []}, groups))
    assert hang.culprits == (3,)
    assert hang.hanging["members"].to_list() == [2]


def test_records_that_begin_later_are_no_evidence():
    overwritten = [entry(number) for number in range(8, 12)]
    late = [entry(5, state="started")]
    hang = find_hang(dumps({0: late, 1: overwritten, 2: up_to(4), 3: late}))
    assert hang.culprits == (2,)
    assert dict(hang.members.select("rank", "did").iter_rows())[1] == "overwritten"


def coalesced(rank, count, last_state="completed", version="2.10"):
    """Exchanges with the other of two ranks by `batch_isend_irecv`.

    Before 2.6 such a group counted as a collective, and its own entry was none of a message.
    """
    peer, entries, is_new = 1 - rank, [], version == "2.10"
    for number in range(1, count + 1):
        state = last_state if number == count else "completed"
        numbers = {} if is_new else {"collective_seq_id": number, "p2p_seq_id": 0}
        inner = {"is_p2p": True, "state": "scheduled", "retired": False, **numbers}
        tensors = {"sizes": [], "output_sizes": []}
        entries += [
            entry(number, f"send {rank}->{peer}", **inner),
            entry(number, f"recv {rank}<-{peer}", **inner),
            entry(number, "coalesced", state=state, is_p2p=is_new, **tensors, **numbers),
        ]
    return numbered(entries)


def numbered(entries):
    """With the record numbers of a whole record."""
    return [{**one, "record_id": place} for place, one in enumerate(entries)]


TWO = {"0": range(2)}


@pytest.mark.parametrize("version", ["2.10", "2.4"])
def test_operations_of_a_completed_group_do_not_hang(version):
    sides = {rank: coalesced(rank, 4, version=version) for rank in (0, 1)}
    assert find_hang(dumps(sides, TWO)).verdict.startswith("nothing hangs")
    number = 1 if version == "2.10" else 5
    waits = [*sides[0], entry(number, state="started", record_id=12)]
    hang = find_hang(dumps(sides | {0: waits}, TWO))
    assert hang.culprits == (1,)
    assert hang.verdict.startswith("all_reduce 1 of group 0 (default_pg) hangs: rank 0 waits")


def test_before_2_6_groups_of_messages_are_no_collectives():
    """The third rank has none: its first collective has the others' number without them."""
    sides = {rank: coalesced(rank, 4, version="2.4") for rank in (0, 1)}
    both = {rank: [*made, entry(5, record_id=12)] for rank, made in sides.items()}
    hang = find_hang(dumps(both | {2: [entry(1)]}, {"0": range(3)}))
    assert hang.verdict.startswith("nothing hangs")
    assert hang.operations.filter(operation="all_reduce")["completed"].to_list() == [[0, 1, 2]]


def test_a_group_hangs_by_its_own_entry():
    waits, misses = coalesced(0, 4, "started"), coalesced(1, 3)
    hang = find_hang(dumps({0: waits, 1: misses}, TWO))
    assert hang.culprits == (1,)
    assert "message 4 from rank" in hang.verdict
    hang = find_hang(dumps({rank: coalesced(rank, 4, "started") for rank in (0, 1)}, TWO))
    assert hang.culprits == ()
    assert "the network or the GPUs" in hang.verdict


def test_a_group_that_lacks_the_receive_is_no_wrong_order():
    whole, lacks = coalesced(0, 4, "started"), coalesced(1, 4, "started")
    del lacks[-2]
    hang = find_hang(dumps({0: whole, 1: numbered(lacks)}, TWO))
    assert hang.culprits == (1,)
    assert "rank 0 waits for rank 1, which did not receive it" in hang.verdict


def test_coalesced_collectives_must_agree_one_by_one():
    def group(size, state):
        inner = {"state": "scheduled", "retired": False}
        parts = [entry(1, "_all_gather_base", sizes=[[n]], **inner) for n in (8, size)]
        return numbered([*parts, entry(1, "coalesced", sizes=[], output_sizes=[], state=state)])

    odd = dict.fromkeys((0, 1, 3), group(16, "started")) | {2: group(24, "started")}
    hang = find_hang(dumps(odd))
    assert hang.culprits == (2,)
    assert "_all_gather_base(Float[24])" in hang.verdict
    alike = find_hang(dumps(dict.fromkeys(range(4), group(16, "completed"))))
    assert alike.verdict.startswith("nothing hangs")


def test_messages_are_numbered_by_pair_and_not_by_rank():
    """Three stages: what the middle one counts as 1, 2, 3 are messages of two pairs."""

    def message(number, text, state="completed"):
        return entry(number, text, is_p2p=True, state=state, sizes=[[1024]])

    stages = {
        0: [message(1, "send 0->1"), message(2, "send 0->1")],
        1: [message(1, "recv 1<-0"), message(2, "send 1->2"), message(3, "recv 1<-0")],
        2: [message(1, "recv 2<-1"), message(2, "recv 2<-1", "started")],
    }
    hang = find_hang(dumps(stages, {"0": range(3)}))
    assert hang.culprits == (1,)
    assert hang.verdict == (
        "message 2 from rank 1 to rank 2 of group 0 (default_pg) hangs: rank 2 waits for rank 1, "
        "which did not send it; rank 2 called it at train.py:12 in train; rank 1 last called recv "
        "from rank 0 in group 0 (default_pg) at train.py:12 in train"
    )


@pytest.mark.parametrize(
    ("first", "second"), [("recv 0<-1", "recv 1<-0"), ("send 0->1", "send 1->0")]
)
def test_messages_in_one_direction_are_a_circle(first, second):
    sides = {
        rank: [entry(1, text, is_p2p=True, state="started")]
        for rank, text in enumerate((first, second))
    }
    hang = find_hang(dumps(sides, TWO))
    assert hang.culprits == (0, 1)
    does, before = ("receives", "sends") if first.startswith("recv") else ("sends", "receives")
    assert f"each {does} before it {before}" in hang.verdict


@pytest.mark.parametrize("change", [{"sizes": [[512]]}, {"input_dtypes": ["Half"]}])
def test_what_is_sent_must_be_what_is_received(change):
    sizes = {"is_p2p": True, "state": "started", "sizes": [[1024]]}
    sides = {
        0: [entry(1, "send 0->1", **sizes)],
        1: [entry(1, "recv 1<-0", **{**sizes, **change})],
    }
    hang = find_hang(dumps(sides, TWO))
    assert hang.culprits == (0, 1)
    assert "rank 0 called send(Float[1024])" in hang.verdict
    assert hang.mismatched.height == 2


def test_outputs_are_compared_too():
    def gather(taken):
        return up_to(5, operation="_all_gather_base", state="started", output_sizes=[[taken]])

    hang = find_hang(dumps(dict.fromkeys((0, 2, 3), gather(128)) | {1: gather(64)}))
    assert hang.culprits == (1,)
    assert "rank 1 called _all_gather_base(Float[4×8] → Float[64])" in hang.verdict
    # Of two that differ, it is the one whose inputs and outputs do not agree.
    hang = find_hang(dumps({0: gather(64), 1: gather(128)}, TWO))
    assert hang.culprits == (1,)


def test_an_exchange_must_expect_what_is_sent():
    def exchange(given, taken):
        return up_to(
            5, operation="all_to_all", state="started", sizes=[[given]], output_sizes=[[taken]]
        )

    even = dict.fromkeys(range(4), exchange(256, 256))
    hang = find_hang(dumps(even | {1: exchange(256, 300)}))
    assert hang.culprits == (1,)
    assert "its members send 1024 elements and expect 1068" in hang.verdict
    uneven = {0: (10, 30), 1: (20, 20), 2: (30, 11), 3: (5, 5)}
    hang = find_hang(dumps({rank: exchange(*sizes) for rank, sizes in uneven.items()}))
    assert hang.culprits == ()
    assert "send 65 elements and expect 66: cannot say which" in hang.verdict
    fits = uneven | {2: (30, 10)}
    hang = find_hang(dumps({rank: exchange(*sizes) for rank, sizes in fits.items()}))
    assert "the network or the GPUs" in hang.verdict


def test_an_exchange_of_lists_tells_which_pair_disagrees():
    def exchange(given, taken):
        sizes = [[[n] for n in side] for side in (given, taken)]
        return up_to(
            5, operation="all_to_all", state="started", sizes=sizes[0], output_sizes=sizes[1]
        )

    lists = {0: ((1, 2, 3), (1, 4, 7)), 1: ((4, 5, 6), (2, 5, 9)), 2: ((7, 8, 9), (3, 6, 9))}
    hang = find_hang(dumps({r: exchange(*sides) for r, sides in lists.items()}, {"0": range(3)}))
    assert hang.culprits == (1, 2)


def test_hardware_is_named_only_if_all_have_begun():
    waits = up_to(5, state="scheduled")
    hang = find_hang(dumps(dict.fromkeys(range(4), waits)))
    assert hang.culprits == ()
    assert "cannot say" in hang.verdict
    assert "network or the GPUs" not in hang.verdict


def test_dumps_without_completed_operations_leave_it_open():
    active = [one for one in numbered(up_to(5, state="started")) if one["state"] != "completed"]
    idle = document([], ALL, pg_status={"0": {"last_completed_collective": 4}})
    found = [*dumps({0: active, 1: active, 3: active}), parse_dump(as_cpp(idle), 2, "rank_2")]
    hang = find_hang(found)
    assert hang.culprits == ()
    assert "cannot say who is missing: the records do not show what rank 2 did" in hang.verdict
    inner = {"is_p2p": True, "state": "scheduled", "retired": False}
    groups = [entry(1, "send 0->1", **inner), entry(2, "send 0->1", record_id=2, **inner)]
    hang = find_hang(dumps({0: groups}, TWO))
    assert hang.verdict.startswith("cannot say whether anything hangs")


def test_a_rank_without_a_dump_is_not_accused_beside_one_that_did_not_come():
    hang = find_hang(dumps({0: WAITS, 2: up_to(4), 3: WAITS}))
    assert hang.culprits == (2,)
    assert "no dump of rank 1 of 4" in hang.notes


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_3", 3),
        ("nccl_trace_rank_12", 12),
        ("nccl_trace_rank_node-17.cluster_4", 4),
        ("host42_5.json", 5),
        ("7.pkl", 7),
        ("trace", None),
    ],
)
def test_the_rank_is_the_last_number_of_the_name(tmp_path, name, rank):
    assert rank_of_dump(tmp_path / name) == rank


def test_old_forms_and_odd_values_are_read():
    old = [{"pg_id": 0, "seq_id": 4, "profiling_name": "nccl2:all_reduce", "state": "started",
            "time_created_ns": 5, "frames": []}, "noise", {"no": "sequence"}]  # fmt: skip
    found = parse_dump(pickle.dumps(old), 1, "old")
    assert [(one.sequence, one.operation, one.backend) for one in found.entries] == [
        (4, "all_reduce", "nccl2")
    ]
    assert "2 entries could not be read" in found.notes[0]
    newer = parse_dump(pickle.dumps(document([], ALL, version="3.0")), 0, "new")
    assert "newer" in newer.notes[0]
    assert parse_dump(pickle.dumps(document([], ALL)), 0, "2.10").notes == ()


def test_ranks_are_numbers_in_a_text_and_nothing_is_evaluated(tmp_path):
    mark = tmp_path / "ran"
    whole = document([entry(1)], ALL)
    whole["pg_config"]["0"]["ranks"] = f"__import__('pathlib').Path('{mark}').touch() or [0, 1]"
    parse_dump(as_python(whole), 0, "d")
    assert not mark.exists()


def test_from_the_command_line(tmp_path):
    histories = {0: WAITS, 1: up_to(4), 2: WAITS}
    for (rank, entries), form in zip(histories.items(), FORMS.values(), strict=False):
        name = f"nccl_trace_rank_gpu9_{rank}"
        (tmp_path / name).write_bytes(form(document(entries, {"0": range(3)})))
    (tmp_path / "notes.txt").write_text("no dump")
    (tmp_path / "nccl_trace_rank_gpu9_3").write_bytes(pickle.dumps(tmp_path))
    words = [str(tmp_path), "--format", "json"]
    found = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).output)
    assert found["culprits"] == [1]
    assert any("may run code" in note for note in found["notes"])
    text = CliRunner().invoke(command, [str(tmp_path / "nccl_trace_rank_gpu9_[012]")])
    assert "wait for rank 1" in " ".join(text.output.split())
    with pytest.raises(UnreadableInputError, match="no flight recorder dump"):
        CliRunner().invoke(command, [str(tmp_path / "*.zip")], catch_exceptions=False)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{}", b"[1, 2", b"\x80\x04N.", pickle.dumps({"a": 1}), b"\x00\x01"]
)
def test_what_is_no_dump_is_refused_in_one_line(data):
    with pytest.raises(StepscopeError) as caught:
        parse_dump(data, 0, "file")
    assert "\n" not in str(caught.value)
    assert "file" in str(caught.value)


def test_a_name_without_a_rank_is_no_matter_where_the_content_is_no_dump(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents": []}')
    with pytest.raises(UnreadableInputError, match="no flight recorder dump"):
        read_dump(file)
    file.write_text('{"version": "2.10", "entries": []}')
    with pytest.raises(UnreadableInputError, match="the name has no rank"):
        read_dump(file)


def test_two_dumps_of_one_rank_are_refused():
    with pytest.raises(UsageError, match="rank 0 has 2 dumps"):
        find_hang([*dumps({0: WAITS}), *dumps({0: WAITS})])
    with pytest.raises(UsageError, match="no flight recorder dump"):
        find_hang([])


def hostile_value():
    """What cannot be hashed, compared or shown in the lifetime of a machine."""
    value = (1, 2)
    for _ in range(80):
        value = (value, value)
    return value


@pytest.mark.parametrize("form", [as_python, as_json])
def test_values_are_what_they_should_be_or_nothing(form):
    odd = [2**64, -(2**70), 1e300, "\ud800", "x" * 10_000, [[[]]], {"a": {}}, None, True]
    if form is as_python:
        odd = [*odd[2:], hostile_value(), b"bytes"]
    names = [*entry(1), "seq_id", "thread_id"]
    entries = [entry(number + 1, **{name: value}) for number, (name, value) in
               enumerate((name, value) for name in names for value in odd)]  # fmt: skip
    frames = [{"name": value, "filename": value, "line": value} for value in odd]
    whole = document([*entries, entry(9000, frames=frames)], ALL)
    whole["pg_config"] |= {
        str(number): {"name": value, "desc": value, "ranks": value}
        for number, value in enumerate(odd)
    }
    whole["version"] = odd[-2]
    data = json.dumps(whole).encode() if form is as_json else pickle.dumps(whole)
    found = parse_dump(data, 0, "d")
    assert len(found.entries) > len(entries) / 2
    hang = find_hang([found])
    for frame in (hang.ranks, hang.operations):
        frame.write_json().encode()


def test_what_many_entries_share_is_read_once():
    shared = [[1] * 16] * 50_000
    entries = [entry(n, sizes=shared, frames=FRAMES * 100) for n in range(200)]
    one = entry(0)
    whole = document([*entries, *[one] * 10_000], ALL)
    ranks = {"ranks": str(list(range(10_000)))}
    whole["pg_config"] = {str(number): ranks for number in range(2_000)}
    began = time.process_time()
    found = parse_dump(pickle.dumps(whole), 0, "d")
    assert time.process_time() - began < 20  # each for itself takes minutes
    assert len(found.entries) == 201
    assert "9999 entries could not be read" in found.notes[0]


def test_a_group_of_very_many_ranks_without_dumps_takes_no_time_per_pair():
    began = time.process_time()
    hang = find_hang(dumps({0: WAITS}, {"0": range(30_000)}))
    assert time.process_time() - began < 20  # looking at all others for each takes a minute
    assert len(hang.culprits) == 29_999
