"""Snapshots made to do harm: a clean error, in bounded time and memory, and nothing is executed."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.support.damage import damaged
from tests.support.hostile_pickles import (
    FORBIDDEN,
    PROTO,
    dictionary,
    guarded,
    listed,
    lists,
    memo_get,
    plainly,
    sections,
    text,
)
from tests.support.snapshots import FORMS, PROGRAMS, SCHEMAS, plain_training

from stepscope.errors import UnreadableInputError
from stepscope.memory.load import load_snapshot
from stepscope.memory.reading import parse as parsing
from stepscope.memory.reading import tables, tree
from stepscope.memory.reading.values import Plain

SECONDS = float(os.environ.get("STEPSCOPE_FUZZ_SECONDS", "300"))
EVENT = dictionary(action=text("alloc"), addr=b"K\x01", size=b"K\x02", stream=b"K\x00")


def read(data):
    return load_snapshot(io.BytesIO(data))


def refused(data, match=None):
    with pytest.raises(UnreadableInputError, match=match) as raised:
        read(data)
    assert "\n" not in str(raised.value)


def small():
    snapshot = plain_training()
    snapshot["device_traces"][0] = snapshot["device_traces"][0][:12]
    return snapshot


# -- what is executed: nothing


class Exploit:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_is_refused_and_calls_nothing(tmp_path, protocol):
    target = tmp_path / "made"
    for value in (Exploit(str(target)), {"segments": [Exploit(str(target))], "device_traces": []}):
        refused(pickle.dumps(value, protocol))
    assert not target.exists()


@pytest.mark.parametrize("opcode", FORBIDDEN, ids=lambda opcode: opcode.name)
def test_every_opcode_that_no_recorder_writes_is_refused(opcode):
    code = opcode.code.encode("latin-1")
    for data in (
        PROTO + code + b"cos\nsystem\n" * 3 + b".",
        PROTO + b"}(" + text("segments") + b"](" + code + b"\x00" * 20 + b"eu.",
        PROTO + b"]" * 5 + code,
    ):
        refused(data, opcode.name)


@pytest.mark.parametrize("protocol", [0, 1, 6, 7, 255])
def test_other_protocols_are_refused(protocol):
    refused(b"\x80" + bytes([protocol]) + b"}.")


def test_other_pickles_and_files_are_no_snapshots():
    for value in ({}, [1], {"segments": 3}, {"state_dict": {}}, 7, None, "text", (1, 2), [[]]):
        refused(pickle.dumps(value, 4), "no memory snapshot")
    for value in ({"traceEvents": []}, {"a": 1}, [1, 2], [{"ph": "X"}]):
        refused(json.dumps(value).encode(), "no memory snapshot")
    for data in (b"PK\x03\x04", b"\x00" * 100, b"text", b"\x80", b"\x80\x04", b"{", b"[", b" "):
        refused(data)


# -- lengths, numbers and depths that are claimed


@pytest.mark.parametrize(
    "data",
    [
        PROTO + b"]r\xff\xff\xff\x7f.",  # nine bytes that would have the memo take a gigabyte
        PROTO + b"]r\xff\xff\xff\xff.",
        PROTO + b"X\xff\xff\xff\xff.",
        PROTO + b"\x8d" + b"\xff" * 8 + b".",
        PROTO + b"\x8d" + struct.pack("<Q", 2**40) + b".",
        PROTO + b"\x8b\xff\xff\xff\x7f.",
        PROTO + b"\x8b\xff\xff\xff\xff.",
        PROTO + b"\x95" + b"\xff" * 8,
        PROTO + b"(" * 100_000,
        PROTO + b"u.",
        PROTO + b"e.",
        PROTO + b"s.",
        PROTO + b"a.",
        PROTO + b"\x94.",
        PROTO + b"\x85.",
        PROTO + b"(\x85.",
        PROTO + b"}(Nu.",
        PROTO + b"}Ne.",
        PROTO + b"](Ne(.",
        PROTO + b"](NNu.",
        PROTO + b"}(NNe.",
        PROTO + b"NNNa.",
        PROTO + b"h\x05.",
        PROTO + b"j\x05\x00\x00\x00.",
        PROTO + b"NN.",
        PROTO + b".",
    ],
)
def test_claims_that_are_not_true(data):
    refused(data)


def test_deep_tuples_as_keys_crash_nothing():
    """A dictionary of Python's would hash such a key, and overflow the stack of C."""
    deep = b"N" + b"\x85" * 200_000
    refused(PROTO + b"}(" + deep + b"Nu.")
    read(sections(segments=b"]", device_traces=b"]", more=b"}(" + deep + b"Nu"))
    read(sections(segments=b"]", device_traces=listed(deep), allocator_settings=deep))
    refused(sections(segments=listed(deep), device_traces=b"]"), "no memory snapshot")


