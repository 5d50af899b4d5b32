"""Draws the picture at the head of each finding's page: what it looks like in a timeline.

    python scripts/finding_pictures.py          # writes docs/pictures/findings/*.svg

They are sketches, not recordings: lanes of a GPU and its host, memory over time, or steps. Each
follows the reader's theme.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures" / "findings"
TOKENS = ROOT / "src" / "stepscope" / "report" / "page" / "static" / "tokens.css"
WIDTH, TITLE, TALL, GAP = 720, 96, 20, 6
LETTER = 6.3
KINDS = {
    "c": ("compute", "compute", False),
    "m": ("communication", "communication", False),
    "y": ("copy", "copy", False),
    "z": ("fill", "fill", False),
    "o": ("operator", "operator", False),
    "l": ("call", "launch", False),
    "p": ("python", "Python", False),
    "a": ("annotation", "phase", False),
    "b": ("operator", "backward", False),
    "E": ("copy", "evaluation", False),
    "R": ("annotation", "computed again", False),
    "d": ("idle-input", "waits for its batch", True),
    "s": ("idle-synchronisation", "blocking call", True),
    "w": ("idle-waiting-for-communication", "waits for other ranks", True),
    "g": ("idle-garbage-collection", "garbage collection", True),
    "x": ("idle-compilation", "compiling", True),
    "k": ("idle-allocation", "cudaMalloc, cudaFree", True),
    "u": ("idle-unknown", "idle", True),
    "n": ("idle-cpu-operators", "computes on the CPU", True),
    "r": ("idle-profiler", "recording", True),
    "q": ("idle-device-wait", "waits for a CPU", True),
    "W": ("memory-parameter", "parameters", False),
    "A": ("memory-activation", "activations", False),
    "O": ("memory-optimizer-state", "optimizer state", False),
    "F": ("memory-unknown", "free, but pinned", True),
    "L": ("memory-gradient", "left behind", False),
    "T": ("memory-gradient", "one tensor", False),
    "X": ("memory-gradient", "the request that fails", True),
    "B": ("memory-buffer", "held from the start", False),
}
"""A letter's colour, its words, and whether it is hatched."""


@dataclass(frozen=True)
class Lanes:
    """Lanes of letters of `KINDS`, equally long; a dot is nothing."""

    about: str
    lanes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Columns:
    """Columns of layers, from the ground up: a letter and its height of 100 in each column."""

    about: str
    layers: tuple[tuple[str, tuple[int, ...]], ...]
    limit: str = ""
    what: str = "memory"


def steps(about: str, *layers: tuple[str, tuple[int, ...]], limit: str = "") -> Columns:
    """Steps, each a column as tall as it is long."""
    return Columns(about, layers, limit, "length of each step")


def ranks(about: str, *lanes: str) -> Lanes:
    """One lane for each rank."""
    return Lanes(about, tuple((f"rank {at}", one) for at, one in enumerate(lanes)))


def gpu(about: str, device: str, host: str, **more: str) -> Lanes:
    """The lanes of a GPU and of its host, and others by their name."""
    rest = tuple((name.replace("_", " "), one) for name, one in more.items())
    return Lanes(about, (("GPU", device), ("host", host), *rest))


