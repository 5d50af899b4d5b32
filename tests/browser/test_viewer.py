"""The viewer in a real browser: pan, zoom, click, search, ranges, every view; and hostile names."""

from __future__ import annotations

import json
import pickle
import struct
import threading
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest

from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import timeline
from stepscope.memory.opening import open_snapshot
from stepscope.report.units import size
from stepscope.trace import load as loading
from stepscope.viewer import opened
from tests.support.allocator import Allocator
from tests.support.gpu_trace import GpuTrace, us
from tests.support.rank_jobs import rank_of_job
from tests.support.real_traces import path_of
from tests.support.snapshots import train
from tests.support.step_records import step_records, write_run
from tests.support.viewer import COMPLETE, SETTLED, check, serving, to, training, viewing

CAMERA = """() => { const { start, end, width, endNs } = window.stepscope.timeline.timeline.camera;
    return { start, end, width, endNs } }"""
PLACE = """key => { const { layout, camera } = window.stepscope.timeline.timeline;
    const place = layout.places.find((one) => one.key === key);
    const box = document.querySelector('.surface').getBoundingClientRect();
    const y = box.y + layout.screenY(place) + place.rowHeight / 2;
    return { x: box.x, y, width: camera.width } }"""
MARKUP = """() => document.querySelectorAll(
    '#app img:not([src^="/static/"]), #app script, #app [onerror], #app [onload]').length"""
HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "\"><svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "\u202eevil\u0000\u001b[31m",
]


def test_the_token_leaves_the_address(page):
    assert "token" not in page.url
    page.page.reload()
    page.until(SETTLED)


def test_the_system_s_theme_is_followed_until_one_is_chosen(page):
    theme = "() => document.documentElement.dataset.theme"
    for scheme in ("dark", "light"):
        page.page.emulate_media(color_scheme=scheme)
        page.when(lambda scheme=scheme: page.page.evaluate(theme) == scheme)
    page.page.get_by_role("button", name="Dark or light").click()
    assert page.page.evaluate(theme) == "dark"
    page.page.reload()
    page.until(SETTLED)
    assert page.page.evaluate(theme) == "dark"
    page.page.evaluate("() => localStorage.clear()")


@pytest.mark.parametrize("renderer", ["webgl2", "canvas2d"])
def test_slices_are_drawn_in_the_colours_of_their_categories(browser, viewer, renderer):
    found = browser()
    found.page.emulate_media(color_scheme="light")
    found.page.goto(f"{viewer.link}&renderer={renderer}")
    found.until(COMPLETE)
    used = found.page.evaluate("() => window.stepscope.timeline.timeline.renderer")
    if renderer == "webgl2" and used != renderer:
        pytest.skip("this browser has no WebGL2")
    assert used == renderer
    place = found.page.evaluate(PLACE, "busy/0")
    assert count_pixels(found, place["y"], "colour-compute") > 20
    check(found, viewer)
    found.close()


def test_without_a_graphics_processor_the_page_draws_the_same_picture_by_itself(browser, viewer):
    pictures = []
    for chosen in ("", "&renderer=webgl2"):
        found = browser()
        found.page.emulate_media(color_scheme="light")
        found.page.goto(viewer.link + chosen)
        found.until(SETTLED)
        found.until("() => document.querySelector('[data-panel=findings][data-ready]')")
        used = found.page.evaluate("() => window.stepscope.timeline.timeline.renderer")
        if chosen and used != "webgl2":
            pytest.skip("this browser has no WebGL2")
        assert used == ("webgl2" if chosen else "canvas2d")
        pictures.append(found.page.locator(".surface").screenshot())
        check(found, viewer)
        found.close()
    assert different_pixels(browser, *pictures) < 0.01


def different_pixels(browser, one, other):
    """Share of the pixels that are not the same in two pictures."""
    import base64

    page = browser()
    found = page.page.evaluate(
        """async (shots) => {
            const pixels = [];
            for (const shot of shots) {
                const image = new Image();
                image.src = `data:image/png;base64,${shot}`;
                await image.decode();
                const canvas = new OffscreenCanvas(image.width, image.height);
                const context = canvas.getContext("2d");
                context.drawImage(image, 0, 0);
                pixels.push(context.getImageData(0, 0, image.width, image.height).data);
            }
            const [one, other] = pixels;
            if (one.length !== other.length) return 1;
            const far = (at) => [0, 1, 2].some((of) => Math.abs(one[at + of] - other[at + of]) > 8);
            let found = 0;
            for (let at = 0; at < one.length; at += 4) found += far(at);
            return found / (one.length / 4);
        }""",
        [base64.b64encode(shot).decode() for shot in (one, other)],
    )
    page.close()
    return found


def count_pixels(page, y, token):
    """Pixels of a screenshot's row that are of a token's colour."""
    import base64

    shot = base64.b64encode(page.page.screenshot()).decode()
    return page.page.evaluate(
        """async ([shot, y, token]) => {
            const image = new Image();
            image.src = `data:image/png;base64,${shot}`;
            await image.decode();
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.width, image.height];
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const style = getComputedStyle(document.documentElement);
            const wanted = style.getPropertyValue(`--${token}`);
            const rgb = parseInt(wanted.trim().slice(1), 16);
            const row = context.getImageData(0, Math.round(y) + 8, image.width, 1).data;
            let found = 0;
            for (let at = 0; at < row.length; at += 4) {
                const near = (one, shift) => Math.abs(one - ((rgb >> shift) & 255)) < 6;
                if (near(row[at], 16) && near(row[at + 1], 8) && near(row[at + 2], 0)) found++;
            }
            return found;
        }""",
        [shot, y, token],
    )


def test_wheel_zooms_at_the_pointer_and_keys_and_drags_pan(page):
    mouse, keyboard = page.page.mouse, page.page.keyboard
    place = page.page.evaluate(PLACE, "steps")
    x = place["x"] + place["width"] * 0.4
    before = page.page.evaluate(CAMERA)
    fixed = before["start"] + (before["end"] - before["start"]) * 0.4
    mouse.move(x, place["y"] + 30)

    def turned():
        mouse.wheel(0, -600)  # again where it came before the page took input
        return narrower(page, before)

    zoomed = page.when(turned)
    at_pointer = zoomed["start"] + (zoomed["end"] - zoomed["start"]) * 0.4
    assert abs(at_pointer - fixed) < (zoomed["end"] - zoomed["start"]) * 0.01
    mouse.down()
    mouse.move(x + 100, place["y"] + 30, steps=4)
    mouse.up()
    dragged = page.page.evaluate(CAMERA)
    assert dragged["start"] < zoomed["start"]
    keyboard.down("d")
    page.when(lambda: page.page.evaluate(CAMERA)["start"] > dragged["start"])
    keyboard.up("d")
    keyboard.down("w")
    page.when(lambda: narrower(page, zoomed))
    keyboard.up("w")
    keyboard.press("0")
    page.when(lambda: page.page.evaluate(CAMERA)["end"] >= before["endNs"])
    page.until(SETTLED)


def narrower(page, than):
    now = page.page.evaluate(CAMERA)
    return now if now["end"] - now["start"] < than["end"] - than["start"] else None


