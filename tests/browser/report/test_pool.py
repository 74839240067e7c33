"""The pool of target servers in a report: bars, hatching, staircase; by mouse and by keys."""

import re
from itertools import pairwise

import pytest

from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view.document import view_model
from specscope.traces.view.servers import server_pool
from tests.browser.report.opened import bar_of, colours, pane, update, window
from tests.traces.samples import sample_trace
from tests.traces.scripted import PROMPT

pytestmark = pytest.mark.browser
BAR = ".ss-pool-bar"
POOL = '.ss-pool[aria-label^="Pool"]'


@pytest.fixture(scope="module")
def trace(runs):
    return runs["pool"]


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("speculative"), trace]


@pytest.fixture
def page(page):
    page.wait_for_selector(BAR)
    return page


def chosen(pool, outcome):
    """Return the index of a forward with that outcome; the last one, on which no other lies."""
    return max(i for i, o in enumerate(pool["forwards"]["outcome"]) if o == outcome)


def own(page, i):
    """Return the box of a bar's own positions."""
    return page.locator(f"{BAR} > .ss-pool-own").nth(i).bounding_box()


def span_of(node):
    return int(node.get_attribute("data-span"))


def test_bars_span_their_times_and_positions_and_servers_have_colours_and_text_a_staircase(page, trace):
    pool = server_pool(trace)
    f = pool["forwards"]
    boxes = [own(page, i) for i in range(len(f["id"]))]
    assert page.locator(BAR).count() == len(boxes)
    assert [span_of(bar) for bar in page.locator(BAR).all()] == f["id"]
    first, last = 0, len(boxes) - 1
    scale = (boxes[last]["x"] - boxes[first]["x"]) / (f["start"][last] - f["start"][first])
    for i, box in enumerate(boxes):
        assert box["x"] == pytest.approx(boxes[0]["x"] + scale * (f["start"][i] - f["start"][0]), abs=1.5)
        assert box["width"] == pytest.approx(scale * (f["end"][i] - f["start"][i]), abs=3)
    ground, top = max(box["y"] + box["height"] for box in boxes), min(box["y"] for box in boxes)
    row = (ground - top) / (max(f["last"]) + 1 - min(f["first"]))
    for i, box in enumerate(boxes):
        assert ground - box["y"] == pytest.approx(row * (f["last"][i] + 1), abs=3)
        assert box["height"] == pytest.approx(row * (f["last"][i] + 1 - f["own"][i]), abs=3)
    again = [i for i, first, own in zip(f["id"], f["first"], f["own"], strict=True) if own > first]
    assert [span_of(node) for node in page.locator(".ss-pool-again").all()] == again
    bars = page.locator(f"{BAR} > .ss-pool-own")
    fills = bars.evaluate_all("(all) => all.map((node) => getComputedStyle(node).fill)")
    plain = {s: set() for s in range(3)}
    for server, outcome, fill in zip(f["server"], f["outcome"], fills, strict=True):
        assert ("url(" in fill) == (outcome == "preempted"), outcome
        if outcome in ("decided", "rejected"):
            plain[server].add(fill)
    assert [len(colours) for colours in plain.values()] == [1, 1, 1]
    assert len(set.union(*plain.values())) == 3
    legend = page.get_by_label("Legend of the pool").locator("li").all_inner_texts()
    assert legend[:3] == [s["label"].split(" · ")[0] for s in pool["servers"]]
    assert {"preempted", "drafted", "committed text"} <= set(legend)
    assert f"{f['outcome'].count('preempted')} preempted" in page.locator(f"{POOL} .ss-note").inner_text()
    path = page.locator(".ss-pool-text").get_attribute("d")
    steps = [tuple(map(float, step)) for step in re.findall(r"H([\d.-]+)V([\d.-]+)", path)]
    clock = decoding_clock(trace)
    times = [clock(c.time) for c in trace.commits]
    scale = (steps[-1][0] - steps[0][0]) / (times[-1] - times[0])
    assert [x for x, _ in steps] == pytest.approx([steps[0][0] + scale * (t - times[0]) for t in times])
    rises = [a[1] - b[1] for a, b in pairwise(steps)]
    assert rises == pytest.approx([rises[0]] * len(rises)), "one position a token"
    assert page.locator(".ss-pool-draft").count() == len(server_pool(trace)["drafts"])
    wrong = sum(d.outcome == "rejected" for d in trace.decisions)
    assert page.locator(".ss-pool-wrong").count() == wrong > 0
    pane(page, 1).locator(".ss-token:not(.ss-ghost)").nth(3).hover()
    decided = next(d for d in trace.decisions if d.position == len(PROMPT) + 3 and d.outcome == "accepted")
    lit = {span_of(node) for node in page.locator(".ss-pool-lit").all()}
    assert lit == {decided.verify_span}