PICTURES: dict[str, Lanes | Columns] = {
    "abnormal-collective": ranks(
        "One collective takes four times as long as others of its size, on all ranks at once",
        "cccmmcccmmcccmmmmmmmmcccmm",
        "cccmmcccmmcccmmmmmmmmcccmm",
    ),
    "activations-dominate": Columns(
        "Memory grows through the forward pass and falls through the backward: activations",
        (
            ("W", (18,) * 12),
            ("O", (12,) * 12),
            ("A", (4, 16, 28, 40, 52, 60, 54, 42, 30, 18, 8, 4)),
        ),
    ),
    "allocator-churn": gpu(
        "The GPU is idle while the host frees memory of the driver and asks for it again",
        "cccc......cccc......cccc..",
        "ollokkkkkkolookkkkkkollo..",
    ),
    "busy-cpus": gpu(
        "The training thread is ready, but other processes have the CPUs; the GPU runs dry",
        "ccc....ccc....ccc....ccc..",
        "olqqqqqolqqqqqolqqqqqol...",
    ),
    "compilation-in-window": gpu(
        "The recorded steps hold compiling, and the GPU is idle meanwhile",
        "cc............cccccccccccc",
        "olxxxxxxxxxxxxlllllllll...",
    ),
    "cpu-bound-python": gpu(
        "Python between operators takes so long that each launch comes after the GPU has finished",
        "cc...cc...cc...cc...cc....",
        "olpppolpppolpppolpppol....",
    ),
    "cpu-operators": gpu(
        "The host computes in long operators, and the GPU is idle until it launches again",
        "cc.........ycccc.........yc",
        "olnnnnnnnnollllolnnnnnnnnol",
    ),
    "exposed-communication": gpu(
        "Nothing is computed while gradients are sent",
        "ccccccccccc........ccccccc",
        "ollollollolosssssssolloll.",
        communication="...........mmmmmmmm.......",
    ),
    "exposed-copies": gpu(
        "Copies run alone: nothing is computed until the data is there",
        "......ccccccc......ccccccc",
        "olosssollollolosssollollo.",
        copies="yyyyyy.......yyyyyy.......",
    ),
    "full-precision-matmuls": gpu(
        "Matrix products in full FP32 fill the step; with TF32 each would be a fraction as long",
        "cccccccccccccccccccccccccc",
        "ol..ol..ol..ol..ol..ol....",
        with_TF32="ccc.ccc.ccc.ccc.ccc.......",
    ),
    "fusible-pattern": gpu(
        "A sequence of short kernels repeats that one fused kernel would replace",
        "c.c.c.c.cc.c.c.c.cc.c.c.c.",
        "olololololololololololol..",
        fused="ccc......ccc......ccc.....",
    ),
    "garbage-collector": gpu(
        "The garbage collector stops the host in the middle of a step, and the GPU runs dry",
        "ccccc........ccccccccccccc",
        "ollogggggggggollollollollo",
    ),
    "gpu-unused": gpu(
        "A GPU is there, and nothing runs on it",
        "..........................",
        "oooooooooooooooooooooooooo",
    ),
    "heavy-recomputation": gpu(
        "Before each part of the backward, its forward runs a second time",
        "ccccccccRRbbRRbbRRbbRRbb..",
        "ollollolollollollollollo..",
    ),
    "imbalance": ranks(
        "One rank has more work than the others in one step, another rank in the next",
        "ccccwwwwmmccccccccmmccccww",
        "ccccccccmmccccwwwwmmccccww",
        "cccccwwwmmccccccwwmmcccccc",
    ),
    "input-bound": gpu(
        "The step begins with a wait for its batch, in which the GPU has nothing to do",
        ".........ccccccc.........c",
        "dddddddddllollo.ddddddddd.",
    ),
    "late-rank": ranks(
        "One rank comes last to every collective, and all others wait in it",
        "cccwwwwmmcccwwwwmmcccwwwwm",
        "cccccccmmcccccccmmcccccccm",
        "cccwwwwmmcccwwwwmmcccwwwwm",
    ),
    "launch-bound": gpu(
        "Short kernels with gaps between them: the GPU waits for the host's next launch",
        "c.c.c.c.c.c.c.c.c.c.c.c.c.",
        "olololololololololololol..",
    ),
    "layout-copies": gpu(
        "Between the products run kernels that only rearrange their inputs and results",
        "zzcccczzzcccczzzcccczzzccc",
        "ollollollollollollollollo.",
    ),
    "low-gpu-utilisation": gpu(
        "The GPU is idle for much of the step, and what the host did was not recorded",
        "ccc......ccc......ccc.....",
        "..........................",
    ),
    "many-small-collectives": gpu(
        "Tensors are sent one by one: the latency of each adds up",
        "cccccccc..................",
        "ollolloolololololololololo",
        communication=".........m.m.m.m.m.m.m.m.m",
    ),
    "many-small-kernels": gpu(
        "Most kernels take less time than it takes to launch them",
        "c.c..c.c..c.c..c.c..c.c..c",
        "olololololololololololol..",
    ),
    "memory-far-below-limit": Columns(
        "The peak is far below what the GPU has: a larger batch would fit",
        (("W", (10,) * 12), ("A", (2, 6, 10, 14, 10, 6, 2, 6, 10, 14, 10, 6))),
        "capacity",
    ),
    "memory-fragmented": Columns(
        "Much is reserved that no request fits into: small blocks pin each segment",
        (
            ("W", (20,) * 12),
            ("A", (10, 20, 30, 20, 12, 8, 10, 20, 30, 20, 12, 8)),
            ("F", (10, 14, 20, 32, 40, 44, 42, 32, 22, 32, 40, 44)),
        ),
        "capacity",
    ),
    "memory-leak": Columns(
        "What is held at the end of each step grows from step to step",
        (
            ("W", (20,) * 12),
            ("L", (2, 6, 10, 15, 20, 25, 31, 37, 42, 48, 54, 60)),
            ("A", (6, 14) * 6),
        ),
        "capacity",
    ),
    "memory-near-limit": Columns(
        "The peak leaves no room: one longer sequence, and a request fails",
        (
            ("W", (30,) * 12),
            ("O", (26,) * 12),
            ("A", (10, 24, 36, 24, 10, 4, 10, 24, 36, 24, 10, 4)),
        ),
        "capacity",
    ),
    "one-off-costs": gpu(
        "Something happens once, and the window happens to hold it",
        "ccccc.........ccccccccccccc"[:26],
        "olloloooooooooollollollollo"[:26],
    ),
    "one-tensor-dominates": Columns(
        "At the peak a single tensor holds much of the memory",
        (("W", (20,) * 12), ("A", (8,) * 12), ("T", (0, 0, 0, 0, 48, 48, 48, 0, 0, 0, 0, 0))),
    ),
    "optimizer-state-dominates": Columns(
        "Optimizer state, held through the whole step, is the largest layer",
        (("O", (52,) * 12), ("W", (18,) * 12), ("A", (4, 8, 14, 18, 12, 6, 4, 8, 14, 18, 12, 6))),
    ),
    "out-of-memory": Columns(
        "Memory grows up to the limit, and the next request fails",
        (
            ("W", (26,) * 12),
            ("A", (6, 12, 18, 24, 30, 36, 42, 48, 54, 60, 66, 70)),
            ("X", (0,) * 11 + (9,)),
        ),
        "capacity",
    ),
    "pageable-copies": gpu(
        "The host stands in each copy from pageable memory, and launches nothing meanwhile",
        "......cccc......cccc......",
        "ossssslloloossssslloloosss",
        copies=".yyyyy....yyyyyy....yyyyyy",
    ),
    "pipeline-bubble": ranks(
        "Stages stand idle until the first batches come, and again at the end",
        "ccccccwwwwwwbbcbbcbbcbbcbb",
        "wwccccwwwwbbcbbcbbcbbcbbww",
        "wwwwccwwbbcbbcbbcbbcbbwwww",
        "wwwwwwcbbcbbcbbcbbcbbwwwww",
    ),
    "poor-overlap": gpu(
        "Work that does not need the result stands behind the collective",
        "cccccc......cccccc......cc",
        "ollollo.....ollollo.....ol",
        communication="......mmmmmm......mmmmmm..",
    ),
    "profiler-overhead": gpu(
        "Recording itself takes the host's time between launches",
        "cc..cc..cc..cc..cc..cc....",
        "olrrolrrolrrolrrolrrol....",
    ),
    "python-memory-leak": Columns(
        "The process's own memory grows from step to step, with its Python objects",
        (("B", (24,) * 12), ("L", (3, 8, 13, 18, 23, 28, 33, 38, 43, 48, 53, 58))),
        what="memory of the process",
    ),
    "rank-waiting": ranks(
        "This rank is early in each collective, and waits there for another",
        "cccwwwwmmcccwwwwmmcccwwwwm",
        "cccccccmmcccccccmmcccccccm",
    ),
    "recompilation": steps(
        "Steps with compiling come again long after the first ones",
        ("c", (20,) * 16),
        ("x", (70, 40, 0, 0, 0, 55, 0, 0, 0, 0, 60, 0, 0, 0, 50, 0)),
    ),
    "reserved-without-bound": Columns(
        "What is reserved grows although no more is held",
        (
            ("W", (22,) * 12),
            ("A", (6, 14) * 6),
            ("F", (4, 6, 12, 14, 22, 24, 30, 32, 40, 44, 50, 54)),
        ),
        "capacity",
    ),
    "slow-epoch-start": steps(
        "The first step of each epoch waits for the loader to start its workers anew",
        ("c", (24,) * 18),
        ("d", (66, 0, 0, 0, 0, 0, 66, 0, 0, 0, 0, 0, 66, 0, 0, 0, 0, 0)),
    ),
    "slow-first-steps": steps(
        "The run begins with slow steps: libraries load, code compiles, caches fill",
        ("c", (24,) * 18),
        ("x", (70, 46, 22, 8) + (0,) * 14),
    ),
    "slow-matmuls": gpu(
        "Products of awkward shapes take far longer than their arithmetic needs",
        "cccccccccccccccccccccccccc",
        "ol.....ol.....ol.....ol...",
        at_the_peak="cc.....cc.....cc.....cc...",
    ),
    "work-outside-steps": steps(
        "Between some of the steps, the job evaluates, for a third of its time",
        ("c", (18,) * 6 + (0,) + (18,) * 6 + (0,) + (18,) * 3),
        ("E", (0,) * 6 + (78,) + (0,) * 6 + (78,) + (0,) * 3),
    ),
    "slow-phase": gpu(
        "A named part of the step takes most of it, and the GPU has nothing to do",
        "cccccc..............cccccc",
        "olloloaaaaaaaaaaaaaaollolo",
    ),
    "slow-random-numbers": gpu(
        "The step draws random numbers for longer than it computes with them",
        "zzzzzzzzccczzzzzzzzccczzzz",
        "ol......ololl......olol...",
    ),
    "stalled-step": steps(
        "One step takes far longer than all others",
        ("c", (18,) * 18),
        ("u", (0,) * 11 + (78,) + (0,) * 6),
    ),
    "synchronisation": gpu(
        "The host stops until the GPU has finished, then launches anew; meanwhile the GPU is idle",
        "cccccc...cccccc...cccccc..",
        "ollosssssollosssssollossss",
    ),
    "tensor-cores-unused": gpu(
        "Half-precision products run on ordinary cores",
        "cccccccccccccccccccccccccc",
        "ol....ol....ol....ol......",
        on_tensor_cores="cc....cc....cc....cc......",
    ),
    "throttled-gpu": ranks(
        "The same work takes longer on one GPU, whose clock is lower; the others wait for it",
        "ccccwwwmmccccwwwmmccccwwwm",
        "cccccccmmcccccccmmcccccccm",
        "ccccwwwmmccccwwwmmccccwwwm",
    ),
    "trace-incomplete": gpu(
        "Launches whose kernels are missing, or an end that was cut off",
        "ccc......ccc..............",
        "ollollollollollo..........",
    ),
    "uneven-stages": ranks(
        "One stage computes longer for each batch than the others, which wait for it",
        "cccwwwcccwwwcccwwwcccwww..",
        "wwccccccccccccccccccccccww",
        "wwwwwwwwcccwwwcccwwwcccwww",
    ),
    "uneven-steps": steps(
        "Some steps take more than twice the median",
        ("c", (26, 26, 27, 66, 26, 25, 26, 72, 26, 26, 61, 26, 27, 26, 26, 70)),
    ),
    "unfused-attention": gpu(
        "Attention in pieces, each of which reads and writes the whole matrix of scores",
        "ccczzzcczzzcccczzzcczzzccc",
        "olololololololololololol..",
        fused="cccc.........cccc.........",
    ),
    "unfused-elementwise": gpu(
        "Chains of elementwise kernels read and write the same tensor again and again",
        "cccczzzzzzcccczzzzzzcccczz",
        "ololololololololololololol",
        fused="cccczz....cccczz....cccczz",
    ),
    "unfused-optimizer": gpu(
        "The optimizer launches several kernels for each tensor of the model",
        "ccccccccc.c.c.c.c.c.c.c.c.",
        "ollollollolololololololol.",
    ),
    "zeroed-gradients": gpu(
        "Each step fills all gradients with zeros before it computes new ones",
        "zzzzzccccccccczzzzzccccccc",
        "olol.ollollollolol.ollollo",
    ),
}  # fmt: skip


