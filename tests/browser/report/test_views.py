"""The views of single methods: by replay, by pointing, by keys, as a table; and all of them."""

import re

import pytest
from playwright.sync_api import expect

from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view.experts import experts
from specscope.traces.view.fan import fans, hits
from specscope.traces.view.forecasts import forecasts, sums_of
from specscope.traces.view.layers import layers
from specscope.traces.view.ngrams import copies, ngrams
from specscope.traces.view.servers import server_pool
from specscope.traces.view.tokens import trees
from tests.browser.looks import TOO_WIDE
from tests.browser.report.opened import centre_of, contrast, update
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser
OF_SOME_RUNS = {
    "fan": fans, "grams": ngrams, "forecast": forecasts, "layers": layers,
    'pool[aria-label^="Pool"]': server_pool, "tree": trees, "sources": copies,
    "experts": experts,
}  # fmt: skip
"""View -> its rows; a run without rows does not show the view."""
COLOURS = """() => {
    const marks = [...document.querySelectorAll("mark")].map((node) => getComputedStyle(node));
    const servers = [...Array(8).keys()].map((i) => {
        const probe = document.createElement("i");
        probe.className = `ss-s${i} ss-pool-key`;
        document.querySelector(".ss-pool").append(probe);
        return getComputedStyle(probe).backgroundColor;
    });
    return [marks.map((mark) => [mark.textDecorationLine, mark.textDecorationStyle]), marks.map((mark) => mark.textDecorationColor),
        servers, getComputedStyle(document.querySelector(".ss-pane")).backgroundColor];
}"""
"""Return the lines and colours of marks, the colours of servers, and that of the ground."""
OF_ALL = ("aligned", "audit", "calibration", "kv", "lengths", "packing", "tree-fork")


def detail(page, view):
    return page.locator(f".ss-{view} .ss-detail")


def height(page, view):
    return page.locator(f".ss-{view}").bounding_box()["height"]


def rounds_table(page, trace, title):
    """Return the names of the columns and the first eight rows of a run's table of rounds."""
    page.get_by_text("The timeline as a table").click()
    page.get_by_text(f"{len(trace.rounds)} rounds").last.click()
    table = page.locator("table").filter(has=page.get_by_text(f"Rounds, {title}", exact=False))
    read = "(rows) => rows.slice(0, 8).map((row) => [...row.querySelectorAll('th[scope=col], td')].map((cell) => cell.innerText))"
    table.locator("tbody tr").first.wait_for()
    return table.locator("thead th").all_inner_texts(), table.locator("tbody tr").evaluate_all(read)


def looks(locator):
    return locator.evaluate_all("(all) => all.map((one) => one.className)")


def test_each_view_is_shown_for_its_runs_fits_every_window_and_is_kept_when_a_run_grows(opened, runs):
    traces = list(runs.values())
    page = opened.runs(traces)
    for view, rows in OF_SOME_RUNS.items():
        shown = page.locator(f".ss-{view}:visible")
        expect(shown).to_have_count(sum(bool(rows(trace)) for trace in traces))
    for view in OF_ALL:
        assert page.locator(f".ss-{view}:visible").count(), view
    for kind in ("draft", "verify"):
        assert page.locator(f".ss-legend .ss-k-{kind}-second:visible").count(), kind
    for theme, width in (("light", 400), ("dark", 400), ("dark", 800)):
        with opened.looking(theme, width):
            assert page.evaluate(TOO_WIDE) == [], (theme, width)
    page.evaluate("view.seek(1e9)")
    before = page.locator(".ss-detail").all_inner_texts()
    update(page, traces)
    expect(page.locator(".ss-detail")).to_have_text(before)


def test_marks_and_servers_have_contrast_and_are_told_apart_in_both_themes(opened, runs):
    trace = runs["sources"]
    page = opened.runs([trace, runs["pool"]])
    step = next(copy["step"] for copy in copies(trace) if copy["document"] == 0)
    time = next(r.time for r in trace.rounds if r.step == step)
    page.evaluate("(t) => view.seek(t)", decoding_clock(trace)(time))
    for theme in ("light", "dark"):
        with opened.looking(theme, 1400):
            marks, inks, servers, ground = page.evaluate(COLOURS)
            assert marks == [["underline", "dashed"], ["underline", "solid"]], "without colour"
            assert len(set(servers)) == 8
            assert all(contrast(colour, ground) >= 3 for colour in (*inks, *servers)), (theme, inks, servers)