def test_a_link_reproduces_the_view(browser, viewer, page):
    to(page, "from=1000000&to=2000000&range=1200000-1500000&lanes=stream&event=3")
    page.until("() => document.querySelector('[data-panel=details][data-event]')")
    other = browser()
    other.page.goto(page.url)  # the cookie is there: no token is needed
    other.until(SETTLED)
    other.until("() => document.querySelector('[data-panel=details][data-event]')")
    assert other.page.evaluate("() => document.querySelector('.lane-filter').value") == "stream"
    here, there = page.page.evaluate(CAMERA), other.page.evaluate(CAMERA)
    assert (here["start"], here["end"]) == (there["start"], there["end"])
    check(other, viewer)
    other.close()


def test_a_click_shows_the_slice_and_its_links_lead_on(page, viewer):
    trace = viewer.library.traces[0].content.trace
    index = viewer.library.traces[0].content.index
    kernel = viewer.get("/api/traces/{}/search", text="sgemm")["hits"][0]
    span = kernel["dur_ns"] * 4
    to(page, f"from={kernel['start_ns'] - span}&to={kernel['start_ns'] + span}")
    page.until(SETTLED)
    key = index.lane_of_row(kernel["row"]).key
    middle = kernel["start_ns"] + kernel["dur_ns"] / 2
    page.when(lambda: clicked(page, key, middle, kernel["event"]))
    assert "sgemm" in page.text(".event-name")
    derived = trace.derived.collect().row(kernel["event"], named=True)
    page.page.get_by_role("button", name="cudaLaunchKernel").first.click()
    page.until(
        "launch => document.querySelector('[data-panel=details]').dataset.event === String(launch)",
        derived["launch"],
    )
    assert "cudaLaunchKernel" in page.text(".event-name")


def click(page, key, at_ns):
    """Click a lane at a time, where it is now: lanes that come later move those below them."""
    place, camera = page.page.evaluate(PLACE, key), page.page.evaluate(CAMERA)
    share = (at_ns - camera["start"]) / (camera["end"] - camera["start"])
    page.page.mouse.click(place["x"] + share * place["width"], place["y"])


def clicked(page, key, at_ns, event):
    click(page, key, at_ns)
    return page.page.evaluate(
        "event => document.querySelector('[data-panel=details]').dataset.event === String(event)",
        event,
    )


def test_a_click_on_a_step_adds_it_up_as_show_does(shared_page, viewer):
    content = viewer.library.traces[0].content
    step = viewer.get("/api/traces/{}/overview")["device_steps"][1]
    click(shared_page, "device_steps/0", (step["start_ns"] + step["end_ns"]) / 2)
    shared_page.until("() => document.querySelector('[data-panel=range][data-ready]')")
    shown = shared_page.page.evaluate(
        """() => Object.fromEntries(
            [...document.querySelectorAll('[data-panel=range] .legend li')]
            .map((one) => ['.name', '.number'].map((of) => one.querySelector(of).textContent)))"""
    )
    line = timeline(content.trace, Scope(steps=(step["step"],)))
    from stepscope.report.units import duration

    assert shown["compute"] == duration(line.compute_ns)
    assert shown["exposed communication"] == duration(line.exposed_comm_ns)
    assert f"range={step['start_ns']}-{step['end_ns']}" in shared_page.url


def test_escape_leaves_the_search_to_the_keys_of_the_timeline(page):
    page.page.keyboard.press("/")
    page.page.keyboard.type("sgemm")
    page.when(lambda: "3 hits" in page.text("[data-panel=search] h2"))
    page.page.keyboard.press("Escape")
    assert page.page.evaluate("() => document.activeElement.className") != "search"
    # Nothing of the search stays: no marks, no text, no address.
    page.until("() => window.stepscope.timeline.timeline.hits.size === 0")
    page.until("() => !location.hash.includes('search')")
    assert page.page.locator(".search").input_value() == ""
    page.page.keyboard.press("?")
    page.until("() => document.querySelector('dialog[open]')")


def test_the_timeline_shows_that_it_has_the_focus(page):
    ring = (
        """() => getComputedStyle(document.querySelector(".surface"), "::after").borderTopWidth"""
    )
    assert page.page.evaluate(ring) != "2px"
    for _ in range(60):
        page.page.keyboard.press("Tab")
        if "surface" in page.page.evaluate("() => document.activeElement.className"):
            break
    assert page.page.evaluate(ring) == "2px"


def test_search_lists_the_hits_and_leads_to_them(shared_page):
    shared_page.page.keyboard.press("/")
    shared_page.page.keyboard.type("SGEMM")
    shared_page.when(lambda: "3 hits" in shared_page.text("[data-panel=search] h2"))
    hits = shared_page.page.locator("[data-panel=search] section:last-of-type .events button")
    hits.first.click()
    shared_page.until("() => document.querySelector('[data-panel=details]').dataset.event")
    assert "sgemm" in shared_page.text(".event-name")


def test_enter_goes_from_hit_to_hit_and_round_again(page, viewer):
    hits = [str(one["event"]) for one in viewer.get("/api/traces/{}/search", text="sgemm")["hits"]]
    page.page.keyboard.press("/")
    page.page.keyboard.type("sgemm")
    seen = []
    for key in ["Enter"] * 4 + ["Shift+Enter"]:
        before = page.page.evaluate("() => window.stepscope.selection.get('event')")
        page.page.keyboard.press(key)
        now = page.until(
            """before => { const now = window.stepscope.selection.get('event');
                return now !== before && now }""",
            before,
        )
        seen.append((now, page.text(".hits")))
    assert seen == [(hits[at], f"{at + 1} of 3") for at in (0, 1, 2, 0, 2)]


def test_a_legend_says_what_the_colours_mean(shared_page):
    shown = shared_page.page.locator(".timeline-legend li").all_inner_texts()
    assert {"compute, matrix product", "elementwise", "communication"} <= set(shown)
    assert {"copy", "operator", "Python", "step"} <= set(shown)
    assert "attention" not in shown  # the trace has none
    slices, legend = (
        shared_page.page.locator(name).bounding_box() for name in (".surface", ".timeline-legend")
    )
    assert slices["y"] + slices["height"] <= legend["y"] + 1
    assert slices["height"] > 200


def test_the_place_of_a_finding_is_shown_beside_it(page, viewer):
    findings = viewer.get("/api/traces/{}/findings")["findings"]
    found = next(one for one in findings if one["place"])
    page.until("() => document.querySelector('[data-panel=findings]').dataset.ready")
    page.page.locator(".finding", has_text=found["title"]).first.locator("summary").click()
    page.page.get_by_role("button", name="Show it in the timeline").first.click()
    page.when(lambda: found["title"].lower() in page.text(".pinned").lower())
    place = found["place"]
    page.until("range => location.hash.includes(range)", f"{place['start_ns']}-{place['end_ns']}")
    if place["event"] is not None:
        page.until("() => document.querySelector('[data-panel=details]').dataset.event")
        assert page.page.locator("[data-panel=details]").is_visible()
    page.page.get_by_role("button", name="Unpin").click()
    assert page.page.locator(".pinned .finding").count() == 0


