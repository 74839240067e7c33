"""Draft trees in a report: by mouse, keys and replay; lost branches in the text."""

import re

import pytest
from playwright.sync_api import expect

from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view.document import view_model
from specscope.traces.view.tokens import trees
from tests.browser.report.opened import centre_of, pane
from tests.traces.samples import WORDS, sample_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def trace(runs):
    return runs["tree"]


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("autoregressive"), trace]


def inset(page):
    return pane(page, 1).locator(".ss-tree")


def leaves(page):
    """Return the outcome, label and place of every drawn node, in the draft's order."""
    return inset(page).locator(".ss-leaf").evaluate_all(
        """(nodes) => nodes.map((node) => ({
            outcome: [...node.classList].find((c) => c.startsWith("ss-leaf-")).slice(8), lit: node.classList.contains("ss-lit"),
            label: node.getAttribute("aria-label"), x: node.offsetLeft, y: node.offsetTop }))"""
    )  # fmt: skip


def assert_shown(page, tree):
    says = f"step {tree['step']}: {tree['drafted']} drafted, {tree['accepted']} accepted"
    expect(inset(page).locator(".ss-hint")).to_have_text(says)
    drawn, nodes = leaves(page), tree["nodes"]
    assert [leaf["outcome"] for leaf in drawn] == nodes["outcome"]
    for i, leaf in enumerate(drawn):
        assert leaf["label"].startswith(f"level {nodes['level'][i] + 1}: “")
        assert WORDS[nodes["id"][i]].strip() in leaf["label"]
        for name in ("q", "p"):
            value = nodes[name][i]
            shown = re.search(rf", {name} ([\d.]+)", leaf["label"])
            assert (shown and float(shown[1])) == (value and pytest.approx(value, abs=6e-4))


def token(page, tree):
    """Return the node of the first token committed by the tree's round."""
    rows = view_model([sample_trace("tree", tokens=40, acceptance=0.6)])["runs"][0]["tokens"]
    at = next(row["index"] for row in rows if row["step"] == tree["step"])
    return pane(page, 1).locator(".ss-token:not(.ss-ghost)").nth(at)


@pytest.mark.parametrize("by", ["mouse", "keys"])
def test_pointing_at_a_token_shows_the_tree_of_its_round(page, trace, by):
    rows = trees(trace)
    for tree in (rows[0], rows[2], next(r for r in rows if r["accepted"] == 0)):
        node = token(page, tree)
        if by == "mouse":
            node.hover()
        else:
            node.focus()
        assert_shown(page, tree)
        lit = [i for i, leaf in enumerate(leaves(page)) if leaf["lit"]]
        outcomes = tree["nodes"]["outcome"]
        assert [outcomes[i] for i in lit] == ["accepted" if tree["accepted"] else "corrected"]


def test_the_output_is_the_top_row_levels_are_columns_and_a_node_explains_its_outcome(page, trace):
    tree = max(trees(trace), key=lambda r: r["accepted"])
    token(page, tree).hover()
    drawn, nodes = leaves(page), tree["nodes"]
    assert tree["accepted"] >= 2
    for i, leaf in enumerate(drawn):
        kept = nodes["outcome"][i] not in ("rejected", "discarded")
        assert (leaf["y"] == 0) == kept or nodes["level"][i] > tree["accepted"]
    columns = {(nodes["level"][i], leaf["x"]) for i, leaf in enumerate(drawn)}
    assert len(columns) == len(set(nodes["level"]))
    assert len({(leaf["x"], leaf["y"]) for leaf in drawn}) == len(drawn)
    assert inset(page).locator(".ss-tree-path").count() == tree["accepted"]
    assert inset(page).locator(".ss-tree-body path").count() == len(drawn)
    tree = trees(trace)[0]
    token(page, tree).hover()
    says = {"accepted": "accepted draft", "rejected": "rejected draft", "discarded": "discarded untested"}
    for outcome in says.keys() & set(tree["nodes"]["outcome"]):
        inset(page).locator(f".ss-leaf-{outcome}").first.hover()
        assert says[outcome] in page.locator(".ss-float").inner_text()
        assert_shown(page, tree)
    inset(page).locator(".ss-leaf-discarded").last.click()
    assert "pinned" in page.locator(".ss-float").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".ss-float").is_hidden()