# The speculation cache.


def row(page, name):
    return page.locator(".ss-fan tr").filter(has=page.get_by_role("rowheader", name=name, exact=True))


def assert_fan(page, trace, fan):
    expect(detail(page, "fan")).to_contain_text(f"Step {fan['step']}: ")
    guesses = fan["guesses"]
    expect(page.locator(".ss-fan .ss-guess[title]")).to_have_count(len(guesses["token"]))
    taken = page.locator(".ss-fan td .ss-guess-taken")
    expect(taken).to_have_count(guesses["taken"].count(True))
    if fan["result"] == "hit":
        assert f"“{trace.pieces[fan['own']]}”" in taken.get_attribute("title")
        assert taken.locator("xpath=..").get_attribute("class") == "ss-fan-outcome"
    expect(row(page, "target").locator(".ss-gram-token")).to_have_count(0 if fan["own"] is None else 1)
    lost = len(fan["trunk"]) - fan["accepted"]
    drawn = ["rejected" in look for look in looks(row(page, "draft").locator(".ss-gram-token"))]
    assert drawn == [False] * fan["accepted"] + [True] * lost


def test_the_speculation_cache_by_replay_by_pointing_at_the_drafters_work_by_keys_and_as_a_table(
    opened, runs
):
    trace, rows, places = runs["fan"], fans(runs["fan"]), hits(runs["fan"])
    page = opened.runs([sample_trace("speculative"), trace])
    found, most = (sum(place[name] for place in places) for name in ("hits", "lookups"))
    expect(page.locator(".ss-fan .ss-note")).to_have_text(f"{found} hits in {most} lookups")
    texts = row(page, "hits").locator("td").all_inner_texts()
    counts = {place["place"]: f"{place['hits']}/{place['lookups']}" for place in places}
    assert [text.strip() for text in texts] == [counts.get(i, "–") for i in range(len(texts))]
    whole = height(page, "fan")
    for result in ("hit", "miss", "end"):
        fan = next(one for one in rows if one["result"] == result)
        page.evaluate("(t) => view.seek(t)", fan["t"])
        assert_fan(page, trace, fan)
        assert height(page, "fan") == whole, "nothing moves"
    page.evaluate("view.seek(1e9)")
    assert_fan(page, trace, rows[-1])
    for kind in ("verify", "branch", "glue"):
        span = next(s for s in trace.spans if s.kind == kind and s.step == rows[2]["step"])
        page.mouse.move(*centre_of(page, 1, span.id))
        assert_fan(page, trace, rows[2])
    page.mouse.move(1, 1)
    assert_fan(page, trace, rows[-1])
    taken = {fork.step for fork in trace.forks if fork.taken}
    missed = next(f["step"] for f in rows if f["step"] not in taken)
    for kind, why in (
        ("glue", "No branch after it was taken"),
        ("branch", "None of its tokens was accepted"),
    ):
        span = next(s for s in trace.spans if s.kind == kind and s.step == missed)
        page.mouse.move(*centre_of(page, 1, span.id))
        expect(page.get_by_role("tooltip")).to_contain_text(why)
    page.locator(".ss-fan-body").focus()
    expect(page.locator(".ss-fan-body")).to_be_focused()
    page.locator(".ss-fan").get_by_role("button", name="Open large").press("Enter")
    expect(page.locator(".ss-large[open] .ss-fan-body table")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".ss-large[open]")).to_have_count(0)
    heads, cells = rounds_table(page, trace, "SSD")
    assert heads[-2:] == ["branches", "lookup"]
    wanted = [[str(len(fan["guesses"]["token"])), fan["result"]] for fan in rows[:6]]
    assert [one[-2:] for one in cells[:6]] == wanted


# Look-ahead window and pool of n-grams.


def block(page, title):
    return page.locator(".ss-grams-body > div").filter(has=page.get_by_role("heading", name=title))