def svg(picture: Lanes | Columns) -> str:
    """The picture."""
    drawn = lanes(picture) if isinstance(picture, Lanes) else columns(picture)
    body, height, letters = drawn
    used = sorted({letter for letter in letters if letter in KINDS}, key=list(KINDS).index)
    x, keys = 0.0, []
    for letter in used:
        word = KINDS[letter][1]
        keys.append(block(letter, x, height + 12, 10, 10))
        keys.append(f'<text x="{x + 15:g}" y="{height + 21}">{escape(word)}</text>')
        x += 32 + LETTER * len(word)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 28}" '
        f'width="{WIDTH}" role="img"><title>{escape(picture.about)}</title>\n'
        f"<style>{style(used)}</style>\n"
        '<pattern id="h" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="over" d="M0 0V6"/></pattern>\n'
        + "\n".join([*body, *keys])
        + "\n</svg>\n"
    )


def style(letters: list[str]) -> str:
    """The colours of both themes, from the tokens of the pages."""
    themes = re.split(r"\n:root\[data-theme=\"dark\"\] \{", TOKENS.read_text(encoding="utf-8"))
    rules = []
    for text in themes[:2]:
        colours = dict(re.findall(r"--([\w-]+): ([^;]+);", text))
        rules.append(
            f"text{{fill:{colours['ink-soft']}}}.ground{{fill:{colours['paper-sunken']}}}"
            f".line{{stroke:{colours['bad']}}}"
            + "".join(f".{one}{{fill:{colours['colour-' + KINDS[one][0]]}}}" for one in letters)
        )
    fixed = "text{font:11px sans-serif}.over{stroke:#fff;stroke-opacity:.5;stroke-width:4}"
    return f"{fixed}{rules[0]}@media(prefers-color-scheme:dark){{{rules[1]}}}"