def test_enter_goes_to_the_first_hit_in_view(page, viewer):
    hits = viewer.get("/api/traces/{}/search", text="sgemm")["hits"]
    page.page.evaluate(
        "start => window.stepscope.timeline.timeline.goTo(start, start + 1e6)",
        hits[1]["start_ns"] - 1000,
    )
    page.until(SETTLED)
    page.page.keyboard.press("/")
    page.page.keyboard.type("sgemm")
    page.page.keyboard.press("Enter")
    page.until("event => window.stepscope.selection.get('event') === event", str(hits[1]["event"]))


def test_names_of_a_search_say_on_which_side_they_are_and_narrow_it(shared_page):
    shared_page.page.keyboard.press("/")
    shared_page.page.keyboard.type("m")
    names = "[data-panel=search] section:first-of-type .events button"
    shared_page.when(lambda: shared_page.page.locator(names).count() > 1)
    rows = shared_page.page.locator(names).all_inner_texts()
    assert {side for row in rows for side in ("CPU", "GPU") if side in row.split("\n")} == {
        "CPU",
        "GPU",
    }
    kernel = shared_page.page.locator(names, has_text="sgemm").first
    assert "GPU" in kernel.inner_text()
    kernel.click()
    shared_page.when(lambda: "3 hits" in shared_page.text("[data-panel=search] h2"))
    assert "sgemm" in shared_page.page.locator(".search").input_value()


def test_marks_of_the_axis_differ_from_their_neighbours(shared_page):
    repeated = """async () => {
        const { momentText, roundNumbers } = await import('/static/draw/ticks.js');
        const found = [];
        for (let power = 2; power < 13; power += 0.25) {
          for (const start of [0, 1234567, 98765432109, 3.6e12]) {
            const span = 10 ** power;
            const marks = roundNumbers(start, start + span, span / 12);
            const words = marks.map((ns) => momentText(ns, span));
            const isBad = new Set(words).size < words.length || words.length < 4;
            if (isBad) found.push([span, ...words]);
          }
        }
        return found }"""
    assert shared_page.page.evaluate(repeated) == []


def test_the_bar_fits_into_windows_of_every_width(shared_page):
    outside = """() => [...document.querySelectorAll('.bar-top *')]
        .filter((one) => !one.closest('.views'))
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .map((one) => one.outerHTML)"""
    for width in (1280, 1100, 1024, 900, 800, 600, 390):
        shared_page.page.set_viewport_size({"width": width, "height": 800})
        assert shared_page.page.evaluate(outside) == [], width
        for button in shared_page.page.locator(".views button").all():
            assert button.bounding_box()["height"] < 40, "the name of a view takes two lines"


def test_lanes_fold_pin_and_filter(page):
    titles = """() => [...document.querySelectorAll('.lane-header:not(.is-group) .lane-title')]
        .map((one) => one.textContent)"""
    # Lanes of idle causes and counters come after the picture.
    page.when(lambda: "why idle" in page.page.evaluate(titles))
    page.page.get_by_role("button", name="Fold GPU 0").click()
    page.when(lambda: "why idle" not in page.page.evaluate(titles))
    page.page.get_by_role("button", name="Unfold GPU 0").click()
    page.page.locator(".lane-header:not(.is-group)").last.hover()
    page.page.locator(".lane-header:not(.is-group) .pin").last.click()
    page.until("() => document.querySelector('.lane-header.is-pinned')")
    page.page.locator(".lane-filter").fill("busy")
    page.when(lambda: all("busy" in title for title in page.page.evaluate(titles)))
    assert "busy" in page.page.evaluate(titles)
    assert "lanes=busy" in page.until("() => location.hash.includes('lanes=') && location.hash")


def test_findings_lead_to_their_place(page):
    page.until("() => document.querySelector('[data-panel=findings][data-ready]')")
    assert page.text(".verdict")
    before = page.page.evaluate(CAMERA)
    page.page.locator("details.finding summary").first.click()
    page.page.get_by_role("button", name="Show it in the timeline").first.click()
    page.when(lambda: page.page.evaluate(CAMERA) != before)
    page.until("() => document.querySelector('[data-panel=range][data-ready]')")


def test_tables_sort_and_filter(shared_page):
    to(shared_page, "view=tables&question=kernels")
    shared_page.until("() => document.querySelector('.view')?.dataset.ready === 'kernels'")
    rows = """() => [...document.querySelectorAll('[data-table=kernels] tbody tr')]
        .map((one) => one.cells[0].textContent)"""
    names = shared_page.page.evaluate(rows)
    assert len(names) >= 3
    shared_page.page.locator("[data-table=kernels] thead button").first.click()
    shared_page.when(lambda: shared_page.page.evaluate(rows) == sorted(names, key=str.lower))
    to(shared_page, "view=tables&question=steps&steps=1")
    shared_page.until("() => document.querySelector('.view')?.dataset.ready === 'steps'")
    shared_page.when(
        lambda: (
            shared_page.page.evaluate(
                "() => document.querySelectorAll('[data-table=steps] tbody tr').length"
            )
            == 1
        )
    )


def test_sql_answers_and_saves(page):
    to(page, "view=sql")
    page.until("() => document.querySelector('.query')")
    page.page.locator(".query").fill("SELECT count(*) AS events FROM events")
    page.page.get_by_role("button", name="Run", exact=True).click()
    page.until("() => document.querySelector('.view')?.dataset.ready === '1'")
    page.page.get_by_role("button", name="Save", exact=True).click()
    page.page.reload()
    page.until("() => document.querySelector('.query')")
    assert "count(*)" in page.page.evaluate("() => document.querySelector('.query').value")


def test_what_a_query_found_is_a_chart_and_marks_in_the_timeline(page):
    query = "SELECT name, start_ns, dur_ns FROM events ORDER BY dur_ns DESC LIMIT 3"
    to(page, "view=sql")
    page.until("() => document.querySelector('.query')")
    page.page.locator(".query").fill(query)
    page.page.get_by_role("button", name="Run", exact=True).click()
    page.until("() => document.querySelector('.view')?.dataset.ready === '3'")
    page.page.get_by_role("button", name="Chart", exact=True).click()
    assert page.page.locator(".view-body .bars-row").count() == 3
    page.page.get_by_role("button", name="Mark in the timeline").click()
    page.until(SETTLED)
    marks = """() => window.stepscope.timeline.timeline.flags.slice(-3)
        .map((one) => [one.start_ns, one.end_ns - one.start_ns])"""
    end = page.page.evaluate("() => window.stepscope.context.overview.end_ns")
    found = page.page.evaluate(marks)
    assert len(found) == 3
    assert all(start >= 0 and 0 < length <= end for start, length in found)
    assert found == sorted(found, key=lambda one: -one[1])
    rows = page.page.locator(".marked-rows .link")
    assert rows.count() == 3
    rows.nth(1).click()
    start, length = found[1]
    page.until(f"() => location.hash.includes('range={start}-{start + length}')")
    page.page.locator(".marked-rows").get_by_role("button", name="Clear").click()
    page.page.wait_for_function("() => !document.querySelector('.marked-rows').childElementCount")
    assert [start, length] not in page.page.evaluate(marks)