def assert_grams(page, trace, row):
    expect(detail(page, "grams")).to_contain_text(f"Step {row['step']}: ")
    read = '(rows) => rows.map((row) => [...row.querySelectorAll(".ss-gram-token")].map((one) => one.title))'
    window = page.locator(".ss-grams table tr").evaluate_all(read)
    assert window == [[f"“{trace.pieces[i]}”" for i in level] for level in row["window"]]
    tried = block(page, "Tried from the pool").locator("li")
    expect(tried).to_have_count(len(row["tried"]))
    for i, gram in enumerate(row["tried"]):
        kept = ["accepted" if at <= gram["accepted"] else "lost" for at in range(1, len(gram["ids"]))]
        found = looks(tried.nth(i).locator(".ss-gram-token"))
        assert [re.search(r"ss-gram-(first|accepted|lost)", one)[1] for one in found] == ["first", *kept]
        assert f"{gram['accepted']} accepted" in tried.nth(i).get_attribute("aria-label")
    expect(block(page, "Gained").locator("li")).to_have_count(len(row["gained"]))


def test_window_and_pool_of_n_grams_by_replay_by_pointing_and_as_a_table(opened, runs):
    trace, rows = runs["grams"], ngrams(runs["grams"])
    page = opened.runs([sample_trace("speculative"), trace])
    expect(page.locator(".ss-grams .ss-note")).to_have_text("the target looks ahead")
    whole = height(page, "grams")
    all_accepted = next(r for r in rows if any(t["accepted"] == 3 for t in r["tried"]))
    for row in (rows[0], rows[4], all_accepted, rows[-1]):
        page.evaluate("(t) => view.seek(t)", row["t"])
        assert_grams(page, trace, row)
        assert height(page, "grams") == whole, "nothing moves"
    page.evaluate("view.seek(1e9)")
    judged = trace.rounds[6]
    page.mouse.move(*centre_of(page, 1, judged.span))
    assert_grams(page, trace, next(r for r in rows if r["step"] == judged.step))
    page.mouse.move(1, 1)
    assert_grams(page, trace, rows[-1])
    heads, cells = rounds_table(page, trace, "Lookahead")
    assert heads[-3:] == ["n-grams tried", "n-grams gained", "in the pool"]
    wanted = [[str(len(row["tried"])), str(len(row["gained"])), str(row["size"])] for row in rows[:8]]
    assert [one[-3:] for one in cells] == wanted


# Forecasts of suffix trees.


def assert_forecast(page, row):
    note = detail(page, "forecast")
    expect(note).to_contain_text(f"Step {row['step']}: ")
    expected = f"{row['score']:.2f} tokens expected of a copy, {row['drafter']:.2f} of"
    expect(note).to_contain_text(expected if row["tree"] else "no match")
    by = "copied" if row["copied"] else "by the drafter"
    tokens = f"{row['drafted']} token{'' if row['drafted'] == 1 else 's'}"
    drafted = f"{tokens} {by}, {row['accepted']} accepted"
    expect(note).to_contain_text(drafted if row["drafted"] else "A plain step")


def test_forecasts_by_replay_by_pointing_and_as_a_table(opened, runs):
    trace, rows = runs["forecast"], forecasts(runs["forecast"])
    page = opened.runs([sample_trace("llma"), trace])
    legend, sums = page.get_by_label("Legend of the suffix trees").locator("li"), sums_of(rows)
    assert {row["by"] for row in sums} == {"own", "finished", "drafter"}
    for i, row in enumerate(sums):
        expect(legend.nth(i)).to_contain_text(
            f"{row['drafted']} drafted, {row['expected']:.1f} expected, {row['accepted']} accepted"
        )
    copy = next(c for c in trace.copies if c.document >= 0)
    name = page.locator(".ss-pane").nth(1).get_by_role("heading", name=f"Finished text {copy.document + 1}")
    expect(name).to_have_count(1)
    whole = height(page, "forecast")
    for row in (rows[0], rows[3], rows[-1]):
        page.evaluate("(t) => view.seek(t)", row["t"])
        assert_forecast(page, row)
        assert height(page, "forecast") == whole, "nothing moves"
    page.mouse.move(*centre_of(page, 1, trace.rounds[2].span))
    assert_forecast(page, rows[2])
    page.mouse.move(1, 1)
    assert_forecast(page, rows[-1])
    page.locator(".ss-forecast svg").hover(position={"x": 20, "y": 20})
    assert_forecast(page, rows[1])
    heads, cells = rounds_table(page, trace, "Suffix hybrid")
    assert heads[-3:] == ["match", "expected of a copy", "of the drafter"]
    wanted = [[str(row["match"]), f"{row['score']:.2f}", f"{row['drafter']:.2f}"] for row in rows[:8]]
    assert [one[-3:] for one in cells] == wanted


