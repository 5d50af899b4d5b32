"""How fast memory snapshots are read, replayed, simulated and asked, and in how much memory.

    python benchmarks/memory.py                      # 50 MB
    python benchmarks/memory.py --size 50 --size 1000 --plain-up-to 400

Makes its inputs (a synthetic training step, repeated with later times, that ends out of memory),
and deletes them afterwards. Each measurement is a process of its own; of `--repeat` runs the
fastest counts. Reading is compared with a plain `pickle.load`, which trusts the file, with and
without Python's garbage collector. On a machine that others use too, processor time says more than
time. The peak is the largest resident set during each part, with everything that the process holds
by then: the first row shows what the libraries take before any file is read.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "src"
MIB = 1024 * 1024
FIRST_TIME = 1_759_252_584_000_000
STEP_US = 250_000
TENSORS, FRAMES, DEEPEST = 1500, 4000, 45

# -- inputs ----------------------------------------------------------------------------------


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


class Writer:
    """Writes a pickle of protocol 4 by hand, so that a gigabyte of it is never in memory."""

    def __init__(self) -> None:
        self.memo: dict[str, int] = {}
        self.made: dict[str, bytes] = {}

    def shared(self, key: str, made: bytes) -> bytes:
        """A value that is written once and fetched from the memo from then on."""
        if key not in self.memo:
            number = struct.pack("<I", len(self.memo))
            self.made[key] = made + b"r" + number
            self.memo[key] = len(self.memo)
        return b"j" + struct.pack("<I", self.memo[key])

    def word(self, value: str) -> bytes:
        return self.shared(value, text(value))

    def number(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        return b"\x8a\x08" + struct.pack("<q", value)

    def dictionary(self, **parts: bytes) -> bytes:
        return b"}(" + b"".join(self.word(key) + part for key, part in parts.items()) + b"u"

    def frame(self, number: int) -> bytes:
        key = f"frame {number}"
        if key in self.memo:
            return self.shared(key, b"")
        return self.shared(
            key,
            self.dictionary(
                name=self.word(f"forward_{number % 700}"),
                filename=self.word(f"/opt/venv/site-packages/torch/nn/modules/m{number % 97}.py"),
                line=self.number(number),
            ),
        )

    def stack(self, numbers: list[int]) -> bytes:
        return b"](" + b"".join(self.frame(number) for number in numbers) + b"e"


def write_snapshot(path: Path, size_bytes: int) -> int:
    """Writes a snapshot of about a size; returns how many events it has."""
    chance = random.Random(1)
    writer = Writer()
    sizes = [10 * MIB + 2 * MIB * chance.randrange(20) for _ in range(TENSORS)]
    addresses = [0x7F00_0000_0000 + sum(sizes[:k]) for k in range(TENSORS)]
    stacks = [
        [chance.randrange(FRAMES) for _ in range(chance.randrange(15, DEEPEST))]
        for _ in range(TENSORS)
    ]

    def event(action: str, tensor: int, time_us: int) -> bytes:
        return writer.dictionary(
            action=writer.word(action),
            addr=writer.number(addresses[tensor]),
            size=writer.number(sizes[tensor] - (0 if "segment" in action else 100)),
            stream=writer.number(0),
            time_us=writer.number(time_us),
            compile_context=writer.word("N/A"),
            user_metadata=writer.word(""),
            frames=writer.stack(stacks[tensor]),
        )

    def segment(tensor: int) -> bytes:
        block = writer.dictionary(
            address=writer.number(addresses[tensor]),
            size=writer.number(sizes[tensor]),
            requested_size=writer.number(0),
            state=writer.word("inactive"),
            frames=writer.stack([]),
        )
        numbers = {
            "device": 0, "address": addresses[tensor], "total_size": sizes[tensor],
            "allocated_size": 0, "active_size": 0, "requested_size": 0, "stream": 0,
        }  # fmt: skip
        return writer.dictionary(
            **{key: writer.number(value) for key, value in numbers.items()},
            segment_type=writer.word("large"),
            segment_pool_id=b"K\x00K\x00\x86",
            is_expandable=b"\x89",
            frames=writer.stack([]),
            blocks=b"](" + block + b"e",
        )

    order = [(action, k) for k in range(TENSORS) for action in ("segment_alloc", "alloc")]
    freed = ("free_requested", "free_completed")
    backwards = [(action, k) for k in reversed(range(TENSORS)) for action in freed]
    later = [("alloc", k) for k in range(TENSORS)] + backwards
    # Everything that is shared stands at the beginning, whatever is written in which order.
    segment(0)
    for action in ("segment_alloc", "alloc", "free_requested", "free_completed"):
        event(action, 0, FIRST_TIME)
    failed_request(writer, FIRST_TIME)
    writer.stack(list(range(FRAMES)))
    with path.open("wb") as opened:
        opened.write(b"\x80\x04}(" + text("shared") + b"](" + b"".join(writer.made.values()) + b"e")
        opened.write(text("segments") + b"](")
        opened.writelines(segment(k) for k in range(TENSORS))
        opened.write(b"e" + text("device_traces") + b"](](")
        first = [event(*entry, FIRST_TIME + 20 * k) for k, entry in enumerate(order + backwards)]
        opened.writelines(first)
        # A later step is the same bytes but for its times.
        step = [event(*entry, FIRST_TIME + 20 * k) for k, entry in enumerate(later)]
        template = np.frombuffer(b"".join(step), np.uint8).copy()
        ends = np.cumsum([len(part) for part in step])
        mark = writer.word("time_us") + b"\x8a\x08"
        places = np.array(
            [end - len(part) + part.index(mark) + len(mark)
             for end, part in zip(ends, step, strict=True)]
        )  # fmt: skip
        times = FIRST_TIME + 20 * np.arange(len(step))
        count = len(first)
        number = 0
        while opened.tell() < size_bytes - 200:
            number += 1
            now = (times + number * STEP_US).astype("<i8").view(np.uint8).reshape(-1, 8)
            template[places[:, None] + np.arange(8)] = now
            opened.write(template.data)
            count += len(step)
        opened.write(failed_request(writer, FIRST_TIME + (number + 1) * STEP_US))
        opened.write(b"ee" + text("allocator_settings") + b"}" + text("external_annotations"))
        opened.write(b"]u.")
    return count + 1


def failed_request(writer: Writer, time_us: int) -> bytes:
    """The last event: a request for which the device has no room."""
    return writer.dictionary(
        action=writer.word("oom"),
        device_free=writer.number(64 * MIB),
        size=writer.number(600 * MIB),
        stream=writer.number(0),
        time_us=writer.number(time_us),
        frames=writer.stack([]),
    )


# -- measurements, each in a process of its own ----------------------------------------------

PRELUDE = """
import gc, json, sys, time
sys.path.insert(0, sys.argv[1])
path = sys.argv[2]
def measured(work):
    began, busy = time.perf_counter(), time.process_time()
    result = work()
    return result, [time.perf_counter() - began, time.process_time() - busy]
