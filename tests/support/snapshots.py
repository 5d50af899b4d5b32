"""Snapshots for tests: programs run on the plain allocator, in every schema, form and protocol."""

from __future__ import annotations

import copy
import json
import pickle
import random
import struct

from tests.support.allocator import KIB, MIB, Allocator, OutOfMemory, Settings

PROTOCOLS = (2, 3, 4, 5)


class Frames:
    """Frames as recorders share them: one object for each place."""

    def __init__(self):
        self._known = {}

    def __call__(self, *places):
        """A stack, the innermost place first; a place is "file.py:12:function"."""
        return [self._frame(place) for place in places]

    def _frame(self, place):
        if place not in self._known:
            filename, line, name = place.split(":", 2)
            self._known[place] = {"name": name, "filename": filename, "line": int(line)}
        return self._known[place]


# -- programs


def train(allocator, steps=3, layers=4, seed=0, scale=1):
    """A training: parameters and optimizer state stay; activations and gradients come and go."""
    chance = random.Random(seed)
    stack = Frames()
    main = "train.py:10:main"

    def size():
        return chance.choice((300, 4 * KIB, 700 * KIB, 3 * MIB, 11 * MIB + 5, 24 * MIB)) * scale

    weights = [
        (allocator.malloc(n, frames=stack(f"model.py:{20 + k}:__init__", main)), n)
        for k, n in enumerate(size() for _ in range(layers))
    ]
    moments = []
    for step in range(steps):
        allocator.range(f"ProfilerStep#{step}", True)
        batch = allocator.malloc(2 * MIB * scale, frames=stack("data.py:7:collate", main))
        saved = []
        for k in range(layers):
            kept = allocator.malloc(size(), frames=stack(f"model.py:{40 + k}:forward", main))
            scratch = allocator.malloc(size() // 2, frames=stack("model.py:60:forward", main))
            saved.append(kept)
            allocator.free(scratch)
        gradients = []
        for kept, (_, n) in zip(reversed(saved), reversed(weights), strict=True):
            gradients.append(allocator.malloc(n))  # backward has no Python frames
            allocator.free(kept, frames=stack("??:0:torch::autograd::Engine::evaluate_function"))
        allocator.free(batch)
        if not moments:
            moments = [
                allocator.malloc(n, frames=stack("torch/optim/adamw.py:180:step", main))
                for _, n in weights
            ]
        for gradient in gradients:
            allocator.free(gradient, frames=stack("torch/optim/optimizer.py:99:zero_grad", main))
        allocator.range(f"ProfilerStep#{step}", False)
    return allocator


def plain_training(**more):
    return train(Allocator(**more)).snapshot()


def pinned(settings=None):
    """Segments that grow with every input, each pinned by what is kept of it."""
    allocator, stack = Allocator(settings=settings), Frames()
    for number in range(8):
        large = allocator.malloc((20 + 4 * number) * MIB, frames=stack("model.py:4:forward"))
        allocator.malloc(2 * MIB, frames=stack("cache.py:2:keep"))
        allocator.free(large)
        allocator.malloc(3 * MIB, frames=stack("cache.py:7:store"))
    return allocator


def out_of_memory():
    """Grows until the device is full."""
    allocator = Allocator(total=512 * MIB)
    stack = Frames()
    held = []
    try:
        for k in range(1000):
            frames = stack(f"model.py:{k % 7}:forward", "train.py:3:main")
            held.append(allocator.malloc((13 + k % 9) * MIB, frames=frames))
            if k % 5 == 4:
                allocator.free(held.pop(-3))
    except OutOfMemory:
        pass
    return allocator.snapshot()


def expandable(**more):
    allocator = train(Allocator(settings=Settings(expandable=True), **more))
    allocator.empty_cache()
    return train(allocator, seed=1).snapshot()


def graph_pools():
    """Private pools of CUDA graphs beside the default one; one graph goes."""
    allocator = train(Allocator(), steps=1)
    pools = [(0, 1), (0, 2)]
    for pool in pools:
        held = [allocator.malloc(n * MIB, pool=pool) for n in (1, 3, 12, 30)]
        allocator.free(held[1])
        allocator.malloc(2 * MIB, pool=pool)
        allocator.free(held[2])
        if pool == pools[1]:
            allocator.free(held[0])
            allocator.free(held[3])
    allocator.freeable_pools.add(pools[1])
    allocator.empty_cache()
    return train(allocator, steps=1, seed=3).snapshot()


def several_streams():
    """Blocks of three streams, some of which wait for another before they are free."""
    allocator = Allocator()
    chance = random.Random(5)
    live, waiting = [], []
    for k in range(200):
        stream = chance.choice((0, 0x55D0_1000, 0x55D0_2000))
        live.append(allocator.malloc(chance.randrange(1, 40) * 256 * KIB, stream=stream))
        if len(live) > 12:
            address = live.pop(chance.randrange(len(live)))
            is_used = k % 3 == 0
            allocator.free(address, pending=is_used)
            if is_used:
                waiting.append(address)
        if len(waiting) > 3:
            allocator.complete(waiting.pop(0))
    return allocator.snapshot()


def overflowed(is_told=True, most=60):
    """The recorder's ring held fewer events than happened."""
    allocator = train(Allocator(max_entries=most), steps=4)
    snapshot = allocator.snapshot()
    assert allocator.recorded > most
    if is_told:
        snapshot["allocator_settings"]["trace_alloc_overflowed"] = True
        snapshot["allocator_settings"]["trace_alloc_max_entries"] = most
    return snapshot


def two_devices():
    one = plain_training()
    other = train(Allocator(device=1), seed=9).snapshot()
    one["segments"] += other["segments"]
    one["device_traces"].append(other["device_traces"][1])
    one["external_annotations"] += other["external_annotations"]
    return one


PROGRAMS = {
    "training": plain_training,
    "out of memory": out_of_memory,
    "expandable": expandable,
    "graph pools": graph_pools,
    "several streams": several_streams,
    "overflowed": overflowed,
    "two devices": two_devices,
    "large blocks kept whole": lambda: plain_training(settings=Settings(max_split=22 * MIB)),
    "rounded to powers": lambda: plain_training(settings=Settings(divisions=4)),
}


# -- schemas


def as_torch_2_0(snapshot):
    """Blocks with a history and without an address; events without a pool; no annotations."""
    old = copy.deepcopy(snapshot)
    for segment in old["segments"]:
        for key in ("is_expandable", "segment_pool_id", "frames", "requested_size"):
            del segment[key]
        for block in segment["blocks"]:
            asked, frames = block.pop("requested_size"), block.pop("frames")
            address = block.pop("address")
            if block["state"] != "inactive":
                block["history"] = [{"addr": address, "real_size": asked, "frames": frames}]
            block["state"] = block["state"].replace("pending", "awaiting")
    for trace in old["device_traces"]:
        for event in trace:
            for key in ("pool_id", "compile_context", "user_metadata", "time_us"):
                del event[key]
    del old["external_annotations"], old["allocator_settings"]
    return old


def as_torch_2_1(snapshot):
    """No time of events, no compile context."""
    old = copy.deepcopy(snapshot)
    for trace in old["device_traces"]:
        for event in trace:
            for key in ("pool_id", "compile_context", "user_metadata", "time_us"):
                del event[key]
    del old["external_annotations"]
    return old


def with_lists(snapshot):
    """Pools as lists, as JSON has them."""
    other = copy.deepcopy(snapshot)
    for segment in other["segments"]:
        segment["segment_pool_id"] = list(segment["segment_pool_id"])
    for trace in other["device_traces"]:
        for event in trace:
            event["pool_id"] = list(event["pool_id"])
    return other


def state_only(snapshot):
    """As `_snapshot(include_traces=False)` and `enabled="state"` leave it."""
    return copy.deepcopy(snapshot) | {"device_traces": [[] for _ in snapshot["device_traces"]]}


def segments_only(snapshot):
    """A bare list of segments, as `torch.cuda.memory_snapshot()` returns."""
    return copy.deepcopy(snapshot["segments"])


def with_open_frames(snapshot):
    """Frames with what newer versions add to them, and newer sections."""
    other = copy.deepcopy(snapshot)
    for trace in other["device_traces"]:
        for number, event in enumerate(trace):
            event["forward_frames"] = ["  File x, line 1\n", "    y = f(x)\n"] if number % 2 else []
            event["frames"] = [
                {**frame, "fx_node_op": "call_function", "fx_node_name": "relu_1"}
                for frame in event["frames"]
            ]
    return other | {"host_segments": [], "host_traces": [[]]}


SCHEMAS = {
    "today": lambda snapshot: snapshot,
    "torch 2.0": as_torch_2_0,
    "torch 2.1": as_torch_2_1,
    "lists": with_lists,
    "state only": state_only,
    "segments only": segments_only,
    "open frames": with_open_frames,
}


# -- forms


def pickled_by_torch(value):
    """A pickle as torch's C++ writer makes it: protocol 2, each value in the memo once it is done.

    Strings are shared by value, containers by identity.
    """
    out = [b"\x80\x02"]
    numbers: dict = {}
    by_identity: dict = {}

    def put(table, key):
        number = len(numbers) + len(by_identity)
        table[key] = number
        out.append(b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number))

    def get(number):
        out.append(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))

    def write(item):
        if item is None or isinstance(item, bool):
            out.append({None: b"N", True: b"\x88", False: b"\x89"}[item])
        elif isinstance(item, float):
            out.append(b"G" + struct.pack(">d", item))
        elif isinstance(item, int):
            if 0 <= item < 256:
                out.append(b"K" + bytes([item]))
            elif 0 <= item < 65536:
                out.append(b"M" + struct.pack("<H", item))
            elif -(2**31) <= item < 2**31:
                out.append(b"J" + struct.pack("<i", item))
            else:
                out.append(b"\x8a\x08" + struct.pack("<q", item))
        elif isinstance(item, str):
            if item in numbers:
                get(numbers[item])
                return
            text = item.encode()
            out.append(b"X" + struct.pack("<I", len(text)) + text)
            put(numbers, item)
        elif id(item) in by_identity:
            get(by_identity[id(item)])
        elif isinstance(item, tuple):
            for part in item:
                write(part)
            out.append(b"\x86")
        else:
            out.append(b"}(" if isinstance(item, dict) else b"](")
            for part in item:
                write(part)
                if isinstance(item, dict):
                    write(item[part])
            out.append(b"u" if isinstance(item, dict) else b"e")
            put(by_identity, id(item))

    write(value)
    return b"".join([*out, b"."])


FORMS = {
    **{f"protocol {n}": lambda value, n=n: pickle.dumps(value, n) for n in PROTOCOLS},
    "torch": pickled_by_torch,
    "json": lambda value: json.dumps(value).encode(),
    "indented json": lambda value: json.dumps(value, indent=2).encode(),
}