def test_deep_json_is_refused():
    refused(b'{"segments": ' + b"[" * 100_000)
    refused(b'{"segments": ' + b'{"a":' * 100_000)


def test_cycles_end():
    own = PROTO + b"}\x94(" + text("segments") + b"]" + text("device_traces") + b"]"
    read(own + text("allocator_settings") + memo_get(0) + text("external_annotations") + b"]u.")
    looped = b"]\x94(" + EVENT + memo_get(0) + b"e"
    assert len(read(sections(segments=b"]", device_traces=listed(looped))).events.collect()) == 1
    frames = dictionary(action=text("alloc"), frames=b"]\x94" + memo_get(0) + b"a")
    assert read(sections(segments=b"]", device_traces=listed(listed(frames)))).stacks.height <= 1


# -- little that stands for much


def test_the_same_list_many_times_is_refused():
    events = listed(*[EVENT] * 1000).replace(b"](", b"]\x94(", 1)
    refused(
        sections(segments=b"]", device_traces=listed(events, *[memo_get(0)] * 4000)),
        "over and over",
    )
    blocks = listed(*[dictionary(size=b"K\x01", state=text("inactive"))] * 1000)
    segment = dictionary(address=b"K\x01", total_size=b"K\x01", blocks=blocks)
    repeated = listed(segment + b"\x94", *[memo_get(0)] * 4000)
    refused(sections(segments=repeated, device_traces=b"]"), "over and over")


def test_a_name_shared_by_many_frames_is_refused():
    name = text("n" * 10_000)
    first = dictionary(name=name + b"\x94", filename=text("f"), line=b"K\x01")
    others = [
        dictionary(name=memo_get(0), filename=text("f"), line=b"J" + struct.pack("<i", k))
        for k in range(20_000)
    ]
    event = dictionary(action=text("alloc"), frames=listed(first, *others))
    refused(sections(segments=b"]", device_traces=listed(listed(event))), "names of its frames")


def test_settings_that_double_with_each_level_are_cut():
    doubled = b"N\x94"
    for level in range(60):
        doubled = b"](" + doubled + memo_get(level) + b"e\x94"
    began = time.process_time()
    found = read(
        sections(segments=b"]", device_traces=b"]", allocator_settings=dictionary(a=doubled))
    )
    assert found.problems["problem"].to_list() == ["cut_value"]
    assert time.process_time() - began < 20


def test_metadata_that_doubles_with_each_level_is_cut():
    doubled = b"N\x94"
    for level in range(60):
        doubled = b"](" + doubled + memo_get(level) + b"e\x94"
    event = dictionary(action=text("alloc"), user_metadata=doubled)
    found = read(sections(segments=b"]", device_traces=listed(listed(event))))
    assert found.problems["problem"].to_list() == ["cut_value"]