def block(letter: str, x: float, y: float, wide: float, tall: float) -> str:
    """A slice."""
    shape = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{tall:g}"'
    over = f'<rect fill="url(#h)" {shape}/>' if KINDS[letter][2] else ""
    return f'<rect class="{letter}" {shape}/>{over}'


def lanes(picture: Lanes) -> tuple[list[str], int, str]:
    """What is drawn, how tall it is, and its letters."""
    found = []
    for row, (title, slices) in enumerate(picture.lanes):
        y = row * (TALL + GAP)
        unit = (WIDTH - TITLE) / max(len(one) for _, one in picture.lanes)
        found.append(f'<text x="0" y="{y + 14}">{escape(title)}</text>')
        found.append(
            f'<rect class="ground" x="{TITLE}" y="{y}" width="{WIDTH - TITLE}" height="{TALL}"/>'
        )
        for letter, start, end in runs(slices):
            edge = 1 if (end - start) * unit > 4 else 0
            x = TITLE + start * unit
            found.append(block(letter, round(x, 1), y, round((end - start) * unit - edge, 1), TALL))
    letters = "".join(one for _, one in picture.lanes)
    return found, len(picture.lanes) * (TALL + GAP), letters


def runs(slices: str) -> Iterator[tuple[str, int, int]]:
    """Letters, with where a run of the same one begins and ends."""
    for found in re.finditer(r"([a-zA-Z])\1*", slices):
        yield found[1], found.start(), found.end()