def test_a_note_on_a_range_is_marked_listed_and_taken_away(page):
    end = page.page.evaluate("() => window.stepscope.context.overview.end_ns")
    to(page, f"range={end // 4}-{end // 2}")
    field = page.page.get_by_role("textbox", name="Note on this range")
    field.fill("<b>look</b> here")
    field.press("Enter")
    page.until("() => document.querySelector('.notes').dataset.notes === '1'")
    assert page.page.locator(".kept-note .link").inner_text() == "<b>look</b> here"
    first = "() => window.stepscope.timeline.timeline.flags[0]"
    assert page.page.evaluate(first)["title"] == "<b>look</b> here"
    page.page.reload()
    page.until("() => document.querySelector('.notes')?.dataset.notes === '1'")
    page.page.get_by_role("button", name="Forget the note <b>look</b> here").click()
    page.until("() => document.querySelector('.notes').dataset.notes === '0'")


def test_a_note_can_be_typed_while_the_range_is_added_up(page):
    asked = []
    page.page.route("**/range?*", lambda route: asked.append(route))  # noqa: PLW0108 - playwright needs a function
    end = page.page.evaluate("() => window.stepscope.context.overview.end_ns")
    to(page, f"range={end // 4}-{end // 2}")
    field = page.page.get_by_role("textbox", name="Note on this range")
    field.press_sequentially("look ")
    page.when(lambda: asked)
    asked[-1].continue_()
    page.page.locator("[data-device]").first.wait_for()
    page.page.keyboard.type("here")
    assert field.input_value() == "look here"


NARROW = {"width": 420, "height": 900}
WIDE = """selector => { const { width, height } = document.querySelector(selector)
    .getBoundingClientRect(); return [width, height] }"""
FITS = "() => document.documentElement.scrollWidth <= window.innerWidth"


def test_a_narrow_window_shows_the_timeline_above_its_panel(shared_page):
    shared_page.page.set_viewport_size(NARROW)
    shared_page.until(SETTLED)
    shared_page.when(lambda: shared_page.page.evaluate(WIDE, ".surface")[0] >= 290)
    assert shared_page.page.evaluate(WIDE, ".surface")[1] >= 300
    assert shared_page.page.evaluate(WIDE, ".side")[0] == NARROW["width"]
    assert shared_page.page.evaluate(WIDE, ".side")[1] >= 250
    titles = {"flame": "Flame graph", "tables": "Tables", "sql": "SQL", "compare": "Compare"}
    for view, title in titles.items():
        to(shared_page, f"view={view}")
        shared_page.when(lambda title=title: shared_page.text(".views [aria-current]") == title)
        assert shared_page.page.evaluate(FITS), view


def test_the_strip_is_drawn_as_tall_as_it_is_at_the_width_of_a_new_canvas(page):
    page.page.evaluate(
        """() => { const map = window.stepscope.timeline.timeline.minimap, canvas = map._canvas;
            canvas.style.width = "300px"; canvas.width = 300; canvas.height = 150;
            map.repaint() }"""
    )
    drawn = "() => ['width', 'height'].map((of) => document.querySelector('.minimap')[of])"
    assert page.page.evaluate(drawn) == [300, 34]


def test_a_trace_without_events_opens(browser, tmp_path):
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    with viewing([path]) as client:
        found = browser()
        found.page.goto(client.link)
        found.until("() => document.querySelector('[data-panel=findings]')")
        assert "holds no events" in found.text(".surface")
        check(found, client)
        found.close()


def test_hostile_names_are_only_text(browser, tmp_path):
    document = json.loads(training().json())
    named = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    for number, event in enumerate(named):
        event["name"] = HOSTILE[number % len(HOSTILE)] + str(number % 7)
        event.setdefault("args", {})[HOSTILE[0]] = HOSTILE[1]
    for event in document["traceEvents"]:
        if event.get("ph") == "M" and "name" in event.get("args", {}):
            event["args"]["name"] = HOSTILE[0]
    path = tmp_path / "<img src=x onerror=alert(1)>.json"
    path.write_text(json.dumps(document))
    with viewing([path]) as client:
        page = browser()
        page.page.goto(client.link)
        page.until(SETTLED)
        for view in (
            "event=5",
            "search=img",
            "range=0-90000000",
            "view=flame&by=host",
            "view=tables&question=operators",
        ):
            to(page, view)
            page.page.wait_for_timeout(700)
        assert page.page.evaluate("() => document.title").startswith("<img")
        assert page.page.evaluate(MARKUP) == 0
        check(page, client)
        page.close()