def peak():
    # The largest resident set since it was last asked for.
    try:
        for line in open("/proc/self/status"):
            if line.startswith("VmHWM"):
                open("/proc/self/clear_refs", "w").write("5")
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
"""
PLAIN = """
import pickle
{collector}
_, took = measured(lambda: pickle.load(open(path, "rb")))
print(json.dumps([["{name}", *took, peak()]]))
import os
os._exit(0)  # letting go of so many objects is not measured
"""
OURS = """
import polars as pl
from stepscope.memory.load import load_snapshot
from stepscope.memory.questions.bounded import Run
from stepscope.memory.questions.table import QUESTIONS, Asked, answer
from stepscope.memory.view import SampledMemory
from stepscope.memory.simulator.simulate import reproduce
from stepscope.memory.view import MemoryView
found = [["libraries alone", 0.0, time.process_time(), peak()]]
snapshot, took = measured(lambda: load_snapshot(path, store=False))
found.append(["load_snapshot", *took, peak()])
first = snapshot.events.select(pl.col("time_ns").min()).collect().item()
samples = pl.DataFrame({"time_ns": [first + 10**8 * k for k in range(500)]})
samples = samples.with_columns(used_bytes=pl.lit(70 << 30))
sampled = SampledMemory("metrics.csv", 0, "GPU 0", 80 << 30, samples)
view = MemoryView(snapshot, sampled=(sampled,))
replayed, took = measured(lambda: view.replay)
found.append(["replay", *took, peak()])
assert replayed.mismatches == 0
made, took = measured(lambda: reproduce(replayed, 0))
found.append(["simulate", *took, peak()])
assert made.largest_error == 0
del made
_, took = measured(lambda: view.allocations)
found.append(["categories and lines", *took, peak()])
ASKED = {
    "diff": Asked(before_at="start"),
    "fit": Asked(runs=(Run(1, view), Run(2, view)), targets=(4,)),
}
for question in QUESTIONS:
    if question.name == "shard":  # nothing here is known to be state
        continue
    _, took = measured(lambda: answer(view, question, ASKED.get(question.name)))
    found.append([question.name, *took, peak()])
