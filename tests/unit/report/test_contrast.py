"""Text can be read on every ground of the pages: the contrast that WCAG 2.2 asks for (level AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.color import Color

import stepscope
from stepscope.report.render import terminal

TOKENS = Path(stepscope.__file__).parent / "report" / "page" / "static" / "tokens.css"
LEAST = 4.5
TEXTS = (
    "ink", "ink-soft", "ink-faint", "accent", "bad", "good",
    "severity-high", "severity-medium", "severity-low", "severity-info",
)  # fmt: skip
GROUNDS = ("paper", "paper-raised", "paper-sunken", "accent-soft")


def themes() -> dict[str, dict[str, str]]:
    light, dark = TOKENS.read_text().split(':root[data-theme="dark"]')
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text)) for text in (light, dark)]
    return {"light": found[0], "dark": found[0] | found[1]}


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    linear = []
    for at in (1, 3, 5):
        part = int(colour[at : at + 2], 16) / 255
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_the_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_on_every_ground(theme):
    tokens = themes()[theme]
    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS] + [("on-accent", "accent")]
    low = {pair: contrast(tokens[pair[0]], tokens[pair[1]]) for pair in pairs}
    assert {pair: found for pair, found in low.items() if found < LEAST} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_buttons_and_fields_can_be_told_from_every_ground(theme):
    tokens = themes()[theme]
    grounds = GROUNDS[:3]
    low = {ground: contrast(tokens["control"], tokens[ground]) for ground in grounds}
    assert {ground: found for ground, found in low.items() if found < 3} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_are_readable_on_slices(theme):
    tokens = themes()[theme]
    colours = {name: value for name, value in tokens.items() if name.startswith("colour-")}
    assert len(colours) > 30
    low = {name: contrast(tokens["slice-ink"], value) for name, value in colours.items()}
    assert {name: found for name, found in low.items() if found < LEAST} == {}


def test_bars_of_a_terminal_can_be_seen_on_black_and_on_white():
    low = {}
    for number in {*terminal.BAR_COLOURS.values(), terminal.OTHER_IDLE, terminal.OTHER_PART}:
        hex_ = Color.from_ansi(number).get_truecolor().hex
        for ground in ("#000000", "#ffffff"):
            if contrast(hex_, ground) < 3:
                low[number] = contrast(hex_, ground)
    assert low == {}