def test_two_viewers_at_once(browser, viewer, page, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(training(steps=5).json())
    with viewing([path]) as client:
        other = browser()
        other.page.goto(client.link)
        other.until(SETTLED)
        page.page.reload()
        page.until(SETTLED)
        steps = "() => window.stepscope.context.overview.steps.length"
        assert (page.page.evaluate(steps), other.page.evaluate(steps)) == (3, 5)
        check(other, client)
        other.close()


def test_a_store_that_changes_under_the_viewer_is_said_and_opened_again(
    browser, tmp_path, monkeypatch
):
    path = tmp_path / "trace.json"
    path.write_bytes(training().json())
    monkeypatch.setattr(opened, "load", lambda place: loading.load(place, store=True))
    with viewing([path]) as client:
        page = browser()
        page.page.goto(client.link)
        page.until(SETTLED)
        path.write_bytes(training(steps=5).json())
        loading.load(path, store=True)
        to(page, "event=2")
        page.when(lambda: "changed" in page.text(".banner"))
        page.page.get_by_role("button", name="Open it again").click()
        page.until("() => window.stepscope.context?.overview.steps.length === 5")
        page.close()


def test_the_first_picture_of_a_large_trace_fills_in(browser, viewer, tmp_path, monkeypatch):
    gate = threading.Event()
    whole_index = opened.whole_index
    monkeypatch.setattr(opened, "EARLY_ABOVE_EVENTS", 0)
    monkeypatch.setattr(opened, "whole_index", lambda *given: gate.wait(60) and whole_index(*given))
    path = tmp_path / "large.json"
    path.write_bytes(training().json())
    pictures = []
    with serving([path]) as client:
        found = browser()
        found.page.goto(client.link)
        found.until(SETTLED)
        found.until("() => document.querySelector('.rest').textContent.includes('still')")
        keys = "() => window.stepscope.timeline.timeline.layout.places.map((one) => one.key)"
        assert "device_steps/0" not in found.page.evaluate(keys)
        gate.set()
        found.until("() => document.querySelector('.rest').textContent === ''")
        assert "device_steps/0" in found.page.evaluate(keys)
        for page, client_ in ((found, client), (browser(), viewer)):
            page.page.bring_to_front()  # the other one opened since
            if page is not found:
                page.page.goto(viewer.link)
            page.until("() => document.querySelector('[data-panel=findings][data-ready]')")
            page.until(SETTLED)
            page.page.wait_for_timeout(300)
            pictures.append(page.page.locator(".surface").screenshot())
            check(page, client_)
            page.close()
    assert different_pixels(browser, *pictures) == 0


def test_two_traces_are_compared(browser, tmp_path):
    for name, steps in (("before", 4), ("after", 6)):
        (tmp_path / f"{name}.json").write_bytes(training(steps=steps).json())
    with viewing([tmp_path / "before.json", tmp_path / "after.json"]) as client:
        page = browser()
        page.page.goto(f"{client.link}#view=compare&with=1")
        page.until("() => document.querySelector('.view')?.dataset.ready === '1'")
        assert page.text(".verdict").startswith("The median step")
        page.until(
            "() => document.querySelector('.bars') && document.querySelector('.flame-canvas')"
        )
        check(page, client)
        page.close()


def test_a_memory_snapshot_is_not_offered_for_comparison(browser, tmp_path):
    for name, steps in (("before", 4), ("after", 6)):
        (tmp_path / f"{name}.json").write_bytes(training(steps=steps).json())
    (tmp_path / "memory.pickle").write_bytes(pickle.dumps(train(Allocator()).snapshot()))
    paths = [tmp_path / name for name in ("before.json", "memory.pickle", "after.json")]
    with viewing(paths) as client:
        page = browser()
        page.page.goto(f"{client.link}#view=compare")
        page.until("() => document.querySelector('.view')?.dataset.ready === '1'")
        offered = page.page.evaluate(
            "() => [...document.querySelectorAll('.view-head option')].map((it) => it.text)"
        )
        assert offered == ["after.json"]
        check(page, client)
        page.close()


def test_the_work_of_both_is_compared_on_the_gpu_s_clock(browser, tmp_path):
    """The host has launched all steps before the GPU has done the first."""
    ahead = GpuTrace()
    for _ in range(3):
        with ahead.step():
            for _ in range(10):
                ahead.op("aten::mm").launch("sgemm", us(900))
    for name in ("before", "after"):
        (tmp_path / f"{name}.json").write_bytes(ahead.json())
    with viewing([tmp_path / "before.json", tmp_path / "after.json"]) as client:
        page = browser()
        page.page.goto(f"{client.link}#view=compare&with=1")
        page.until("() => document.querySelector('.flame-canvas')")
        steps = client.get("/api/traces/{}/overview")["device_steps"]
        asked = [parse_qs(urlsplit(url).query) for url in page.requests if "/flame?" in url]
        assert len(asked) == 2
        for window in asked:
            assert window["start"] == [str(steps[0]["start_ns"])]
            assert window["end"] == [str(steps[-1]["end_ns"])]
        assert steps[-1]["end_ns"] - steps[0]["start_ns"] >= us(27_000)
        check(page, client)
        page.close()


def test_one_step_of_each_is_drawn_again_in_another_theme(browser, tmp_path):
    for name in ("before", "after"):
        (tmp_path / f"{name}.json").write_bytes(training().json())
    with viewing([tmp_path / "before.json", tmp_path / "after.json"]) as client:
        page = browser()
        page.page.emulate_media(color_scheme="light")
        page.page.goto(f"{client.link}#view=compare&with=1")
        drawn = """() => { const canvas = document.querySelector('canvas.mini');
            return canvas?.style.height && canvas.toDataURL() }"""
        light = page.until(drawn)
        page.page.emulate_media(color_scheme="dark")
        page.when(lambda: page.page.evaluate(drawn) != light)
        check(page, client)
        page.close()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a100_nccl_train/trace.json.gz", marks=pytest.mark.slow),
        "mi300x_resnet_train/trace.json.gz",
    ],
)
def test_real_traces_are_shown_without_an_error(browser, name):
    with viewing([path_of(name)]) as client:
        page = browser()
        page.page.goto(client.link)
        page.until(SETTLED)
        for view in (
            "view=flame&by=operator",
            "view=tables&question=idle",
            "view=timeline&search=kernel",
        ):
            to(page, view)
            page.until("() => document.querySelector('[data-ready], [data-panel=search] h2')")
        check(page, client)
        page.close()


MEMORY = "() => document.querySelector('.memory-view')?.dataset.ready"
MEMORY_SETTLED = "() => window.stepscope.view.chart?.isSettled"


@pytest.fixture
def memory_page(browser, tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(train(Allocator(), steps=3, layers=6).snapshot()))
    with serving([path]) as client:
        found = browser()
        found.page.goto(client.link)
        found.until(MEMORY)
        found.until(MEMORY_SETTLED)
        yield found, open_snapshot(str(path))
        check(found, client)
        found.close()


def test_segments_are_drawn_again_in_another_theme(memory_page):
    page, _ = memory_page
    drawn = "() => document.querySelector('canvas.segment').toDataURL()"
    page.page.emulate_media(color_scheme="dark")
    page.until("() => document.documentElement.dataset.theme === 'dark'")
    dark = page.page.evaluate(drawn)
    page.page.emulate_media(color_scheme="light")
    page.when(lambda: page.page.evaluate(drawn) != dark)


def test_a_snapshot_is_stacked_and_a_click_tells_whose_it_is(memory_page):
    page, view = memory_page
    peak = view.peak(0)
    assert page.text("[data-panel=moment] h2") == f"{size(view.peak_bytes(0))} held at the peak"
    assert page.page.evaluate("() => [...document.querySelectorAll('.views button')].length") == 1
    # The largest allocation at the peak, in the middle of what is drawn of it.
    place = page.page.evaluate(
        """event => { const { chart } = window.stepscope.view;
            const { stack, camera } = chart, scene = chart.scene();
            const column = stack.event.findLastIndex((one) => one <= event);
            const item = stack.items.filter((one) => one.first <= column && column < one.last)
                .sort((a, b) => b.size - a.size)[0];
            const bytes = item.low[column - item.first] + item.size / 2;
            const box = chart.pane.getBoundingClientRect();
            const at = stack.start + (column + 0.5) * stack.step;
            const up = (bytes / scene.most) * (scene.height - 26 - 22);
            return { number: item.number, x: box.x + camera.x(at),
                y: box.y + scene.height - 26 - up } }""",
        peak.event,
    )
    page.page.mouse.move(place["x"], place["y"])
    page.when(lambda: "allocated" in page.text(".tip.is-shown"))
    page.page.mouse.click(place["x"], place["y"])
    page.until("() => document.querySelector('[data-panel=allocation][data-allocation]')")
    row = view.allocations.row(int(place["number"]), named=True)
    assert row["line"] in page.text("[data-panel=allocation]")
    assert size(row["size_bytes"]) in page.text("[data-panel=allocation]")
    assert f"allocation={place['number']}" in page.url


def test_memory_steps_to_moments_out_of_view(memory_page):
    page, view = memory_page
    peak = view.peak(0)
    page.when(lambda: page.page.evaluate("() => window.stepscope.view.chart.moment !== null"))
    at, last = page.page.evaluate(
        """() => { const { chart } = window.stepscope.view;
            return [chart.moment, chart.camera.endNs] }"""
    )
    # A tenth of the axis, as far from the peak as there is room.
    start = last * 0.88 if at < last / 2 else last * 0.02
    page.page.evaluate(
        "([from, to]) => window.stepscope.view.chart.show(from, to)", [start, start + last / 10]
    )
    page.until(MEMORY_SETTLED)
    page.page.keyboard.press(".")
    page.when(lambda: "at=event" in page.url)
    page.until("() => document.querySelector('[data-panel=moment][data-ready]')")
    page.until(MEMORY_SETTLED)
    shown = page.page.evaluate(
        """() => { const { chart } = window.stepscope.view, { start, end } = chart.camera;
            return { start, end, moment: chart.moment } }"""
    )
    assert shown["start"] <= at <= shown["end"]
    assert shown["start"] <= shown["moment"] <= shown["end"]
    event = page.page.evaluate("() => document.querySelector('[data-panel=moment]').dataset.ready")
    assert int(event) > peak.event


