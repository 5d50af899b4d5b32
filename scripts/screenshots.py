"""Takes pictures of every view, light and dark, from 800 to 3840 pixels wide.

    python scripts/screenshots.py FOLDER                   # of traces made for them
    python scripts/screenshots.py FOLDER --traces TRACES   # of five real inputs in this folder
    python scripts/screenshots.py FOLDER --keep            # and renew those of README and docs
    python scripts/screenshots.py FOLDER --run R           # and the report of a run: the demo's

Needs playwright and Chromium (`STEPSCOPE_CHROMIUM`, or on PATH).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Page, browsing  # noqa: E402
from tests.support.rank_jobs import rank_of_job  # noqa: E402
from tests.support.transformer import FAST, SLOW  # noqa: E402
from tests.support.transformer_memory import transformer_memory  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
SIZES = {800: 900, 1280: 800, 1920: 1080, 3840: 2160}
SCHEMES = ("light", "dark")
KEPT = {
    "report-1280-light": "report.png",
    "close-1280-light": "viewer.png",
    "close-1280-dark": "viewer-dark.png",
    "flame-1280-light": "flame-graph.png",
    "memory-1280-light": "viewer-memory.png",
    "ranks-1280-light": "viewer-ranks.png",
}
MOST_BYTES = 150_000
COLUMNS = 100
DELAYS_MS = (1.0, 1.1, 1.6, 1.05, 1.0, 4.2, 1.1, 0.9, 1.3, 1.0, 1.4, 1.1, 1.0, 1.2, 0.9, 1.1)
"""How late each rank of the job is that the ranks view shows."""
SESSION = (("report", "slow.json"), ("compare", "slow.json", "fast.json", "--rows", "4"))
SETTLED = "() => window.stepscope?.timeline?.timeline?.isSettled"
READY = "() => document.querySelector('.view')?.dataset.ready"
# rich's own frame fetches a font from a stranger's server.
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
text {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class View:
    """A view of the viewer.

    Attributes:
        name: Its name in the files' names.
        link: What follows # in its address; times of the second step are put in.
        ready: An expression that is true once it is drawn.
        clicks: What is clicked then, one after the other.
    """

    name: str
    link: str
    ready: str = READY
    clicks: tuple[str, ...] = ()


FINDINGS = "() => document.querySelector('[data-panel=findings][data-ready]')"
ANYWHERE = (
    View("whole", "view=timeline", SETTLED),
    View(
        "finding",
        "view=timeline",
        SETTLED,
        (".finding:has(button) summary", ".finding[open] button"),
    ),
    View("flame", "view=flame&by=module"),
    View("functions", "view=flame&by=python"),
    View("kernels", "view=tables&question=kernels"),
    View("steps", "view=tables&question=steps"),
    View("ladder", "view=tables&question=ladder"),
    View("compute", "view=tables&question=compute"),
    View("communication", "view=tables&question=communication"),
    View("sql", "view=sql", "() => document.querySelector('.query')", ("button:text-is('Run')",)),
)
"""Views of every trace; one that it lacks is left out."""
SLOW_STEP = (
    View("timeline", "view=timeline&range={start}-{end}", SETTLED),
    View("close", "view=timeline&from={before}&to={after}", SETTLED),
)
COMPARED = View("compare", "view=compare")
MEMORY = (
    View("memory", ""),
    View("allocation", "allocation=12&at=event+300"),
)
RANKS = (
    View("ranks", "view=ranks"),
    View("ranks-wait", "view=ranks&measure=wait_ns"),
)


@dataclass(frozen=True)
class Input:
    """What is opened, and seen in several views.

    Attributes:
        name: The beginning of its files' names; empty for what README and docs show.
        paths: What the viewer is given.
        views: What is looked at.
        is_snapshot: Whether it is one of memory, which has only its own view.
    """

    name: str
    paths: tuple[str, ...]
    views: tuple[View, ...] = ANYWHERE
    is_snapshot: bool = False


PLANTED = (
    Input("", ("slow.json", "fast.json"), (*SLOW_STEP, *ANYWHERE, COMPARED)),
    Input("", ("memory.pickle",), MEMORY, is_snapshot=True),
    Input("", ("job",), RANKS),
)
REAL = (
    Input("inference", ("h100_qwen_inference/trace.json.gz",)),
    Input("training", ("v100_train_5steps/trace.json.gz",)),
    Input("job", ("v100_dlrm_8rank",), (*ANYWHERE, *RANKS)),
    Input(
        "loader",
        (
            "v100_dataloader_contrast/num_workers_0_worker0.1623143089861.pt.trace.json.gz",
            "v100_dataloader_contrast/num_workers_4_worker0.1623212756351.pt.trace.json.gz",
        ),
        (*ANYWHERE, COMPARED),
    ),
    Input("snapshot", ("snapshots/mosaic_output.pickle",), MEMORY, is_snapshot=True),
)
OFFERED = "() => [...document.querySelectorAll('nav.views button')].map(one => one.dataset.view)"
DRAWN = "() => window.stepscope?.view?.chart?.isSettled ?? true"


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--traces", type=Path, help="a folder of real traces to show instead")
    parser.add_argument("--widths", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--only", nargs="+", help="names of inputs, or of views")
    parser.add_argument("--keep", action="store_true", help="copy the few that the docs show there")
    parser.add_argument("--run", type=Path, help="a run whose report is shown, too")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stepscope-pictures-") as name:
        work = Path(name)
        inputs = PLANTED if given.traces is None else REAL
        if given.traces is None:
            plant(work)
        if given.run is not None:
            stepscope(work, "report", str(given.run.resolve()), "-o", "run-report.html")
        if given.keep:
            (given.folder / "terminal.svg").write_text(terminal_session(work), encoding="utf-8")
        with browsing(work / "profile") as new_page:
            for one in inputs:
                views = [
                    view
                    for view in one.views
                    if not given.only or {one.name, view.name} & set(given.only)
                ]
                if not views:
                    continue
                paths = [str((given.traces or work).resolve() / path) for path in one.paths]
                if given.traces is not None:
                    stepscope(work, "report", paths[0], "-o", f"{one.name}-report.html")
                with viewing(work, *paths) as link:
                    page = new_page()
                    page.page.goto(f"{link}#{views[0].link}" if one.is_snapshot else link)
                    if not one.is_snapshot:
                        page.until(SETTLED)
                        page.until(FINDINGS)
                    take_views(page, one.name, views, given.folder, given.widths)
                    page.close()
            take_pages(new_page(), work, given.folder, given.widths)
    if given.keep:
        keep(given.folder)


def plant(work: Path) -> None:
    """Write the traces, the snapshot and the job that README and docs show."""
    for file, training in (("slow.json", SLOW), ("fast.json", FAST)):
        (work / file).write_bytes(training.trace().json())
    (work / "memory.pickle").write_bytes(transformer_memory())
    (work / "job").mkdir()
    for rank in range(len(DELAYS_MS)):
        trace = rank_of_job(rank, DELAYS_MS, steps=12)
        (work / "job" / f"rank{rank}.json").write_bytes(trace.json())
    stepscope(work, "report", "slow.json", "-o", "report.html")
    stepscope(work, "compare", "slow.json", "fast.json", "-o", "compare-page.html")


def stepscope(work: Path, *words: str, **environment: str) -> str:
    """What a verb prints."""
    return subprocess.run(
        [sys.executable, "-m", "stepscope", *words],
        cwd=work,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    ).stdout


def terminal_session(work: Path) -> str:
    """What a person types and sees, as SVG."""
    import io

    from rich.console import Console
    from rich.text import Text

    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for words in SESSION:
        screen.print(Text.assemble(("$ ", "green"), (f"stepscope {' '.join(words)}", "bold")))
        shown = stepscope(work, *words, FORCE_COLOR="1", COLUMNS=str(COLUMNS))
        screen.print(Text.from_ansi(shown.rstrip()))
        screen.print()
    return screen.export_svg(title="stepscope", code_format=FRAME, unique_id="stepscope")


@contextmanager
def viewing(work: Path, *paths: str) -> Iterator[str]:
    """A viewer of some traces; gives its link."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "view", *paths, "--no-browser"],
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def each_look(page: Page, widths: Sequence[int]) -> Iterator[str]:
    """Every width, light and dark, in words for a file's name."""
    for width in widths:
        page.page.set_viewport_size({"width": width, "height": SIZES[width]})
        for scheme in SCHEMES:
            page.page.emulate_media(color_scheme=scheme)
            yield f"{width}-{scheme}"


