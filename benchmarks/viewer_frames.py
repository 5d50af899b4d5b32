"""How long the viewer's frames take while one zooms and pans, with software rendering.

    python benchmarks/viewer_frames.py TRACE [--seconds 5] [--renderer webgl2]

Opens a trace of any size in headless Chromium and moves through it at several zooms. The time
between frames is what a person sees; the work of the page is its script's share of that. A trace of
about ten million events is what the goal is for: `benchmarks/scaled_trace.py` makes one, and
`benchmarks/viewer.py TRACE --browser` enlarges one in memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.browser import Page, browsing
from tests.support.viewer import serving

WIDTH, HEIGHT = 1500 + 570, 900
"""Of the page; the timeline has 1,500 pixels of it."""
SETTLED = "() => window.stepscope?.timeline?.timeline?.isSettled"
MOVES = (("zoom", 1.0), ("pan", 1.0), ("pan", 0.05), ("pan", 0.01), ("pan", 0.001), ("zoom", 0.001))
"""What is done, and with which part of the trace on the screen at first."""
FRAMES = """async ([kind, part, seconds]) => {
    const view = window.stepscope.timeline.timeline;
    const { camera } = view;
    const end = camera.endNs;
    camera.show(end * (0.5 - part / 2), end * (0.5 + part / 2));
    view._moved();
    do await new Promise((go) => setTimeout(go, 200)); while (!view.isSettled);
    const work = [], gaps = [];
    const began = performance.now();
    let last = began;
    for (let at = 0; last - began < seconds * 1000; at++) {
        const isForth = at % 80 < 40;
        if (kind === "zoom") camera.zoom(isForth ? 0.93 : 1 / 0.93, 700);
        else camera.pan(isForth ? 12 : -12);
        view._moved();
        // The page draws in this frame; the timer runs when it is done.
        await new Promise((go) => requestAnimationFrame(go));
        await new Promise((go) => setTimeout(go, 0));
        const now = performance.now();
        work.push(view.lastFrameMs);
        gaps.push(now - last);
        last = now;
    }
    return { work, gaps, renderer: view.renderer };
}"""


def print_frames(page: Page, seconds: float = 5.0) -> None:
    """Move through the trace on a page, and print how long frames took.

    Args:
        page: A viewer whose timeline is drawn.
        seconds: How long each kind of moving lasts.
    """
    print(f"{'frames':<36}{'number':>8}{'between, p50':>14}{'p99':>9}{'work, p50':>12}{'p99':>9}")
    for kind, part in MOVES:
        found: dict[str, Any] = page.page.evaluate(FRAMES, [kind, part, seconds])
        gaps, work = np.array(found["gaps"]), np.array(found["work"])
        figures = [np.percentile(values, at) for values in (gaps, work) for at in (50, 99)]
        title = f"{found['renderer']}, {kind} at {part:.1%} of the trace"
        shown = "".join(
            f"{ms:>{room}.1f} ms" for ms, room in zip(figures, (11, 6, 9, 6), strict=True)
        )
        print(f"{title:<36}{len(gaps):>8}{shown}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--renderer", choices=("webgl2", "canvas2d"), help="default: the page's choice"
    )
    given = parser.parse_args()
    print(f"{given.trace.name}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with (
        tempfile.TemporaryDirectory() as profile,
        serving([given.trace]) as client,
        browsing(Path(profile), WIDTH, HEIGHT) as new_page,
    ):
        client.wait()
        page = new_page()
        page.page.goto(client.link + (f"&renderer={given.renderer}" if given.renderer else ""))
        page.until(SETTLED)
        page.until("() => document.querySelector('[data-panel=findings][data-ready]')")
        print_frames(page, given.seconds)


if __name__ == "__main__":
    main()
