"""What the viewer draws of answers: pictures, the critical path, memory; and its palette."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from stepscope.analysis.critical_path import critical_path
from stepscope.commands.main import cli
from stepscope.trace.load import load
from tests.support.allocator import Allocator
from tests.support.browser import chromium
from tests.support.pipeline_traces import Pipeline, pipeline_traces
from tests.support.rank_jobs import rank_of_job
from tests.support.snapshots import Frames
from tests.support.viewer import check, serving, to, training, viewing

READY = "() => document.querySelector('.view')?.dataset.ready"


def shown(page, question):
    to(page, f"view=tables&question={question}")
    page.until("wanted => document.querySelector('.view')?.dataset.ready === wanted", question)


def test_a_kernel_in_the_picture_says_what_it_is_and_leads_to_its_place(shared_page):
    shown(shared_page, "kernels")
    picture = shared_page.page.locator(".scatter")
    picture.focus()
    shared_page.page.keyboard.press("ArrowRight")
    assert shared_page.text(".picture-said strong")
    assert " in all" in shared_page.text(".picture-said")
    shared_page.page.locator(".scatter-point").last.hover()  # the smallest lies on top
    assert shared_page.text(".picture-said strong")
    picture.focus()
    shared_page.page.keyboard.press("ArrowRight")
    shared_page.page.keyboard.press("Enter")
    shared_page.until("() => document.querySelector('[data-panel=details]')?.dataset.event")
    assert "event=" in shared_page.url


def test_axes_of_sizes_and_speeds_are_in_their_units(browser, tmp_path):
    (tmp_path / "trace.json").write_bytes(rank_of_job(0, [0.0, 3.0]).json())
    with viewing([tmp_path / "trace.json"]) as client:
        found = browser()
        found.page.goto(f"{client.link}#view=tables&question=communication")
        found.until(f"{READY} === 'communication'")
        sizes = found.page.locator(".scatter-mark.is-x").all_text_contents()
        speeds = found.page.locator(".scatter-mark:not(.is-x)").all_text_contents()
        assert sizes
        assert len(speeds) >= 2
        assert [one for one in sizes if not re.fullmatch(r"[\d.]+ ([KMG]i)?B", one)] == []
        assert [one for one in speeds if not re.fullmatch(r"[\d.]+ [kMG]?B/s", one)] == []


@pytest.mark.parametrize(
    ("question", "picture"),
    [
        ("what-if", ".bars"),
        ("critical-path", ".bars"),
        ("ladder", ".bars"),
        ("memory", ".memory-over-time"),
    ],
)
def test_answers_have_their_pictures_within_the_page(shared_page, question, picture):
    for width in (800, 1280):
        shared_page.page.set_viewport_size({"width": width, "height": 800})
        shown(shared_page, question)
        box = shared_page.page.locator(picture).first.bounding_box()
        assert box["width"] > 200
        assert box["x"] + box["width"] <= width


def test_the_critical_path_is_drawn_over_the_slices_and_goes_away(page):
    page.page.get_by_role("button", name="Critical path").click()
    drawn = page.until("() => window.stepscope.timeline.timeline.path?.start.length")
    assert drawn > 3
    pixels = """() => {
        const canvas = document.querySelectorAll('.surface canvas')[2];
        const style = getComputedStyle(document.documentElement).getPropertyValue('--bad').trim();
        const rgb = parseInt(style.slice(1), 16);
        const { width, height } = canvas;
        const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
        let found = 0;
        for (let at = 0; at < data.length; at += 4) {
            const near = (part, shift) => Math.abs(data[at + part] - ((rgb >> shift) & 255)) < 6;
            if (data[at + 3] > 250 && near(0, 16) && near(1, 8) && near(2, 0)) found++;
        }
        return found;
    }"""
    page.when(lambda: page.page.evaluate(pixels) > 100)
    assert "path=on" in page.url
    page.page.get_by_role("button", name="Critical path").click()
    page.when(lambda: page.page.evaluate(pixels) == 0)


def test_the_path_on_the_page_is_that_of_the_question(viewer, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(training().json())
    trace = load(str(path))
    pieces = critical_path(trace).segments.drop_nulls("lane_id")
    identity = viewer.get("/api/traces")["traces"][0]["id"]
    body = viewer.ask(f"/api/traces/{identity}/critical-path").body
    assert f'"length":{len(pieces)}'.encode() in body[:400]


def test_callers_and_callees_of_a_function_are_two_graphs(shared_page):
    to(shared_page, "view=flame&by=operator&function=aten::mm")
    shared_page.until("() => document.querySelectorAll('.flame-canvas').length === 2")
    assert "Called by" in shared_page.text(".view-body")
    assert "of the time" in shared_page.text(".view-body .view-head .note")
    shared_page.page.get_by_role("button", name="Back to the graph").click()
    shared_page.until("() => document.querySelectorAll('.flame-canvas').length === 1")


def test_a_sandwich_adds_up(shared_page):
    found = shared_page.page.evaluate(
        """async () => {
            const { sandwich } = await import('/static/draw/sandwich.js');
            // root (10) > a (7) > b (4) > a (2, within a);  root > c (3) > a (1)
            const data = {
                name: ['root', 'a', 'b', 'a', 'c', 'a'], parent: [-1, 0, 1, 2, 0, 4],
                total_ns: [10, 7, 4, 2, 3, 1], self_ns: [0, 3, 2, 2, 2, 1],
                count: [1, 2, 2, 1, 1, 3], whole_ns: 10,
            };
            const { callers, callees } = sandwich(data, 'a');
            const flat = (of) => of.name.map((name, at) => [name, of.parent[at], of.total_ns[at]]);
            return [flat(callers), flat(callees), callees.count[0]];
        }"""
    )
    callers, callees, calls = found
    assert callers == [["a", -1, 8], ["root", 0, 7], ["c", 0, 1], ["root", 2, 1]]
    assert callees == [["a", -1, 8], ["b", 0, 4], ["a", 1, 2]]
    assert calls == 5


def test_the_palette_goes_to_views_questions_steps_and_searches(page):
    keyboard = page.page.keyboard
    keyboard.press("Control+k")
    page.until("() => document.querySelector('.palette [role=option]')")
    kinds = "() => [...document.querySelectorAll('.palette-kind')].map((one) => one.textContent)"
    keyboard.type("roofline")
    page.when(lambda: "question" in page.page.evaluate(kinds))
    keyboard.press("Enter")
    page.until("() => document.querySelector('.view')?.dataset.ready === 'flops'")
    assert page.page.locator("dialog").count() == 0

    keyboard.press("Control+k")
    keyboard.type("step 2")
    page.when(lambda: page.page.evaluate(kinds)[:1] == ["step"])
    keyboard.press("Enter")
    page.when(lambda: "range=" in page.url)

    keyboard.press("Control+k")
    keyboard.type("elementwise")
    keyboard.press("ArrowUp")
    assert page.text(".palette [aria-selected=true] .palette-kind") == "search"
    keyboard.press("Enter")
    page.when(lambda: "search=elementwise" in page.url)

    keyboard.press("Control+k")
    keyboard.type("select count(*) from events")
    keyboard.press("Enter")
    page.until("() => document.querySelector('.query')?.value.startsWith('select count')")
    page.when(lambda: page.page.evaluate("() => document.activeElement.textContent") == "Run")
    keyboard.press("Enter")
    page.until("() => document.querySelector('.view')?.dataset.ready === '1'")

    keyboard.press("Control+k")
    keyboard.press("Escape")
    page.when(lambda: page.page.locator("dialog").count() == 0)


def test_a_trace_of_a_gpu_shows_the_gpu_s_memory_first(shared_page):
    to(shared_page, "view=memory")
    shared_page.until("() => document.querySelector('.memory-over-time')")
    said = shared_page.text(".memory-picture figcaption")
    assert "The peak of GPU 0" in said
    strokes = shared_page.page.evaluate(
        "() => getComputedStyle(document.querySelector('.memory-column')).fill"
    )
    assert strokes in {"rgba(0, 0, 0, 0)", "transparent"}  # no black wall


def test_a_rank_in_the_picture_of_arrivals_leads_to_its_collective(browser, tmp_path):
    chromium()
    delays = (0.0, 3.0, 1.0)
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_of_job(rank, delays, steps=3).json())
    with viewing([tmp_path]) as client:
        found = browser()
        found.page.goto(f"{client.link}#view=ranks")
        found.until("() => document.querySelector('.view')?.dataset.ready")
        names = found.page.locator(".bars-name").all_inner_texts()
        assert names[0] == "rank 1"
        found.page.locator(".bars-name button").first.click()
        found.until("() => document.querySelector('[data-panel=details]')?.dataset.event")
        assert found.page.evaluate("() => window.stepscope.selection.get('trace')") == "1"
        check(found, client)
        found.close()


def test_equal_layers_are_merged_and_outer_frames_folded(shared_page):
    found = shared_page.page.evaluate(
        """async () => {
            const { fold } = await import('/static/draw/fold.js');
            // a > b > c > main (10) > Net_0 (10) > Layer_0 (6) > mm (5), Layer_1 (3) > mm (3)
            const data = {
                name: ['a', 'b', 'c', 'main', 'Net_0', 'Layer_0', 'Layer_1', 'mm', 'mm', 'loss'],
                parent: [-1, 0, 1, 2, 3, 4, 4, 5, 6, 3],
                total_ns: [10, 10, 10, 10, 9, 6, 3, 5, 3, 1],
                self_ns: [0, 0, 0, 0, 0, 1, 0, 5, 3, 1],
                count: [1, 1, 1, 1, 1, 2, 2, 4, 4, 1], whole_ns: 10,
            };
            const { name, parent, total_ns: total, self_ns: own, count } = fold(data);
            return name.map((one, at) => [one, parent[at], total[at], own[at], count[at]]);
        }"""
    )
    assert found == [
        ["3 outer frames, from a to c", -1, 10, 0, 1],
        ["main", 0, 10, 0, 1],
        ["Net_0", 1, 9, 0, 1],
        ["Layer (2 merged)", 2, 9, 1, 4],
        ["mm", 3, 8, 8, 8],
        ["loss", 1, 1, 1, 1],
    ]
    to(shared_page, "view=flame&by=python")
    shared_page.until("() => document.querySelector('.view')?.dataset.ready === 'python'")
    shared_page.page.get_by_role("button", name="Fold", exact=True).click()
    shared_page.when(lambda: "fold=off" in shared_page.url)
    shared_page.until("() => document.querySelector('.view')?.dataset.ready === 'python'")


def test_every_node_of_a_flame_graph_says_how_often_it_was_called(shared_page):
    for by in ("operator", "module", "python", "host"):
        to(shared_page, f"view=flame&by={by}")
        shared_page.until("by => document.querySelector('.view')?.dataset.ready === by", by)
        box = shared_page.page.locator(".flame-canvas").bounding_box()
        said = set()
        for down in range(9, int(box["height"]) - 4, 19):
            shared_page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + down)
            said.add(shared_page.text(".flame .tip"))
        assert len(said) > 1
        counts = [int(found[1]) for one in said if (found := re.search(r", (\d+)×", one))]
        assert counts
        assert min(counts) > 0


def test_a_flame_graph_is_walked_by_keyboard(shared_page):
    """Down to the most costly child, sideways, up again; Enter zooms, Escape shows all."""
    to(shared_page, "view=flame&by=operator")
    shared_page.until("() => document.querySelector('.view')?.dataset.ready === 'operator'")
    canvas = shared_page.page.locator(".flame-canvas")
    canvas.focus()
    said = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"):
        shared_page.page.keyboard.press(key)
        said.append(shared_page.text(".flame .tip"))
        assert re.search(r", \d+×", said[-1])
    root, child, above, beside, back = said
    assert root == above == back
    assert len({root, child, beside}) == 3
    shared_page.page.keyboard.press("Enter")
    shared_page.when(lambda: shared_page.text(".flame-path").startswith("Show all"))
    shared_page.page.keyboard.press("Escape")
    shared_page.when(lambda: shared_page.text(".flame-path").endswith("in all"))
    canvas.blur()
    shared_page.until("() => !document.querySelector('.flame .tip.is-shown')")


def test_the_card_of_a_finding_names_its_ranks(browser, tmp_path):
    chromium()
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_of_job(rank, (0.0, 3.0, 1.0)).json())
    with viewing([tmp_path]) as client:
        found = browser()
        found.page.goto(client.link)
        found.until("() => document.querySelector('[data-panel=findings]')?.dataset.ready")
        has_place = found.page.locator(".finding:has(button)").first
        where = has_place.locator(".where").first.text_content()
        assert where.startswith("rank ")
        has_place.locator("summary").click()
        has_place.get_by_role("button").click()
        found.until("() => document.querySelector('.pinned .finding')")
        assert found.text(".pinned .where") == where
        check(found, client)
        found.close()


def test_all_ranks_in_one_picture_lead_to_their_timelines(browser, tmp_path):
    chromium()
    for rank, trace in enumerate(pipeline_traces(Pipeline(stages=3, batches=4, has_engine=True))):
        (tmp_path / f"rank{rank}.json").write_bytes(trace.json())
    with viewing([tmp_path]) as client:
        found = browser()
        found.page.goto(f"{client.link}#view=ranks")
        found.until(READY)
        picture = found.page.locator(".all-lanes")
        assert "schedule" in found.text("figure:has(.all-lanes) h3")
        assert {"forward", "backward"} <= set(
            found.page.locator("figure:has(.all-lanes) .strip-keys li").all_inner_texts()
        )
        for width in (800, 1280):
            found.page.set_viewport_size({"width": width, "height": 800})
            box = picture.bounding_box()
            assert box["x"] + box["width"] <= width
        title = picture.locator("[role=link]").nth(2)
        assert title.text_content() == "rank 2"
        title.focus()
        found.page.keyboard.press("Enter")
        found.until("() => window.stepscope.selection.get('view') === 'timeline'")
        assert found.page.evaluate("() => window.stepscope.selection.get('trace')") == "2"
        found.until("() => window.stepscope.selection.range() !== null")
        check(found, client)
        found.close()


def test_a_snapshot_without_categories_has_the_colours_of_its_lines(browser, tmp_path):
    import pickle

    chromium()
    allocator = Allocator()
    path = tmp_path / "memory.pickle"
    for number in range(6):
        allocator.malloc(1 << 22, frames=Frames()(f"model.py:{10 + number % 2}:run"))
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    with serving([path]) as client:
        found = browser()
        found.page.goto(client.link)
        found.until(READY)
        chosen = (
            "() => document.querySelector('[aria-label=Colour] [aria-pressed=true]').textContent"
        )
        assert found.page.evaluate(chosen) == "By line"
        assert "model.py:10" in found.text(".memory-legend")
        found.page.get_by_role("button", name="By category").click()
        found.when(lambda: "parameter" in found.text(".memory-legend"))
        check(found, client)
        found.close()
    done = CliRunner().invoke(cli, ["report", str(path), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    found = browser()
    found.page.goto((tmp_path / "page.html").as_uri())
    found.until("() => document.documentElement.dataset.ready")
    assert "model.py:10" in found.text(".memory-key")
    fills = found.page.evaluate(
        "() => [...document.querySelectorAll('.memory-band')].map((one) => one.style.fill)"
    )
    assert len(fills) == len(set(fills)) == 2
    assert "var(--colour-memory-unknown)" not in fills
    assert found.errors == []
    found.close()


PAPER = """() => {
    const cut = [...document.querySelectorAll("#app *")].filter((one) => {
        const style = getComputedStyle(one);
        const isOver = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
        return isOver && style.display !== "inline" && style.overflowX !== "visible" && one.clientWidth > 0
            && !one.closest(".timeline, .flame-path, .in-two, .bar") && !one.matches("select, option, textarea");
    });
    const dark = [...document.querySelectorAll("body, .view, .side, .panel, th, td")].filter((one) => {
        const [red, green, blue, alpha = 1] = getComputedStyle(one).backgroundColor.match(/[0-9.]+/g).map(Number);
        return alpha > 0 && red + green + blue < 3 * 128;
    });
    return {
        cut: cut.map((one) => `${one.tagName} ${one.className}`), dark: dark.length,
        pressed: [...document.querySelectorAll(".views, .searching, .questions, input")].filter((one) => one.checkVisibility()).length,
        shrunk: document.documentElement.scrollWidth / innerWidth,
    };
}"""  # noqa: E501
MOST_SHRUNK = 1.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "link",
    [
        "view=timeline", "view=tables&question=kernels", "view=tables&question=ladder",
        "view=flame&by=module", "view=sql",
    ],
)  # fmt: skip
def test_a_view_on_paper_is_light_and_whole(page, link):
    page.page.emulate_media(color_scheme="dark")
    to(page, link)
    if link.startswith("view=tables"):
        page.until(READY)
    page.page.set_viewport_size({"width": 720, "height": 1000})
    page.page.emulate_media(media="print", color_scheme="dark")
    page.until("() => document.documentElement.hasAttribute('data-paper')")
    page.page.wait_for_timeout(300)
    found = page.page.evaluate(PAPER)
    assert found.pop("shrunk") <= MOST_SHRUNK  # the widest table fits the sheet
    assert found == {"cut": [], "dark": 0, "pressed": 0}
    if link == "view=timeline":
        colours = page.page.evaluate(
            """() => {
                const copy = document.querySelector(".copied + canvas");
                const pixels = copy.getContext("2d").getImageData(0, 0, copy.width, copy.height).data;
                return new Set(new Uint32Array(pixels.buffer)).size;
            }"""  # noqa: E501
        )
        assert colours > 3  # slices, though WebGL's are gone when the sheet is drawn
    page.page.emulate_media(media="screen", color_scheme="light")
    page.until("() => !document.documentElement.hasAttribute('data-paper')")
    assert page.page.locator(".copied").count() == 0
    page.page.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.parametrize(
    ("name", "letters", "shown"),
    [
        ("void at::native::elementwise_kernel<4, Add<float> >(int)", 20, "elementwise_kernel"),
        ("void cub::DeviceScanKernel<cub::Policy<int>>(int, int*)", 18, "DeviceScanKernel"),
        ("torch/nn/modules/module.py(1743): _call_impl", 28, "module.py(1743): _call_impl"),
        ("torch/nn/modules/module.py(1743): _call_impl", 12, "_call_impl"),
        ("autograd::engine::evaluate_function: MulBackward0", 14, "MulBackward0"),
        ("Linear (72 merged)", 8, "Linear"),
        ("<built-in method cat of type object at 0x7f4ea9b0cc00>", 12, "cat"),
        ("<built-in function linear>", 12, "linear"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12, "enumer…ext__"),
    ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_a_name_loses_what_its_neighbours_share_before_it_is_cut(shared_page, name, letters, shown):
    found = shared_page.page.evaluate(
        """async ([name, letters]) => {
            const { fittingName } = await import("/static/units.js");
            const context = { measureText: (text) => ({ width: text.length }) };
            return fittingName(context, name, letters, 1);
        }""",
        [name, letters],
    )
    assert found == shown


def test_a_share_in_a_table_is_a_bar_as_well(shared_page):
    shown = shared_page.page.evaluate(
        """async () => {
            const { table } = await import("/static/draw/table.js");
            const columns = [["name", false], ["work_share", true], ["dur_ns", true]].map(([name, number]) => ({ name, label: name, number }));
            const rows = [["a", 0.25, 5], ["b", null, 5], ["c", 1.5, 5]];
            return [...table({ columns, rows, total: 3 }).querySelectorAll("tbody tr")].map((row) => [...row.cells].map((one) => one.style.getPropertyValue("--part")));
        }"""  # noqa: E501
    )
    assert shown == [["", "25%", ""], ["", "", ""], ["", "100%", ""]]


def test_kinds_in_a_picture_have_neither_the_colour_of_compute_nor_two_keys_for_one(shared_page):
    found = shared_page.page.evaluate(
        """async () => {
            const { scatter } = await import("/static/draw/scatter.js");
            const point = (kind, at) => ({ x: at, y: at, weight: 1, name: kind, kind, event: null, text: "" });
            const keysOf = (kinds) => [...scatter({ title: "t", x: ["count", "n"], y: ["mean_ns", "d"], lines: [], caption: "", points: kinds.map((kind, at) => point(kind, at + 1)) }).querySelectorAll(".strip-keys li")]
                .map((one) => [one.textContent, one.querySelector(".dot").style.background]);
            return [keysOf(["all_reduce", "all_to_all"]), keysOf(["matrix products", "embeddings", "sorting and indexing", "host_to_device", "device_to_device"])];
        }"""  # noqa: E501
    )
    collectives, kernels = found
    used = {fill for _, fill in collectives}
    assert len(used) == 2
    assert not used & {"var(--colour-compute)", "var(--colour-communication)"}
    assert kernels == [
        ["matrix products", "var(--colour-compute)"],
        ["embeddings, sorting and indexing", "var(--colour-other-kernel)"],
        ["host to device, device to device", "var(--colour-copy)"],
    ]


def test_rows_of_the_timeline_fill_a_high_screen_and_scroll_on_a_low_one(shared_page):
    found = shared_page.page.evaluate(
        """async () => {
            const { Layout } = await import("/static/timeline/layout.js");
            const lane = (number) => ({ key: `1/${number}`, group: "Process 1", title: "t", kind: "thread", rows_of: "events", first_row: 10 * number, rows: 10, slices: 9, device: null, lane_id: number, is_main: !number, outer_rows: 0 });
            const layout = new Layout([0, 1, 2, 3].map(lane));
            return [100, 1000, 9000].map((high) => {
                layout.viewHeight = high;
                layout.arrange();
                return [layout.height, layout.places[1].rowHeight];
            });
        }"""  # noqa: E501
    )
    (low, usual), (filled, higher), (whole, highest) = found
    assert (low, usual) == (24 + 4 * (10 * 18 + 6), 18)
    assert 18 < higher < 36
    assert 1000 - 4 * 10 < filled <= 1000
    assert (whole, highest) == (24 + 4 * (10 * 36 + 6), 36)


def test_a_table_leaves_out_columns_without_values_and_names_the_missing(shared_page):
    found = shared_page.page.evaluate(
        """async () => {
            const { answer } = await import("/static/views/answer.js");
            const column = (name, number) => ({ name, label: name, number });
            const table = { name: "t", title: "T", total: 2, columns: [column("operator", false), column("dtype", false), column("total_ns", true)], rows: [[null, null, 5], ["aten::mm", null, 6]] };
            const all = answer({ about: "a", numbers: [], pictures: [], nothing: "", tables: [table], scope: "", notes: [] }, null);
            const box = document.createElement("div");
            box.append(...all.filter(Boolean));
            return [[...box.querySelectorAll("th")].map((one) => one.textContent), box.querySelector("td").textContent, box.querySelector("section .note").textContent];
        }"""  # noqa: E501
    )
    assert found == [["operator", "total_ns"], "no operator", "Without a value in any row: dtype."]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("view", ["timeline", "flame", "memory", "sql", "compare"])
def test_a_screen_reader_finds_a_heading_and_no_nameless_picture(shared_page, view):
    to(shared_page, f"view={view}")
    shared_page.until("() => document.querySelector('.view, .timeline')")
    shared_page.page.wait_for_load_state("networkidle")
    session = shared_page.page.context.new_cdp_session(shared_page.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    seen = [
        (one["role"]["value"], one.get("name", {}).get("value", ""))
        for one in nodes
        if not one.get("ignored")
    ]
    session.detach()
    assert any(role == "heading" and " of trace.json" in name for role, name in seen)
    drawn = {"Canvas", "image", "img", "graphics-document", "button", "textbox", "combobox"}
    assert [role for role, name in seen if role in drawn and not name] == []
