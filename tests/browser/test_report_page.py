"""Reports in one file in a real browser: from file://, with the network off."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import pytest
from click.testing import CliRunner

from stepscope._notebook import html_of_trace
from stepscope.commands.main import cli
from stepscope.trace.load import load
from tests.support.browser import chromium
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import SCENARIOS
from tests.support.rank_jobs import rank_of_job
from tests.support.snapshots import out_of_memory
from tests.support.step_records import step_records, write_run
from tests.support.viewer import training

DELAYS_MS = (1.0, 1.1, 4.0)
READY = "() => document.documentElement.dataset.ready"
FITS = "() => document.documentElement.scrollWidth <= window.innerWidth"
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"
COLUMN = """([section, title, at]) => {
    const blocks = [...document.querySelectorAll(`#${section} .table-block`)];
    const block = blocks.find((one) => one.querySelector("h3")?.textContent === title);
    return [...block.querySelectorAll("tbody tr")].map((row) => row.cells[at].textContent);
}"""
CUT = """() => [...document.querySelectorAll("main *")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1
        && getComputedStyle(one).overflowX !== "visible")
    .map((one) => `${one.className} ${one.textContent.slice(0, 60)}`)
    .filter((one) => !one.startsWith("bar-"))"""
LUMINANCE = """() => {
    const parts = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number);
    return (parts[0] + parts[1] + parts[2]) / 3;
}"""


def write(folder, name, trace):
    path = folder / name
    path.write_text(json.dumps(trace.document()), encoding="utf-8")
    return path


def planted(name):
    return next(one for one in SCENARIOS if one.name == name).build()


def stepscope(*arguments):
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages by name."""
    chromium()
    folder = tmp_path_factory.mktemp("reports")
    slow = write(folder, "slow.json", planted("starved GPU"))
    healthy = write(folder, "healthy.json", planted("healthy"))
    hostile = GpuTrace()
    for _ in range(3):
        with hostile.step():
            for number in range(20):
                hostile.op(f"{HOSTILE} {number}").launch(f"{HOSTILE} {number}", us(300))
    record = {rank: step_records([400] + [100 + 5 * rank] * 40, waits_ms=60) for rank in (0, 1)}
    stepscope("report", slow, "-o", folder / "slow.html")
    stepscope("report", write(folder, f"{HOSTILE[:6]}.json".replace("/", ""), hostile),
              "-o", folder / "hostile.html")  # fmt: skip
    stepscope("report", write_run(folder, record), "-o", folder / "run.html")
    stepscope("compare", slow, healthy, "-o", folder / "compare.html")
    (folder / "job").mkdir()
    for rank in range(len(DELAYS_MS)):
        write(folder / "job", f"rank{rank}.json", rank_of_job(rank, DELAYS_MS, steps=3))
    stepscope("report", folder / "job", "-o", folder / "job.html")
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(out_of_memory()))
    stepscope("memory", folder / "snapshot.pickle", "-o", folder / "memory.html")
    return {path.stem: path for path in folder.glob("*.html")}


@pytest.fixture
def opened(browser, files):
    """Opens a page by its name, offline; checks afterwards that it asked for nothing else."""
    pages = []

    def open_one(name):
        found = browser()
        found.page.context.set_offline(True)
        found.page.goto(files[name].as_uri())
        found.until(READY)
        pages.append((found, files[name].as_uri()))
        return found

    yield open_one
    for found, address in pages:
        assert found.errors == []
        outside = [one for one in found.requests if one != address]
        assert [one for one in outside if not one.startswith("data:")] == []
        found.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["slow", "run", "hostile", "compare", "memory"])
def test_every_page_draws_all_its_sections_in_light_and_dark(opened, name, scheme):
    found = opened(name)
    found.page.emulate_media(color_scheme=scheme)
    found.when(lambda: (found.page.evaluate(LUMINANCE) > 128) == (scheme == "light"))
    sections = found.page.evaluate(
        "() => [...document.querySelectorAll('main section')].map((one) => one.id)"
    )
    listed = found.page.evaluate(
        "() => JSON.parse(document.getElementById('data').textContent).sections.map((s) => s.id)"
    )
    assert sections == listed
    assert found.text("#over-time figcaption" if "over-time" in sections else "#verdict .verdict")
    for width in (1280, 700):
        found.page.set_viewport_size({"width": width, "height": 800})
        assert found.page.evaluate(FITS)