def test_memory_zooms_steps_through_moments_and_a_link_reproduces_it(memory_page):
    page, view = memory_page
    keyboard = page.page.keyboard
    camera = """() => { const { start, end } = window.stepscope.view.chart.camera;
        return { start, end } }"""
    before = page.page.evaluate(camera)
    box = page.page.evaluate(
        """() => { const pane = document.querySelector('.memory-surface');
            const { x, y } = pane.getBoundingClientRect();
            return { x, y } }"""
    )
    page.page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.page.mouse.wheel(0, -900)
    page.when(lambda: page.page.evaluate(camera)["end"] < before["end"])
    keyboard.press("m")
    page.when(lambda: page.text("[data-panel=moment] h2").endswith("at the peak"))
    keyboard.press(".")  # while what the wheel asked for may still be loading
    page.when(lambda: "at=event" in page.url)
    page.until(MEMORY_SETTLED)
    page.until("() => document.querySelector('[data-panel=moment][data-ready]')")
    page.when(lambda: "m_from" in page.url)  # written a little later
    here, shown = page.url, page.page.evaluate(camera)
    event = page.page.evaluate("() => document.querySelector('[data-panel=moment]').dataset.ready")
    assert int(event) > view.peak(0).event
    page.page.goto("about:blank")
    page.page.goto(here)
    page.until(MEMORY)
    page.until(MEMORY_SETTLED)
    again = page.page.evaluate(camera)
    assert abs(again["start"] - shown["start"]) <= 1
    assert abs(again["end"] - shown["end"]) <= 1
    assert event == page.page.evaluate(
        "() => document.querySelector('[data-panel=moment]').dataset.ready"
    )
    page.page.get_by_role("button", name="Events").click()
    page.until("() => window.stepscope.view.chart?._given.axis === 'events'")
    page.until(MEMORY_SETTLED)
    number = view.curve(0).height - 1
    assert page.page.evaluate("() => window.stepscope.view.chart.camera.endNs") == number


RANKS = "() => document.querySelector('.view')?.dataset.ready"
CELL = """([rank, step]) => { const { map } = window.stepscope.view;
    const { ranks, steps } = map._about, { tall, wide } = map._size;
    const box = map._scroller.getBoundingClientRect();
    const row = ranks.findIndex((one) => one.rank === rank), column = steps.indexOf(step);
    return { x: box.x + 170 + (column + 0.5) * wide, y: box.y + 20 + (row + 0.5) * tall } }"""


def test_the_blamed_rank_leads_and_a_cell_opens_its_timeline_at_that_step(browser, tmp_path):
    delays = (1.0, 1.2, 7.0)
    for rank in range(len(delays)):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_of_job(rank, delays).json())
    with viewing([tmp_path]) as client:
        check_ranks_view(browser, client, blamed=2, cause="host", rank=1)


def test_the_map_of_ranks_is_walked_by_keyboard(browser, tmp_path):
    """By Tab to the map, by arrows to a cell, by Enter to that rank's timeline at that step."""
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_of_job(rank, (1.0, 7.0)).json())
    with viewing([tmp_path]) as client:
        found = browser()
        found.page.goto(f"{client.link}#view=ranks")
        found.until(RANKS)
        stops = 0
        while "heat-scroller" not in focused(found):
            found.page.keyboard.press("Tab")
            stops += 1
            assert stops < 30
        for key, cell in (("ArrowRight", "1-0"), ("ArrowRight", "1-1"), ("ArrowDown", "0-1")):
            found.page.keyboard.press(key)
            said = "rank {}, step {}:".format(*cell.split("-"))
            found.when(lambda said=said: said in found.text(".heat-tip"))
        found.page.keyboard.press("Enter")
        found.until(SETTLED)
        found.until("() => window.stepscope.selection.range() !== null")
        check(found, client)
        found.close()


@pytest.mark.slow
def test_the_ranks_of_a_real_job(browser, monkeypatch, tmp_path):
    path = path_of("amd_resnet_ddp_4rank")
    monkeypatch.setenv("STEPSCOPE_STORES", "cache")
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    with viewing([path]) as client:
        # All wait for it, but without what it has more of, a step would hardly be shorter.
        check_ranks_view(browser, client, blamed=3, cause=None, rank=2)


def check_ranks_view(browser, client, *, blamed, cause, rank):
    """The map names the blamed rank; a click on another's cell goes to its trace and step."""
    found = browser()
    found.page.goto(f"{client.link}#view=ranks")
    found.until(RANKS)
    about = found.page.evaluate("() => window.stepscope.view.map._about")
    assert (about["ranks"][0]["rank"], about["ranks"][0]["cause"]) == (blamed, cause)
    assert f"rank {blamed}" in found.text(".verdict").lower()
    step = about["steps"][1]
    place = found.page.evaluate(CELL, [rank, step])
    found.page.mouse.move(place["x"], place["y"])
    found.when(lambda: f"rank {rank}, step {step}:" in found.text(".heat-tip"))
    found.page.get_by_role("button", name="Compute", exact=True).click()
    found.when(lambda: found.page.evaluate(RANKS) == "compute_ns")
    assert "measure=compute_ns" in found.url
    found.page.mouse.click(place["x"], place["y"])
    found.until(SETTLED)
    query = parse_qs(urlsplit(found.url).fragment)
    assert client.library.traces[int(query["trace"][0])].origin.rank == rank
    content = client.library.traces[int(query["trace"][0])].content
    steps = content.trace.device_steps.filter(pl.col("step") == step).row(0, named=True)
    origin = content.index.origin_ns
    assert query["range"] == [f"{steps['start_ns'] - origin}-{steps['end_ns'] - origin}"]
    check(found, client)
    found.close()


THOUSAND_RANKS = """async () => {
  const { HeatMap } = await import("/static/ranks/heat-map.js");
  const numbers = (length) => Array.from({ length }, (_, at) => at);
  const ranks = numbers(1024).map((rank) => ({ rank, cause: rank ? null : "input" }));
  const steps = numbers(8);
  const map = new HeatMap({ ranks, steps, causes: [{}], slowest_rank: 0 }, () => {}, () => {});
  document.querySelector("main").replaceChildren(map.element);
  map.show("own_ns", Float64Array.from(numbers(8192), (at) => (at < 8 ? 52e6 : 32e6 + (at % 7))));
  await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
  const canvas = map.element.querySelector("canvas");
  const context = canvas.getContext("2d");
  map._scroller.scrollTop = 1e6;
  map._draw();
  const bottom = Array.from(context.getImageData(200, canvas.height - 6, 1, 1).data);
  map._scroller.scrollTop = 0;
  map._draw();
  // Rows of pixels that hold ink of the first title: red, and on the paper.
  const paper = context.getImageData(150, 30, 1, 1).data.join();
  const inked = [];
  for (let y = 20; y < 34; y++) {
    const row = context.getImageData(0, y, 80, 1).data;
    for (let x = 0; x < 80; x++) {
      const pixel = row.slice(4 * x, 4 * x + 4);
      if (pixel.join() !== paper && pixel[0] > pixel[2] + 40) { inked.push(y); break; }
    }
  }
  const colour = (y) => Array.from(context.getImageData(200, y, 1, 1).data);
  return { inked, odd: colour(21), usual: colour(60), other: colour(64), bottom };
}"""