def columns(picture: Columns) -> tuple[list[str], int, str]:
    """What is drawn, how tall it is, and its letters."""
    height = 120
    number = len(picture.layers[0][1])
    unit = (WIDTH - TITLE) / number
    scale = height / 105
    found = [f'<text x="0" y="14">{escape(picture.what)}</text>']
    if picture.what != "memory":
        words = picture.what.split(" ")
        half = len(words) // 2
        found = [
            f'<text x="0" y="{14 * (at + 1)}">{escape(" ".join(part))}</text>'
            for at, part in enumerate((words[:half], words[half:]))
        ]
    found.append(
        f'<rect class="ground" x="{TITLE}" y="0" width="{WIDTH - TITLE}" height="{height}"/>'
    )
    for column in range(number):
        at = 0.0
        for letter, sizes in picture.layers:
            tall = sizes[column] * scale
            at += tall
            if tall:
                x = TITLE + column * unit
                found.append(
                    block(
                        letter,
                        round(x, 1),
                        round(height - at, 1),
                        round(unit - 1, 1),
                        round(tall, 1),
                    )
                )
    if picture.limit:
        y = round(height - 100 * scale, 1)
        found.append(f'<path class="line" d="M{TITLE} {y:g}H{WIDTH}" stroke-dasharray="5 3"/>')
        found.append(f'<text x="0" y="{y + 100:g}">- - {escape(picture.limit)}</text>')
    return found, height, "".join(letter for letter, _ in picture.layers)


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(svg(picture), encoding="utf-8")


if __name__ == "__main__":
    main()
