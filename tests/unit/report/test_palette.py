"""Categories that can stand side by side can be told apart, whatever colours a reader sees.

The distance is CIEDE2000. The three colour vision deficiencies are simulated at full strength, as
by Machado, Oliveira and Fernandes (2009). Of two categories with different patterns the pattern
tells.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from tests.unit.report.test_contrast import themes

import stepscope
from stepscope.analysis.host.causes import HostCause

LEAST = 12.0
STATIC = Path(stepscope.__file__).parent / "report" / "page" / "static"
SIDE_BY_SIDE = {
    "work of devices, and parts of a step": (
        "other", "compute", "communication", "copy", "fill", "operator", "call",
    ),
    "work of the host": (
        "operator", "annotation", "python", "call", "synchronisation", "overhead", "step",
    ),
    "idle time": (
        "idle-device-wait", "idle-input", "idle-synchronisation", "idle-allocation",
        "idle-pageable-copy", "idle-annotated-phase", "idle-op-dispatch", "idle-python",
        "idle-unknown", "idle-compilation", "idle-garbage-collection",
        "idle-waiting-for-communication", "idle-profiler", "idle-graph-gap", "idle-one-off",
        "idle-backward", "idle-not-recorded", "idle-cpu-operators",
    ),
    "memory": (
        "memory-parameter", "memory-buffer", "memory-gradient", "memory-optimizer-state",
        "memory-activation", "memory-input", "memory-temporary", "memory-workspace",
        "memory-communication", "memory-cache", "memory-unknown",
    ),
}  # fmt: skip
KERNELS = (
    "attention", "convolution", "elementwise", "normalisation", "reduction", "other-kernel",
)  # fmt: skip
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """L*, a*, b* (D65) of a colour as seen."""
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISIONS[vision] @ linear, 0, 1)
    xyz = TO_XYZ @ seen / TO_XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def distance(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """CIEDE2000."""
    chroma = [np.hypot(*colour[1:]) for colour in (one, other)]
    mean7 = (sum(chroma) / 2) ** 7
    g = 0.5 * (1 - np.sqrt(mean7 / (mean7 + 25**7)))
    (c1, h1), (c2, h2) = (
        (np.hypot((1 + g) * a, b), np.degrees(np.arctan2(b, (1 + g) * a)) % 360)
        for _, a, b in (one, other)
    )
    lightness, c = other[0] - one[0], c2 - c1
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn) / 2)
    mean_l, mean_c = (one[0] + other[0]) / 2, (c1 + c2) / 2
    mean_h = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = (
        1
        - 0.17 * np.cos(np.radians(mean_h - 30))
        + 0.24 * np.cos(np.radians(2 * mean_h))
        + 0.32 * np.cos(np.radians(3 * mean_h + 6))
        - 0.20 * np.cos(np.radians(4 * mean_h - 63))
    )
    of_l = 1 + 0.015 * (mean_l - 50) ** 2 / np.sqrt(20 + (mean_l - 50) ** 2)
    of_c, of_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    rotation = -2 * np.sqrt(mean_c**7 / (mean_c**7 + 25**7))
    rotation *= np.sin(np.radians(60 * np.exp(-(((mean_h - 275) / 25) ** 2))))
    terms = lightness / of_l, c / of_c, hue / of_h
    return float(np.sqrt(sum(x * x for x in terms) + rotation * terms[1] * terms[2]))


def colours(theme: str) -> dict[str, str]:
    """The colour of each category."""
    tokens = themes()[theme].items()
    start = "colour-"
    return {name[len(start) :]: value for name, value in tokens if name.startswith(start)}


def patterns() -> dict[str, str]:
    """The pattern of each category that has one, as the pages draw it."""
    script = (STATIC / "theme.js").read_text()
    names = re.findall(r'"([\w-]+)"', script.split("COLOURS = [")[1].split("]")[0])
    listed = script.split("PATTERNS = ")[1].split("});")[0]
    found = {names[int(at)]: pattern for at, pattern in re.findall(r'(\d+): "(\w+)"', listed)}
    script = (STATIC / "memory-colours.js").read_text()
    listed = script.split("PATTERNS = ")[1].split("});")[0]
    of_memory = {f"memory-{name}": one for name, one in re.findall(r'(\w+): "(\w+)"', listed)}
    return found | of_memory


def test_the_distance_is_that_of_published_pairs():
    assert distance((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert distance((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387)) == pytest.approx(
        1.2644, abs=1e-4
    )
    assert distance((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514)) == pytest.approx(
        0.9082, abs=1e-4
    )


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_categories_side_by_side_can_be_told_apart(theme, vision):
    tokens, drawn_over = colours(theme), patterns()
    near = {}
    for names in SIDE_BY_SIDE.values():
        for one, other in itertools.combinations(names, 2):
            if drawn_over.get(one) != drawn_over.get(other):
                continue
            seen = [lab(tokens[name], vision) for name in (one, other)]
            if (found := distance(*seen)) < LEAST:
                near[one, other] = round(found, 1)
    assert near == {}


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_kinds_of_kernels_are_shades_that_differ_and_are_far_from_other_work(theme, vision):
    tokens = {name: lab(value, vision) for name, value in colours(theme).items()}
    kinds = ("compute", *KERNELS)
    near = {
        pair: round(found, 1)
        for pair in itertools.combinations(kinds, 2)
        if (found := distance(tokens[pair[0]], tokens[pair[1]])) < LEAST / 2
    }
    near |= {
        (kind, other): round(found, 1)
        for kind in KERNELS
        for other in ("communication", "copy", "fill", "other")
        if (found := distance(tokens[kind], tokens[other])) < LEAST
    }
    assert near == {}


def test_every_cause_on_a_critical_path_has_a_colour_of_its_own():
    listed = (STATIC / "part-colours.js").read_text().split("COLOUR_OF = ")[1].split("});")[0]
    named = {one or other for one, other in re.findall(r'(?:"([^"]+)"|(\w+)): \d+', listed)}
    assert {cause.word for cause in HostCause} <= named


def test_idle_time_is_told_from_work_by_its_pattern():
    assert {name for name in SIDE_BY_SIDE["idle time"] if name not in patterns()} == set()
    assert not any(
        name in patterns() for name in SIDE_BY_SIDE["work of devices, and parts of a step"]
    )