@pytest.mark.slow
def test_a_thousand_ranks_are_readable(browser, viewer):
    page = browser()
    page.page.goto(f"{viewer.link}#view=tables")
    page.until("() => window.stepscope?.context")
    found = page.page.evaluate(THOUSAND_RANKS)
    assert page.errors == []
    assert len(found["inked"]) >= 8  # a whole line of text, not its lower half
    far = [abs(a - b) for a, b in zip(found["odd"], found["usual"], strict=True)]
    near = [abs(a - b) for a, b in zip(found["usual"], found["other"], strict=True)]
    assert max(far) > 60
    assert max(near) <= 2
    assert found["bottom"] == found["usual"]
    page.close()


def numbers_of(client):
    return [one["step"] for one in client.get("/api/traces/{}/overview")["device_steps"]]


def test_every_step_of_a_run_is_above_the_views_and_leads_to_its_place(browser, tmp_path):
    """By mouse and by keyboard, for each rank; a step outside the window says what it took."""
    (tmp_path / "alone.json").write_bytes(training().json())
    with viewing([tmp_path / "alone.json"]) as client:
        numbers = numbers_of(client)
    last = numbers[-1]
    recorded = range(numbers[0], last + 1)
    records = step_records([40] * last + [120] + [40] * 30, 10, {"forward": 20}, recorded)
    records = [replace(one, samples=8, loss=3 - one.step / 50) for one in records]
    ranks = {0: records, 1: step_records([50] * (last + 31), 10, {"forward": 20}, recorded)}
    windows = {rank: training().json() for rank in ranks}
    with viewing([write_run(tmp_path, ranks, windows=windows)]) as client:
        page = browser()
        page.page.goto(client.link)
        page.until(SETTLED)
        page.until(COMPLETE)
        bars = page.page.locator(".run-steps .strip-bars")
        parts = page.page.locator(".run-steps .strip-part")
        assert [one.get_attribute("data-part") for one in parts.all()] == [
            "input",
            "forward",
            "other",
        ]
        lines = page.page.locator(".run-steps .strip-line")
        assert [one.get_attribute("data-line") for one in lines.all()] == ["samples/s", "loss"]
        assert "loss 3 to 2.3" in page.text(".run-steps .strip-status")
        box = bars.bounding_box()
        slot = box["width"] / len(records)
        page.page.mouse.click(box["x"] + slot * (last + 0.5), box["y"] + 10)
        page.until("() => window.stepscope.selection.range() !== null")
        assert page.text(".run-steps .strip-status").startswith(f"Step {last}: 120 ms")
        assert "recorded in detail" in page.text(".run-steps .strip-status")
        assert f"samples/s; loss {3 - last / 50:.4g}" in page.text(".run-steps .strip-status")
        by_mouse = page.url
        bars.press("Home")
        for _ in range(last - 1):
            bars.press("ArrowRight")
        bars.press("Enter")
        page.when(lambda: page.url != by_mouse)
        bars.press("End")
        assert "not recorded in detail" in page.text(".run-steps .strip-status")
        to(page, "view=ranks")
        page.until("() => document.querySelectorAll('.rank-strips .strip-bars').length === 2")
        of_other = page.page.locator(".rank-strips .strip-bars").nth(1)
        box = of_other.bounding_box()
        page.page.mouse.click(box["x"] + slot * (last + 0.5), box["y"] + 10)
        page.when(lambda: "rank 1" in page.page.title())
        page.until("() => window.stepscope.selection.range() !== null")
        check(page, client)
        page.close()