def test_the_verdict_and_its_finding_are_there_and_unfold_with_the_keyboard(opened):
    found = opened("slow")
    assert "launches work more slowly" in found.text("#verdict .verdict")
    assert "launches work more slowly" in found.text("#findings .finding .title")
    body = found.page.locator("#findings .finding-body").first
    assert not body.is_visible()
    found.page.locator("#findings summary").first.focus()
    found.page.keyboard.press("Enter")
    assert body.is_visible()
    assert "stepscope explain launch-bound" in body.text_content()


def test_the_bar_is_as_long_as_the_whole_and_its_pieces_as_their_shares(opened):
    found = opened("slow")
    drawn = found.page.evaluate(
        """() => {
            const bar = document.querySelector(".bar").getBoundingClientRect();
            const pieces = [...document.querySelectorAll(".bar-part")];
            return [bar.width, ...pieces.map((one) => one.getBoundingClientRect().width)];
        }"""
    )
    parts = found.page.evaluate(
        """() => JSON.parse(document.getElementById("data").textContent).sections
            .find((one) => one.id === "step").blocks.find((one) => one.is === "bar")"""
    )
    whole, *pieces = drawn
    filled = [part["total_ns"] / parts["total_ns"] for part in parts["parts"] if part["total_ns"]]
    assert abs(sum(pieces) - whole) < 1
    for piece, share in zip(pieces, filled, strict=True):
        assert abs(piece - share * whole) < 4  # borders take a few pixels


@pytest.mark.parametrize("width", [1280, 420])
def test_the_bars_of_the_ladder_are_as_long_as_its_steps(opened, width):
    page = opened("slow")
    page.page.set_viewport_size({"width": width, "height": 800})
    rungs = page.page.evaluate("""() => {
        const data = JSON.parse(document.getElementById("data").textContent);
        const rungs = data.sections.find((one) => one.id === "ladder").blocks.find((one) => one.is === "bars").rows;
        const bars = [...document.querySelectorAll("#ladder .bars-bar")].map((one) => one.getBoundingClientRect().width);
        const names = [...document.querySelectorAll("#ladder .bars-name")];
        return rungs.map((one, at) => [one.to, bars[at], names[at].scrollWidth <= names[at].clientWidth + 1]);
    }""")  # noqa: E501
    assert len(rungs) > 2
    first_ns, first_width, _ = rungs[0]
    for step_ns, bar, is_whole in rungs:
        assert bar == pytest.approx(max(1.5, first_width * step_ns / first_ns), abs=1)
        assert is_whole
    assert page.page.evaluate(FITS)


def test_tables_sort_filter_and_show_more(opened):
    found = opened("hostile")
    assert len(found.page.evaluate(COLUMN, ["kernels", "By name", 0])) == 12
    block = found.page.locator("#kernels .table-block", has_text="By name")
    block.get_by_role("button", name="Show 8 more").click()
    assert len(found.page.evaluate(COLUMN, ["kernels", "By name", 0])) == 20
    head = block.locator("thead button").first
    head.click()
    ascending = found.page.evaluate(COLUMN, ["kernels", "By name", 0])
    head.click()
    descending = found.page.evaluate(COLUMN, ["kernels", "By name", 0])
    assert descending == ascending[::-1] != ascending
    assert ascending[2].endswith(" 2")  # numbers in names count as numbers
    block.get_by_role("searchbox").fill("> 17")
    assert found.page.evaluate(COLUMN, ["kernels", "By name", 0]) == [f"{HOSTILE} 17"]


def test_hostile_names_stay_text(opened):
    found = opened("hostile")
    assert HOSTILE in found.text("#kernels")
    made = "() => document.querySelectorAll('#app img, #app script, #app [onerror]').length"
    assert found.page.evaluate(made) == 0
    assert "owned" not in found.page.title()