def take_pages(page: Page, work: Path, folder: Path, widths: Sequence[int]) -> None:
    """Each page in one file, its beginning and as a whole."""
    for file in sorted(work.glob("*.html")):
        page.page.goto(file.as_uri())
        page.until("() => document.documentElement.dataset.ready")
        for look in each_look(page, widths):
            for ending, whole in (("", False), ("-whole", True)):
                target = folder / f"{file.stem}-{look}{ending}.png"
                page.page.screenshot(path=str(target), full_page=whole, animations="disabled")


def take_views(
    page: Page, name: str, views: Sequence[View], folder: Path, widths: Sequence[int]
) -> None:
    """Each view of the viewer."""
    offered = page.page.evaluate(OFFERED)
    for view in views:
        chosen = dict(parse_qsl(view.link)).get("view", "")
        if chosen and offered and chosen not in offered:
            continue
        for look in each_look(page, widths):
            page.page.evaluate("() => { location.hash = '' }")
            page.page.evaluate(
                "place => { location.hash = place }", view.link.format(**second_step())
            )
            page.until(view.ready)
            page.until(DRAWN)
            for clicked in filter(lambda one: page.page.locator(one).count(), view.clicks):
                page.page.locator(clicked).first.click()
                page.until("() => !document.body.textContent.includes('Running…')")
            page.page.wait_for_timeout(700)  # of a panel that fades in, or a tile that arrives
            target = folder / f"{name}{'-' if name else ''}{view.name}-{look}.png"
            page.page.screenshot(path=str(target), animations="disabled")
    if page.errors:
        raise SystemExit(f"the viewer has errors: {page.errors}")


def second_step() -> dict[str, int]:
    """Start and end of the slow trace's second step, and times around its wait for the batch."""
    trace = SLOW.trace()
    first, second = (
        round(event["ts"] * 1000) - trace.start_ns
        for event in trace.document()["traceEvents"]
        if event["name"] in {f"ProfilerStep#{trace.first_step + number}" for number in (1, 2)}
    )
    begins = first + SLOW.wait_ns
    return {
        "start": first,
        "end": second,
        "before": first - 3_000_000,
        "after": begins + 9_000_000,
    }


def keep(folder: Path) -> None:
    """Copy the pictures of the docs to them, if they are small enough."""
    PICTURES.mkdir(exist_ok=True)
    kept: dict[Path, Path] = {folder / "terminal.svg": PICTURES / "terminal.svg"}
    kept |= {folder / f"{name}.png": PICTURES / file for name, file in KEPT.items()}
    for source, target in kept.items():
        if source.stat().st_size > MOST_BYTES:
            raise SystemExit(
                f"{source}: {source.stat().st_size:,} bytes are more than {MOST_BYTES:,}"
            )
        shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