print(json.dumps(found))
"""
STORING = """
from stepscope.memory.load import load_snapshot
load_snapshot(path, store=True)
print("[]")
"""
STORED = """
from stepscope.memory.load import load_snapshot
_, took = measured(lambda: load_snapshot(path).events.select("size_bytes").collect())
print(json.dumps([["from the store", *took, peak()]]))
"""


Row = tuple[str, float, float, float]
"""What was measured, its time and processor time in seconds, and its peak memory in bytes."""


def run(code: str, path: Path) -> list[Row]:
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(SOURCE), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        print(ended.stderr[-2000:])
        return []
    return [(name, wall, busy, peak) for name, wall, busy, peak in json.loads(ended.stdout)]


def measure(path: Path, small: Path, repeat: int, with_plain: bool) -> list[Row]:
    found: dict[str, Row] = {}
    codes = [OURS]
    run(OURS, small)  # compiles the loops, and keeps them for the next process
    if with_plain:
        codes.insert(0, PLAIN.format(name="pickle.load", collector=""))
        codes.insert(1, PLAIN.format(name="pickle.load, gc off", collector="gc.disable()"))
    for _ in range(repeat):
        for code in codes:
            for row in run(code, path):
                if row[2] < found.setdefault(row[0], row)[2]:
                    found[row[0]] = row
    run(STORING, path)
    found |= {row[0]: row for row in run(STORED, path)}
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, action="append", help="MB; may be repeated")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plain-up-to", type=int, default=1000, help="MB: no pickle.load above")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as directory:
        small = Path(directory) / "small.pickle"
        write_snapshot(small, 1_000_000)
        pickle.loads(small.read_bytes())  # it is a pickle like any other
        for size in arguments.size or [50]:
            path = Path(directory) / f"{size}.pickle"
            events = write_snapshot(path, size * 1_000_000)
            total = path.stat().st_size
            print(f"\n{total / 1e6:,.0f} MB, {events:,} events")
            rows = measure(path, small, arguments.repeat, size <= arguments.plain_up_to)
            plain = next((row for row in rows if row[0] == "pickle.load, gc off"), None)
            print(f"{'':22}{'time':>9}{'processor':>11}{'ratio':>8}{'peak':>10}{'× size':>8}")
            for name, wall, busy, peak in rows:
                ratio = f"{busy / plain[2]:.2f}" if plain else ""
                print(
                    f"{name:22}{wall:8.2f}s{busy:10.2f}s{ratio:>8}{peak / 1e6:8,.0f} MB"
                    f"{peak / total:8.1f}"
                )
            path.unlink()


if __name__ == "__main__":
    main()