def test_the_policy_stops_what_a_name_might_have_smuggled_in(browser, files):
    found = browser()
    found.page.context.set_offline(True)
    found.page.goto(files["slow"].as_uri())
    found.until(READY)
    found.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'owned'";
            document.body.append(script);
        }"""
    )
    assert "owned" not in found.page.title()
    assert any("Content Security Policy" in error for error in found.errors)
    found.close()


def test_the_strip_draws_every_step_and_cuts_the_slow_one(opened):
    found = opened("run")
    bars = found.page.locator("#steps .strip-bars")
    drawn = found.page.evaluate(
        """() => [...document.querySelectorAll("#steps .strip-part")].map((one) => [
            one.dataset.part, one.getAttribute("d").split("z").length - 1,
            getComputedStyle(one).fill])"""
    )
    assert max(number for _, number, _ in drawn) == 41
    assert len({fill for _, _, fill in drawn}) == len(drawn)
    assert "slow at the start" in found.text("#steps .strip-keys")
    assert "the longest 400 ms, step 0" in found.text("#steps .strip-status")
    assert found.page.locator("#steps .strip-histogram rect").count() > 0
    bars.focus()
    bars.press("ArrowRight")
    assert found.text("#steps .strip-status").startswith("Step 1: ")
    assert bars.get_attribute("aria-valuetext") == found.text("#steps .strip-status")
    bars.press("End")
    assert found.text("#steps .strip-status").startswith("Step 40: ")


def test_advice_is_never_cut(opened):
    found = opened("slow")
    for width in (1280, 800, 390):
        found.page.set_viewport_size({"width": width, "height": 800})
        cut = found.page.evaluate(
            """() => [...document.querySelectorAll(".finding .advice")]
                .filter((one) => one.scrollHeight > one.clientHeight + 1).length"""
        )
        assert cut == 0, width


@pytest.mark.parametrize("width", [1280, 3840])
def test_text_and_pictures_grow_together_on_a_wide_screen(opened, width):
    found = opened("slow")
    found.page.set_viewport_size({"width": width, "height": 800})
    widest = found.page.evaluate(
        """() => [...document.querySelectorAll(".finding .severity")].map((one) => {
            const range = new Range();
            range.selectNodeContents(one);
            return one.nextElementSibling.getBoundingClientRect().left
                - range.getBoundingClientRect().right;
        })"""
    )
    assert widest
    assert min(widest) >= 4  # between how severe it is and what it is
    sizes = found.page.evaluate(
        """() => ["h1", "h2:not(#verdict h2)", ".lead", "main"].map((one) =>
            parseFloat(getComputedStyle(document.querySelector(one)).fontSize))"""
    )
    assert sizes == sorted(sizes, reverse=True)
    lanes, room = (
        found.page.locator(one).first.bounding_box()["width"] for one in (".step-lanes", "main")
    )
    assert lanes > 0.8 * room


def test_a_typical_step_is_drawn_in_lanes_whose_slices_have_titles(opened):
    found = opened("slow")
    data = found.page.evaluate("() => JSON.parse(document.getElementById('data').textContent)")
    (section,) = [one for one in data["sections"] if one["id"] == "typical-step"]
    lanes = section["blocks"][0]["lanes"]
    number = sum(len(lane["slices"]) for lane in lanes)
    assert found.page.locator("#typical-step .step-lanes-slice").count() == number > 0
    assert found.page.locator("#typical-step .step-lanes-title").count() == len(lanes)
    drawn = found.page.evaluate(
        """() => [...document.querySelectorAll("#typical-step .step-lanes-slice")].map((one) => ({
            title: one.querySelector("title").textContent, fill: getComputedStyle(one).fill,
            width: Number(one.getAttribute("width")) }))"""
    )
    names = [one[2] for lane in lanes for one in lane["slices"]]
    assert [one["title"].rpartition(":")[0] for one in drawn] == names
    assert all(one["fill"].startswith("rgb(") for one in drawn)
    assert "rgb(0, 0, 0)" not in {one["fill"] for one in drawn}


def test_the_moments_of_a_typical_step_are_round_and_within_the_picture(opened):
    found = opened("slow")
    words, marks, fits = found.page.evaluate(
        """() => { const picture = document.querySelector("#typical-step .step-lanes");
          const edge = picture.getBoundingClientRect();
          const texts = [...picture.querySelectorAll(".step-lanes-axis")];
          return [texts.map((one) => one.textContent),
            [...picture.querySelectorAll(".step-lanes-mark")].map((one) => one.x1.baseVal.value),
            texts.every((one) => { const at = one.getBoundingClientRect();
              return at.left >= edge.left && at.right <= edge.right + 1; })]; }"""
    )
    assert words[0] == "0"
    assert len(words) == len(marks) >= 3
    amounts = [float(one.split()[0].replace(",", "")) for one in words]
    assert f"{amounts[1]:e}"[:8] in {"1.000000", "2.000000", "5.000000"}
    assert amounts == pytest.approx([amounts[1] * at for at in range(len(amounts))])
    gaps = [after - before for before, after in pairwise(marks)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps))
    assert fits


def test_on_a_narrow_screen_a_typical_step_keeps_its_size_and_scrolls(opened):
    found = opened("slow")
    found.page.set_viewport_size({"width": 420, "height": 800})
    drawn, place = found.page.evaluate(
        """() => { const one = document.querySelector("#typical-step .step-lanes");
            return [one, one.parentElement].map((it) => it.getBoundingClientRect().width) }"""
    )
    assert (drawn, place < 420) == (700, True)
    assert found.page.evaluate(FITS)


def test_on_a_narrow_screen_a_long_name_leaves_room_for_the_numbers(opened):
    found = opened("slow")
    found.page.set_viewport_size({"width": 420, "height": 800})
    lefts = found.page.evaluate(
        """() => [...document.querySelectorAll("tbody tr:first-child")].map((row) => {
            row.cells[0].textContent = "void a_kernel_with_a_long_name<float>".repeat(9);
            return row.cells[1].getBoundingClientRect().left; })"""
    )
    assert lefts
    assert max(lefts) < 250


def test_a_section_that_would_only_name_a_device_is_left_out(opened):
    found = opened("slow")
    data = found.page.evaluate("() => JSON.parse(document.getElementById('data').textContent)")
    tables = [one for part in data["sections"] for one in part["blocks"] if one["is"] == "table"]
    assert tables
    assert all(len(one["columns"]) > 1 for one in tables)
    assert "communication" not in [part["id"] for part in data["sections"]]


def test_commands_in_sentences_are_code(opened):
    found = opened("slow")
    assert "stepscope view" in found.page.locator("#typical-step p code").all_text_contents()
    assert "`" not in found.text("#typical-step p")


def test_the_waterfall_begins_where_the_row_before_ends(opened):
    found = opened("compare")
    rows = found.page.evaluate(
        """() => [...document.querySelectorAll(".bars-row")].map((row) => {
            const { left, right } = row.querySelector(".bars-bar").getBoundingClientRect();
            return { kind: row.className.split("is-")[1], x: left, end: right };
        })"""
    )
    first, *between, last = rows
    assert first["kind"] == last["kind"] == "whole"
    at = first["end"]
    for row in between:
        start, end = ("x", "end") if row["kind"] == "grew" else ("end", "x")
        assert abs(row[start] - at) < 2  # the thinnest bars are widened to be seen
        at = row[end]
    assert abs(last["end"] - at) < 2


@pytest.mark.parametrize("width", [360, 700, 1600])
def test_the_waterfall_fits_every_page_and_stays_readable(opened, width):
    found = opened("compare")
    found.page.set_viewport_size({"width": width, "height": 800})
    rows = found.page.evaluate(
        """() => [...document.querySelectorAll(".bars-row")].map((row) =>
            ["name", "bar", "number"].map((part) => {
                const one = row.querySelector(`.bars-${part}`);
                const { left, right, top, bottom } = one.getBoundingClientRect();
                const size = parseFloat(getComputedStyle(one).fontSize);
                return { left, right, top, bottom, size };
            }))"""
    )
    assert rows
    for name, bar, number in rows:
        assert 0 <= name["left"] < name["right"] <= width
        # On a narrow page the name stands above its bar.
        assert name["right"] <= bar["left"] + 0.5 or name["bottom"] <= bar["top"]
        assert bar["right"] <= number["left"]
        assert number["right"] <= width
        assert name["size"] == number["size"] == 13


PICTURE = """() => {
    const box = (one) => one.getBoundingClientRect();
    const one = (name) => document.querySelector(`.memory-over-time ${name}`);
    const columns = [...document.querySelectorAll(".memory-column")];
    const areas = [...document.querySelectorAll(".memory-band")];
    return {
        peak: box(one(".memory-peak-dot")).x + box(one(".memory-peak-dot")).width / 2,
        top: box(one(".memory-peak-dot")).y + box(one(".memory-peak-dot")).height / 2,
        highest: Math.min(...areas.map((area) => box(area).y)),
        bottom: box(one(".memory-ground")).y,
        words: one(".memory-peak-name").textContent,
        reserved: one(".memory-reserved-line") ? box(one(".memory-reserved-line")).y : null,
        failed: one(".memory-failed") ? box(one(".memory-failed")).x : null,
        colours: areas.map((area) => getComputedStyle(area).fill),
        columns: columns.map((column) => [box(column).x, box(column).right, column.textContent]),
    };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_memory_over_time_is_drawn_with_its_peak(opened, scheme):
    found = opened("memory")
    found.page.emulate_media(color_scheme=scheme)
    found.when(lambda: (found.page.evaluate(LUMINANCE) > 128) == (scheme == "light"))
    data = json.loads(found.page.evaluate("() => document.getElementById('data').textContent"))
    (block,) = [one for part in data["sections"] for one in part["blocks"] if one["is"] == "memory"]
    picture = found.page.evaluate(PICTURE)
    assert picture["words"] == "peak 481 MiB"
    assert picture["top"] == pytest.approx(picture["highest"], abs=1.5)
    # What is reserved lies above, in the same scale.
    part = (picture["bottom"] - picture["highest"]) / (picture["bottom"] - picture["reserved"])
    assert part == pytest.approx(max(block["allocated"]) / max(block["reserved"]), abs=0.02)
    columns = picture["columns"]
    place = (block["peak"][0] - block["start"]) // block["step"]
    assert columns[place][0] <= picture["peak"] <= columns[place][1]
    assert "481 MiB held, 502 MiB reserved" in columns[place][2]
    assert columns[-1][0] <= picture["failed"] <= columns[-1][1] + 1
    assert len(picture["colours"]) == len(block["bands"])
    assert all(colour.startswith("rgb(") for colour in picture["colours"])


@pytest.mark.parametrize("width", [360, 1600])
def test_the_map_of_ranks_is_as_large_on_a_narrow_page(opened, width):
    found = opened("job")
    found.page.set_viewport_size({"width": width, "height": 800})
    drawn = found.page.evaluate(
        """() => {
            const box = document.querySelector(".rank-steps").getBoundingClientRect();
            return [box.width, box.height];
        }"""
    )
    assert drawn == [70 + 3 * 60, 18 + len(DELAYS_MS) * 15]
    assert found.page.evaluate(FITS)
    opacity = found.page.evaluate(
        """() => [...document.querySelectorAll(".rank-steps rect")].map((one) =>
            Number(one.getAttribute("opacity")))"""
    )
    assert max(opacity) <= 1
    assert min(opacity) == pytest.approx(0.12)


def test_the_ranks_stand_in_one_picture_the_late_one_on_top(opened):
    found = opened("job")
    names = found.page.locator("#ranks .all-lanes .step-lanes-title").all_text_contents()
    assert names == ["rank 2", "rank 0", "rank 1"]
    assert "hatched" in found.text("#ranks .all-lanes ~ figcaption").lower()
    assert "idle: waiting for communication" in found.text("#ranks .picture:has(.all-lanes) ul")
    assert found.text("#ranks .bars .bars-name") == "rank 2"


def test_on_paper_everything_is_light_and_unfolded(opened):
    found = opened("slow")
    found.page.emulate_media(color_scheme="dark")
    found.when(lambda: found.page.evaluate(LUMINANCE) < 128)
    found.page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert found.page.evaluate(LUMINANCE) > 128
    assert found.page.locator("details:not([open])").count() == 0
    found.page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert found.page.evaluate(LUMINANCE) < 128
    assert found.page.locator("details[open]").count() == 0
    assert found.page.pdf()[:5] == b"%PDF-"


def test_on_paper_a_cut_table_says_so_and_none_is_wider_than_the_paper(opened):
    found = opened("hostile")
    note = found.page.locator("#kernels .on-paper", has_text="and 8 more rows")
    assert not note.is_visible()
    found.page.emulate_media(media="print", color_scheme="dark")
    found.page.set_viewport_size({"width": 680, "height": 1000})
    found.until("() => document.documentElement.hasAttribute('data-paper')")
    found.when(lambda: found.page.evaluate(LUMINANCE) == 255)
    assert note.is_visible()
    assert found.page.evaluate(FITS)
    assert found.page.evaluate(CUT) == []
    found.page.emulate_media(media="screen", color_scheme="light")


@pytest.mark.parametrize("name", ["slow", "run", "job", "compare", "memory"])
def test_on_paper_headings_stay_with_what_follows_and_rows_are_whole(opened, name):
    found = opened(name)
    found.page.emulate_media(media="print")
    found.page.set_viewport_size({"width": 680, "height": 1000})
    found.until("() => document.documentElement.hasAttribute('data-paper')")
    assert found.page.evaluate(FITS)
    assert found.page.evaluate(CUT) == []
    breaks = found.page.evaluate(
        """() => {
            const of = (selector, name) => [...new Set([...document.querySelectorAll(selector)].map((one) => getComputedStyle(one)[name]))];
            return [of("h2, h3, h2 + p:has(+ .picture)", "breakAfter"), of("tr, .finding, .picture", "breakInside"), of("thead", "display"), of(".note", "breakBefore")];
        }"""  # noqa: E501
    )
    heads, whole, repeated, notes = (one or [None] for one in breaks)
    assert (heads, whole) == (["avoid"], ["avoid"])
    assert repeated in (["table-header-group"], [None])
    assert notes in (["avoid"], [None])
    found.page.emulate_media(media="screen")


def test_what_has_the_keyboard_s_focus_is_outlined(opened):
    found = opened("slow")
    outlined = """() => { const style = getComputedStyle(document.activeElement);
        return [document.activeElement.tagName, style.outlineStyle, parseFloat(style.outlineWidth)]
    }"""
    seen = set()
    for _ in range(40):
        found.page.keyboard.press("Tab")
        tag, style, width = found.page.evaluate(outlined)
        if tag == "BODY":
            break
        seen.add(tag)
        assert (style, width) != ("none", 0)
        assert width >= 1
    assert {"A", "BUTTON", "SUMMARY"} <= seen


@pytest.mark.parametrize("ground", ["#111111", "#ffffff"])
def test_in_a_notebook_a_result_has_its_theme_and_shows_as_a_whole(browser, tmp_path, ground):
    (tmp_path / "trace.json").write_bytes(training().json())
    cell = html_of_trace(load(tmp_path / "trace.json"))
    page = f'<!doctype html><body style="background:{ground}"><div>{cell}</div></body>'
    (tmp_path / "notebook.html").write_text(page)
    found = browser()
    found.page.goto((tmp_path / "notebook.html").as_uri())
    frame = found.page.frames[1]
    found.when(lambda: frame.locator("h2").count() > 2)
    theme = "dark" if ground == "#111111" else "light"
    found.when(lambda: frame.evaluate("() => document.documentElement.dataset.theme") == theme)
    tall = min(1400, frame.evaluate("() => document.documentElement.scrollHeight"))
    height = "() => document.querySelector('iframe').clientHeight"
    found.when(lambda: found.page.evaluate(height) == tall)
    assert found.errors == []
    found.close()