# Layer groups of a fuzzy draft.


def test_layers_of_a_group_lie_below_each_other_and_replay_or_pointing_chooses_the_round(opened, runs):
    trace, rounds = runs["layers"], layers(runs["layers"])["rounds"]
    page = opened.runs([sample_trace("speculative"), trace])
    swatches = page.get_by_label("Legend of the layers").locator(".ss-swatch")
    grounds = swatches.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)")
    assert len(set(grounds)) == len(grounds) > 1
    assert "rgba(0, 0, 0, 0)" not in grounds
    expect(page.locator(".ss-layers .ss-note")).to_have_text(
        "3 devices; groups of layers 1–3; every other layer is computed alone"
    )
    read = """(nodes) => nodes.map((node) => { const box = node.querySelector("rect").getBoundingClientRect();
        return { look: node.getAttribute("class").split("ss-layers-")[2], title: node.querySelector("title").textContent,
            x: box.x, y: box.y, right: box.right }; })"""
    page.wait_for_selector(".ss-layers .ss-layers-bar")
    bars = page.locator(".ss-layers .ss-layers-bar").evaluate_all(read)
    assert [b["look"] for b in bars] == ["calibrate", "draft", "draft", *["attention", "exchange"] * 3]
    attention, exchanges = bars[3::2], bars[4::2]
    assert [b["title"] for b in attention] == [f"attention of layer {i}: 0.050 ms" for i in (1, 2, 3)]
    assert len({round(b["x"]) for b in attention}) == len({round(b["right"]) for b in attention}) == 1
    assert len({b["y"] for b in attention}) == 3
    for one, exchange in zip(attention, exchanges, strict=True):
        assert exchange["y"] == one["y"]
        assert exchange["x"] >= one["right"] - 1
    widths = [b["right"] - b["x"] for b in bars]
    assert widths[0] == pytest.approx(2.5 * widths[1], rel=0.03)
    svg = page.locator(".ss-layers svg")
    label = svg.get_attribute("aria-label")
    assert label.startswith("Step 3: an exact forward of 4 rows, then 2 fuzzy forwards.")
    box = svg.bounding_box()
    assert all(box["x"] - 1 <= b["x"] and b["right"] <= box["x"] + box["width"] + 1 for b in bars)

    note = detail(page, "layers")
    page.evaluate("view.seek(0)")
    expect(note).to_contain_text("Step 1: an exact forward of 1 row, then 2 fuzzy forwards.")
    page.evaluate("(t) => view.seek(t)", rounds[1]["spans"]["start"][0] + 0.01)
    expect(note).to_contain_text("Step 2: an exact forward of 4 rows, then 2 fuzzy forwards.")
    page.evaluate("view.seek(1e9)")
    expect(note).to_contain_text(f"Step {rounds[-1]['step']}:")
    page.mouse.move(*centre_of(page, 1, rounds[0]["spans"]["id"][0]))
    expect(note).to_contain_text("Step 1:")
    page.mouse.move(1, 1)
    expect(note).to_contain_text(f"Step {rounds[-1]['step']}:")


# Mixtures of experts.


def test_experts_are_shown_over_the_rows_of_a_forward(opened, runs):
    rows = experts(runs["experts"])
    assert len(rows) > 1
    page = opened.runs([runs["experts"]])
    card = page.locator(".ss-experts")
    expect(card.locator("caption")).to_have_text(f"{rows[0]['device']}: 16 experts in all layers")
    assert card.locator("tbody th").all_inner_texts() == [str(row["rows"]) for row in rows]
    counts = [row.split("\t")[2].strip() for row in card.locator("tbody tr").all_inner_texts()]
    assert counts == [f"{row['experts']:.1f}" for row in rows]
    bars = card.locator("rect").evaluate_all("(all) => all.map((one) => one.width.baseVal.value)")
    assert bars == pytest.approx([96 * row["experts"] / 16 for row in rows], abs=0.1)
    assert detail(page, "experts").inner_text().startswith("A forward of the target of ")