# What stands right below the bar moves when its progress makes way for the first picture.
SHIFTS = """() => new Promise((seen) => {
    const moved = [];
    new PerformanceObserver((list) => moved.push(...list.getEntries().flatMap((entry) =>
        entry.sources.filter(({ previousRect }) => previousRect.y >
            document.querySelector(".bar-top").getBoundingClientRect().bottom + 1
        ).map(({ node, previousRect: a, currentRect: b }) =>
            `${node?.parentElement?.className} ${node?.className}: ${a.y} to ${b.y}`))))
        .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => seen(moved), 300);
})"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [800, 1280, 1920])
@pytest.mark.parametrize("what", ["trace", "run"])
def test_nothing_moves_once_it_is_drawn(browser, tmp_path, what, width):
    """Neither when the strip of steps and the findings arrive, nor when one points at a bar."""
    if what == "trace":
        path = tmp_path / "trace.json"
        path.write_bytes(training().json())
    else:
        records = step_records([40] * 30, 10, {"forward": 20}, range(1, 4))
        path = write_run(tmp_path, {0: records}, windows={0: training().json()})
    with viewing([path]) as client:
        page = browser()
        page.page.set_viewport_size({"width": width, "height": 900})
        page.page.goto(client.link)
        page.until(SETTLED)
        page.until(COMPLETE)
        page.until("() => document.querySelector('[data-panel=findings][data-ready]')")
        assert page.page.evaluate(SHIFTS) == []
        lanes = page.page.locator(".surface").bounding_box()
        box = page.page.locator(".run-steps .strip-bars").bounding_box()
        page.page.mouse.move(box["x"] + 30, box["y"] + 20)
        page.when(lambda: "(" in page.text(".run-steps .strip-status"))
        assert page.page.locator(".surface").bounding_box() == lanes
        check(page, client)
        page.close()


def test_a_trace_without_a_step_record_has_a_strip_of_its_window(shared_page, viewer):
    parts = shared_page.page.locator(".run-steps .strip-part")
    shared_page.when(lambda: parts.count() > 0)
    names = {one.get_attribute("data-part") for one in parts.all()}
    assert names <= {"compute", "exposed communication", "exposed copies", "idle", "other"}
    assert {"compute", "exposed communication"} <= names
    steps = viewer.get("/api/traces/{}/steps")["strips"][0]
    assert list(steps["first"]) == numbers_of(viewer)


def test_a_view_is_passed_on_as_a_link_a_picture_and_a_page(browser, page, viewer, tmp_path):
    to(page, "view=timeline&event=5")
    page.until("() => document.querySelector('[data-panel=details] h2, [data-panel=details] h3')")
    page.page.get_by_role("button", name="Share", exact=True).click()
    page.page.get_by_role("button", name="Copy link").click()
    field = page.page.locator(".share-link")
    link = page.when(lambda: field.is_visible() and field.input_value())
    assert urlsplit(link).fragment == urlsplit(page.url).fragment
    path = "/" + link.split("/", 3)[3]
    assert viewer.ask(path.partition("#")[0], with_cookie=False).status == 200
    with page.page.expect_download() as picture:
        page.page.get_by_role("button", name="Save picture").click()
    assert picture.value.suggested_filename == "trace.json-timeline.png"
    picture.value.save_as(tmp_path / "picture.png")
    drawn = (tmp_path / "picture.png").read_bytes()
    assert struct.unpack(">2I", drawn[16:24]) == (2 * 1280, 2 * 800)
    assert len(drawn) > 50_000  # an empty window takes a tenth of that
    with page.page.expect_download() as saved:
        page.page.get_by_role("button", name="Save as a page").click()
    saved.value.save_as(tmp_path / "page.html")
    found = browser()
    found.page.context.set_offline(True)
    found.page.goto((tmp_path / "page.html").as_uri())
    assert "trace.json" in found.text(".bar-top")
    assert found.text("[data-panel=details]") == page.text("[data-panel=details]")
    assert found.page.locator("img.layer").count() == 3
    assert found.page.locator("script").count() == 0
    size = "() => getComputedStyle(document.body).fontSize"
    assert found.page.evaluate(size) == page.page.evaluate(size)
    found.page.context.set_offline(False)
    assert found.errors == []
    found.close()


def focused(page):
    return page.page.evaluate("() => document.activeElement.className")


def test_the_keyboard_alone_reaches_every_slice_and_hears_of_it(page):
    """From the top: skip to the view, first slice, along its row, to the rows below and back."""
    page.page.evaluate("() => document.activeElement.blur()")
    page.page.keyboard.press("Tab")
    assert focused(page) == "skip"
    stops = 0
    while focused(page) != "surface":
        page.page.keyboard.press("Tab")
        stops += 1
        assert stops < 12
    surface = page.page.locator(".surface")
    assert surface.get_attribute("role") == "application"
    assert "comma" in surface.get_attribute("aria-label")
    said = "() => document.getElementById('timeline-said').textContent"

    def press(key):
        before = page.page.evaluate(said)
        page.page.keyboard.press(key)
        return page.when(lambda: (now := page.page.evaluate(said)) != before and now)

    first = press(".")
    following = press(".")
    assert press(",") == first != following
    seen = {first}
    for _ in range(3):
        seen.add(press("ArrowDown"))
    assert len(seen) == 4
    assert all("after the first event" in one for one in seen)
    assert press("ArrowUp") in seen
    page.page.keyboard.press("Escape")
    page.when(lambda: page.page.evaluate(said) == "")
    page.page.keyboard.press("m")  # no slice is selected: what is in view
    view = "() => { const { camera } = window.stepscope.timeline.timeline; return [camera.start, camera.end]; }"  # noqa: E501
    start, end = page.page.evaluate(view)
    page.until("() => document.querySelector('[data-panel=range][data-ready]')")
    assert page.page.evaluate("() => window.stepscope.selection.range()") == pytest.approx(
        [max(0, start), end], abs=1
    )


def test_the_views_are_one_tab_stop(shared_page):
    shared_page.page.locator(".views [aria-current]").focus()
    shared_page.page.keyboard.press("ArrowRight")
    assert shared_page.page.evaluate("() => document.activeElement.textContent") == "Flame graph"
    shared_page.page.keyboard.press("Enter")
    shared_page.when(lambda: shared_page.text(".views [aria-current]") == "Flame graph")
    assert shared_page.page.locator(".views [tabindex='0']").count() == 1


STOP = """() => {
    const one = document.activeElement;
    if (one === document.body) return null;
    const [style, after] = [getComputedStyle(one), getComputedStyle(one, "::after")];
    const hasRing = style.outlineStyle !== "none" || after.borderTopWidth === "2px";
    const labels = [...one.labels ?? []].map((label) => label.textContent).join();
    const name = one.getAttribute("aria-label") || labels || one.innerText || one.title;
    return { name: name.trim(), hasRing };
}"""
FAINT = """() => {
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const luminance = (colour) => { const [r, g, b] = colour.map((one) => one / 255)
        .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const ground = (one) => { for (; one; one = one.parentElement) {
        const colour = numbers(getComputedStyle(one).backgroundColor);
        if (colour.length < 4 || colour[3] === 1) return colour; }
        return [255, 255, 255]; };
    return [...document.querySelectorAll("button, input, select, textarea")].flatMap((one) => {
        const style = getComputedStyle(one);
        const border = numbers(style.borderTopColor);
        if (style.borderTopStyle === "none" || border[3] === 0 || !one.offsetWidth) return [];
        const both = [border, ground(one.parentElement)].map(luminance);
        const [low, high] = both.sort((a, b) => a - b);
        const contrast = (high + 0.05) / (low + 0.05);
        return contrast < 3 ? [`${one.className} ${one.textContent}: ${contrast}`] : [];
    });
}"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("view", "most"),
    [
        ("timeline", 24),
        ("flame", 14),
        ("tables&question=steps", 80),
        ("memory", 80),
        ("sql", 34),
        ("compare", 12),
    ],
)
def test_every_tab_stop_has_a_name_and_a_ring_and_every_field_a_border(shared_page, view, most):
    """Walks through a view by Tab alone; lists of choices are one stop each."""
    to(shared_page, f"view={view}")
    shared_page.until("() => document.querySelector('.view, .timeline')")
    shared_page.page.wait_for_load_state("networkidle")
    shared_page.page.evaluate("() => document.activeElement.blur()")
    stops = []
    for _ in range(most + 1):
        shared_page.page.keyboard.press("Tab")
        stop = shared_page.page.evaluate(STOP)
        if stop is None:
            break
        stops.append(stop)
    assert 8 <= len(stops) <= most
    assert [stop for stop in stops if not stop["name"] or not stop["hasRing"]] == []
    for scheme in ("light", "dark"):
        shared_page.page.emulate_media(color_scheme=scheme)
        assert shared_page.page.evaluate(FAINT) == []


def test_lists_of_choices_are_walked_by_arrows(page):
    to(page, "view=tables&question=steps")
    page.until("() => document.querySelector('.view')?.dataset.ready === 'steps'")
    page.page.locator(".questions [aria-current]").focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    page.until("() => document.querySelector('.view')?.dataset.ready === 'idle'")
    assert page.page.locator(".questions [tabindex='0']").count() == 1
    to(page, "view=timeline")
    page.until(SETTLED)
    heads = page.page.locator(".lane-header button")
    heads.first.focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")  # pins a lane, or folds it, and keeps the focus there
    assert focused(page) in {"pin", "fold"}
    assert page.page.locator(".lane-header [tabindex='0']").count() == 1


def test_the_ladder_is_drawn_above_its_table_and_questions_are_in_groups(shared_page):
    to(shared_page, "view=tables&question=ladder")
    shared_page.until("() => document.querySelector('.view')?.dataset.ready === 'ladder'")
    groups = [one.inner_text() for one in shared_page.page.locator(".questions h3").all()]
    assert groups[:2] == ["Time", "Compute"]
    steps = shared_page.page.locator("[data-table=rungs] td:nth-child(2)").all_inner_texts()
    drawn = shared_page.page.locator(".bars-number").all_inner_texts()
    assert drawn == steps
    names = shared_page.page.locator("[data-table=rungs] td:first-child").all_inner_texts()
    assert names == shared_page.page.locator(".bars-name").all_inner_texts()