def test_stacks_that_all_look_alike_take_bounded_work():
    """Long stacks that differ in their last frame only, each a list of its own."""
    frame = dictionary(name=text("f"), filename=text("g"), line=b"K\x01") + b"\x94"
    events = []
    for number in range(3000):
        own = dictionary(name=text("f"), filename=text("g"), line=b"M" + struct.pack("<H", number))
        shared = (frame if not number else memo_get(0)) + memo_get(0) * 200
        events.append(dictionary(action=text("alloc"), frames=listed(shared, own)))
    found = read(sections(segments=b"]", device_traces=listed(listed(*events))))
    assert len(found.stacks) == 3000


CHILD = """
import io, resource, sys, time
sys.path[:0] = {path!r}
from stepscope.errors import UnreadableInputError
from stepscope.memory.load import load_snapshot
import tests.robustness.test_hostile_snapshots as cases
from tests.support.snapshots import plain_training
import pickle
load_snapshot(io.BytesIO(pickle.dumps(plain_training())))  # everything is compiled and loaded
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
data = cases.BOMBS[{name!r}]()
before = peak()
began = time.process_time()
try:
    load_snapshot(io.BytesIO(data))
    said = "read"
except UnreadableInputError as error:
    said = str(error)
print(len(data), peak() - before, time.process_time() - began, said)
"""

BOMBS = {
    "empty lists": lambda: PROTO + b"]" * 40_000_000 + b".",
    "empty lists in a list": lambda: PROTO + b"](" + b"]" * 40_000_000 + b"e.",
    "nothings": lambda: PROTO + b"](" + b"N" * 40_000_000 + b"e.",
    "small lists": lambda: PROTO + b"](" + b"]Na" * 13_000_000 + b"e.",
    "tuples": lambda: PROTO + b"N" + b"\x85" * 40_000_000 + b".",
    "memo": lambda: PROTO + b"]" + b"\x94" * 40_000_000 + b".",
    "gzip": lambda: gzip.compress(PROTO + b"](" + b"N" * 1_500_000_000 + b"e.", 1),
    "events of nothing": lambda: sections(
        segments=b"]", device_traces=listed(b"](" + b"}" * 40_000_000 + b"e")
    ),
    "JSON": lambda: b'{"segments": [' + b"[]," * 13_000_000 + b"[]]}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_bombs_take_no_more_than_a_few_times_their_size(name):
    code = CHILD.format(path=sys.path, name=name)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True
    )
    size, grown, seconds, said = ended.stdout.split(None, 3)
    allowed = 2_500_000_000 if name == "gzip" else 5 * int(size) + 200_000_000
    assert int(grown) < allowed, said
    assert float(seconds) < 120, said


# -- damage


def test_truncation_anywhere_is_a_clear_error():
    for form in ("protocol 2", "protocol 4", "torch", "json"):
        data = FORMS[form](small())
        step = max(1, len(data) // 400)
        for cut in range(1, len(data) - 1, step):
            refused(data[:cut])


def replacements(snapshot):
    """The snapshot with one value after the other replaced by a few others."""
    chance = random.Random(0)
    others = (None, True, 7, -1, 1.5, 2**80, "x", "alloc", [], [1], {}, {"frames": 3}, (1, 2), [[]])
    paths = [()]

    def collect(value, path):
        if isinstance(value, dict):
            inner = list(value.items())
        else:
            inner = list(enumerate(value[:2])) if isinstance(value, (list, tuple)) else []
        for key, part in inner:
            paths.append((*path, key))
            collect(part, (*path, key))

    collect(snapshot, ())
    for path in paths[1:]:
        for other in chance.sample(others, 4):
            changed = copy.deepcopy(snapshot)
            place = changed
            for key in path[:-1]:
                place = place[key]
            if isinstance(place, tuple):
                continue
            place[path[-1]] = other
            yield path, other, changed


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["today", "torch 2.0"])
def test_values_of_wrong_types_are_left_out_or_refused(schema):
    snapshot = small()
    snapshot["segments"] = snapshot["segments"][:2]
    snapshot["device_traces"][0] = snapshot["device_traces"][0][:2]
    cases = 0
    for path, other, changed in replacements(SCHEMAS[schema](snapshot)):
        cases += 1
        try:
            found = read(pickle.dumps(changed, 4))
        except UnreadableInputError as error:
            assert "no memory snapshot" in str(error), (path, other)
            continue
        assert len(found.events.collect()) <= 2, (path, other)
        assert len(found.segments) <= 2, (path, other)
    assert cases > 200