def test_pointing_at_a_draft_or_its_verification_shows_the_tree(page, trace):
    tree = trees(trace)[1]
    spans = [s for s in trace.spans if s.step == tree["step"]]
    for span in (spans[1], spans[-1]):
        page.evaluate("view.seek(0)")
        page.mouse.move(*centre_of(page, 1, span.id))
        page.evaluate("document.querySelector('.ss-gantt').scrollIntoView()")
        assert_shown(page, tree)
        lit = [i for i, leaf in enumerate(leaves(page)) if leaf["lit"]]
        drafted = sum(d.step == tree["step"] and d.draft_span == span.id for d in trace.decisions)
        assert len(lit) == (drafted or sum(o != "discarded" for o in tree["nodes"]["outcome"]))
        page.mouse.move(1, 1)


def test_replay_shows_the_tree_judged_last_borders_tell_outcomes_and_the_mask_its_rows(page, trace):
    clock, rows = decoding_clock(trace), trees(trace)
    page.evaluate("view.seek(0)")
    expect(inset(page).locator(".ss-hint")).to_have_text("no round yet")
    height = inset(page).bounding_box()["height"]
    for round_, tree in list(zip(trace.rounds, rows, strict=True))[:4]:
        page.evaluate("(t) => view.seek(t)", clock(round_.time))
        assert_shown(page, tree)
        assert inset(page).bounding_box()["height"] == height, "nothing moves"
    page.evaluate("view.seek(1e9)")
    assert_shown(page, rows[-1])
    read = "(nodes) => nodes.map((node) => getComputedStyle(node).borderTopStyle)"
    styles = inset(page).locator(".ss-leaf").evaluate_all(read)
    solid = {"accepted": "solid", "corrected": "dotted", "bonus": "dotted"}
    outcomes = rows[-1]["nodes"]["outcome"]
    assert styles == [solid.get(o, "dashed") for o in outcomes], "told apart without colour"
    tree = trees(trace)[-1]
    inset(page).locator("summary").click()
    drafted = ("accepted", "rejected", "discarded")
    rows = [i for i, outcome in enumerate(tree["nodes"]["outcome"]) if outcome in drafted]
    says = f"Attention mask of {len(rows)} drafted rows: each sees the prefix, its ancestors and itself"
    mask = inset(page).get_by_role("img", name=says)
    expect(mask).to_be_visible()
    drawn = {kind: mask.locator(f"path.ss-mask-{kind}").get_attribute("d") or "" for kind in ("cell", "path")}
    seen = {True: set(), False: set()}
    for i in rows:
        at = i
        while at >= 0:
            seen[tree["nodes"]["outcome"][i] == "accepted"].add((at, i))
            at = tree["nodes"]["parent"][at]
    for kind, accepted in (("cell", False), ("path", True)):
        corners = re.findall(r"M (\d+) (\d+)", drawn[kind])
        assert {(int(x) // 4 - 2, int(y) // 4) for x, y in corners} == seen[accepted]


def test_lost_branches_are_struck_through_and_kept_apart(page, trace):
    page.get_by_label("rejected drafts").check()
    lost = sorted(view_model([trace])["runs"][0]["ghosts"], key=lambda row: (row["step"], row["before"]))
    ghosts = pane(page, 1).locator(".ss-ghost")
    assert ghosts.count() == len(lost)
    apart = ghosts.evaluate_all(
        """(nodes) => nodes.map((node) => [getComputedStyle(node, "::before").content === '"|"',
            getComputedStyle(node.querySelector(".ss-ink")).textDecorationLine])"""
    )
    assert apart == [[row["branch"], "line-through"] for row in lost]
    page.get_by_label("rejected drafts").uncheck()