def test_the_timeline_and_its_legend_mark_cancelled_work(page, opened, trace):
    assert "cancelled work" in page.get_by_label("Legend", exact=True).locator("li").all_inner_texts()
    names = page.locator(".ss-gantt .ss-row-label").all_inner_texts()
    tracks = [name.split("\n")[0] for name in names if name.startswith("GPU")][2:]
    servers = ("target", "target-1", "target-2")
    assert tracks == ["GPU drafter · drafter", *(f"GPU {name} · target" for name in servers)]
    opened.show(view_model([trace]))
    cancelled = max((s for s in trace.spans if s.outcome == "cancelled"), key=lambda s: s.end - s.start)
    left, right, y = bar_of(page, 0, cancelled.id)
    found = set(colours(page, *((x, y) for x in range(int(left) + 2, int(right) - 1))))
    assert {"rgb(251, 252, 254)", "rgb(0, 114, 178)"} <= found, "lines of the kind's colour on the card's"
    opened.show(view_model([sample_trace("speculative")]))
    assert "cancelled work" not in page.get_by_label("Legend", exact=True).inner_text()


@pytest.mark.parametrize(("by", "outcome"), [("mouse", "rejected"), ("keys", "preempted")])
def test_pointing_at_a_bar_shows_server_positions_and_outcome(page, trace, by, outcome):
    pool = server_pool(trace)
    f, i = pool["forwards"], chosen(pool, outcome)
    bar = page.locator(BAR).nth(i)
    if by == "mouse":
        bar.scroll_into_view_if_needed()
        box = own(page, i)
        page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    else:
        page.locator(f'{BAR}[tabindex="0"]').focus()
        page.keyboard.press("Home")
        for _ in range(i):
            page.keyboard.press("ArrowRight")
        assert page.evaluate("Number(document.activeElement.dataset.span)") == f["id"][i]
    card = page.locator(".ss-float").inner_text()
    words = "rejected a draft" if outcome == "rejected" else "preempted"
    for text in (pool["servers"][f["server"][i]]["label"], words, f"{f['last'][i] + 1}"):
        assert text in card
    assert re.search(rf"tokens? {f['first'][i] + 1}\b", card)
    label = bar.get_attribute("aria-label")
    assert label.startswith(pool["servers"][f["server"][i]]["label"])
    assert words in label
    assert [span_of(node) for node in page.locator(".ss-pool-lit").all()] in ([f["id"][i]], [f["id"][i]] * 2)
    assert page.locator(".ss-light").count() >= 1, "the timeline shows the same span"
    page.mouse.move(1, 1)
    page.evaluate("document.activeElement.blur()")
    assert page.locator(".ss-pool-lit").count() == 0


def test_dragging_across_the_chart_zooms_timeline_and_chart(page, trace):
    before, times = page.locator(BAR).count(), server_pool(trace)["forwards"]
    page.locator(f"{POOL} svg").scroll_into_view_if_needed()
    frame = page.locator(f"{POOL} svg").bounding_box()
    page.mouse.move(frame["x"] + 0.3 * frame["width"], frame["y"] + 5)
    page.mouse.down()
    page.mouse.move(frame["x"] + 0.5 * frame["width"], frame["y"] + 9, steps=3)
    page.mouse.up()
    page.wait_for_function(
        "([bar, n]) => document.querySelectorAll(bar).length < n", arg=[BAR, before], timeout=20_000
    )
    low, high = window(page)
    end = view_model([trace])["runs"][0]["to"]
    assert (high - low) == pytest.approx(0.2 * 1.02 * end, rel=0.05)
    rows = zip(times["id"], times["start"], times["end"], strict=True)
    inside = [i for i, start, end in rows if end >= low and start <= high]
    assert [span_of(bar) for bar in page.locator(BAR).all()] == inside
    for bar in page.locator(f"{BAR} > rect").all():
        box = bar.bounding_box()
        assert frame["x"] - 2 <= box["x"] <= box["x"] + box["width"] <= frame["x"] + frame["width"] + 2
    page.get_by_role("button", name="fit").click()
    page.wait_for_function("([bar, n]) => document.querySelectorAll(bar).length === n", arg=[BAR, before])


def test_replay_veils_the_future_and_a_growing_run_keeps_the_focus_on_its_bar(page, traces, trace):
    f = server_pool(trace)["forwards"]
    page.evaluate("(t) => view.seek(t)", f["start"][5])
    veil = page.locator(f"{POOL} .ss-veil").bounding_box()
    assert veil["x"] == pytest.approx(own(page, 5)["x"], abs=2)
    page.evaluate("view.seek(1e9)")
    assert page.locator(f"{POOL} .ss-veil").is_hidden()
    page.locator(BAR).nth(4).focus()
    update(page, traces)
    page.wait_for_timeout(400)  # a redraw is put off by 120 ms
    assert page.evaluate("Number(document.activeElement.dataset.span)") == f["id"][4]