# -- the loops, as plain Python with arrays that watch their bounds, against the compiled ones


def walked(data):
    """The tree of a file by the loop that is not compiled; or what the error says."""
    original = parsing.compiled_walk

    def plain(handle):
        compiled = original(handle)
        return lambda *args: compiled.function(
            *(guarded(a) if isinstance(a, np.ndarray) else a for a in args)
        )

    parsing.compiled_walk = plain
    try:
        return outcome(data)
    finally:
        parsing.compiled_walk = original


def outcome(data):
    array = np.frombuffer(bytearray(data), np.uint8)
    try:
        return parsing.parse(array, "file")
    except UnreadableInputError as error:
        return str(error)


def same_trees(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return one.root == other.root and all(
        np.array_equal(getattr(one, field), getattr(other, field))
        for field in ("kinds", "firsts", "starts", "counts", "nexts", "items")
    )


TOKENS = [
    *(bytes([code]) for code in b"}])(tuesaNKMJGXqrhj.0\x80\x85\x86\x87\x88\x8a\x8b\x8c\x8d\x94"),
    *(bytes([code]) for code in b'{}[]:,"\\ \n-0123456789.eEtfn'), b"\xff\xff\xff\xff", b"\x00" * 4,
    b"\x00\x00\x00\x80", b"q\x00", b"h\x00", b"j\x00\x00\x00\x00", b"((((", b"]]]]", b"}}",
    b"cos\nsystem\n", b"\x93", b"R", b"true", b"null", b'"frames"', b"X\x06\x00\x00\x00frames",
    b"\x8c\x06action", b"\x8c\x06blocks", b"1e999", b"\x8a\xff", b"\x8a\x09" + b"\xff" * 9,
]  # fmt: skip


def originals():
    made = []
    for program in ("training", "graph pools"):
        snapshot = PROGRAMS[program]()
        snapshot["device_traces"][0] = snapshot["device_traces"][0][:20]
        snapshot["segments"] = snapshot["segments"][:2]
        made += [
            form(SCHEMAS[s](snapshot)) for s in ("today", "torch 2.0") for form in FORMS.values()
        ]
    return made


def check_damage(seconds, most_cases, seed):
    chance = random.Random(seed)
    files = originals()
    end = time.monotonic() + seconds
    read_whole = cases = 0
    while time.monotonic() < end and cases < most_cases:
        state = chance.getrandbits(32)
        case = random.Random(state)
        data = damaged(case.choice(files), case, TOKENS, 100_000)
        label = f"seed {seed}, state {state}"
        began = time.process_time()
        found = outcome(data)
        assert same_trees(found, walked(data)), label
        if isinstance(found, tree.Tree):
            try:
                expected = plainly(found.data.tobytes())
            except Exception:  # what Python refuses: text that is no UTF-8, keys that are lists
                expected = None
            plain = Plain(found, 10**6)
            value = plain.of(found.root)
            if expected is not None and not plain.is_cut and "\ufffd" not in str(value):
                assert value == lists(expected), label
            try:
                tables.tables_of(found, "file")
                read_whole += 1
            except UnreadableInputError as error:
                assert "\n" not in str(error), label
        assert time.process_time() - began < 60, label
        cases += 1
    assert cases
    return cases, read_whole


def test_some_random_damage():
    _, read_whole = check_damage(60, 250, seed=1)
    assert read_whole > 10  # damage that leaves a file readable is the more dangerous one


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_random_damage():
    seed = int(os.environ.get("STEPSCOPE_FUZZ_SEED", time.time_ns() % 2**32))
    cases, read_whole = check_damage(SECONDS, 10**9, seed)
    print(f"{cases} cases, {read_whole} of them read, seed {seed}")
