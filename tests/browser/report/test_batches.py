"""Several runs or sequences: folds, padding, runs aligned by token, rows of KV caches."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from specscope.engine.types import Limits
from specscope.traces.view.caches import caches, packings
from specscope.traces.view.document import view_model
from specscope.traces.view.tokens import trees
from tests.browser.report.opened import centre_of, pane
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser
PROMPTS = (
    "One fox, two foxes. One fox, two foxes. One fox,",
    "Hi",
    "Tell me a story about a dragon.",
    "A cat. A cat.",
)
VANILLA = {"unpad_inputs": False, "unpad_kv": False}


@pytest.fixture(scope="module")
def traces(decode):
    return [decode("ems", *PROMPTS, config=config, limits=Limits(24)) for config in (VANILLA, {})]


@pytest.fixture(scope="module")
def tree_trace(decode):
    config = {"base": "speculative", "width": 3, "gamma": 3}
    return decode("ems", *PROMPTS, config=config, limits=Limits(16))


def test_the_draft_tree_is_the_chosen_sequences_or_the_one_pointed_at(opened, tree_trace):
    rows = trees(tree_trace)
    opened.show(view_model([tree_trace]))
    page = opened.ready()
    status, fold = pane(page, 0).locator(".ss-tree .ss-hint"), pane(page, 0).locator("details.ss-sequence")

    def expect_shown(row):
        counts = f"{row['drafted']} drafted, {row['accepted']} accepted"
        expect(status).to_have_text(f"sequence {row['sequence'] + 1}, step {row['step']}: {counts}")
        expect(pane(page, 0).locator(".ss-leaf")).to_have_count(len(row["nodes"]["id"]))

    def last(sequence):
        return [row for row in rows if row["sequence"] == sequence][-1]

    expect_shown(last(0))
    pane(page, 0).locator(".ss-choice").select_option("2")
    expect_shown(last(2))
    fold.nth(1).locator("summary").click()
    fold.nth(1).locator(".ss-token:not(.ss-ghost)").first.hover()
    expect_shown(next(row for row in rows if row["sequence"] == 1))
    both = next(row for row in rows if row["sequence"] == 2)
    span = next(s.id for s in tree_trace.spans if (s.kind, s.step) == ("verify", both["step"]))
    page.mouse.move(*centre_of(page, 0, span))
    expect_shown(both)


def test_every_sequence_has_its_fold_which_timeline_and_prompt_follow_and_its_cells(page, traces):
    speed = pane(page, 0).locator(".ss-pane-head .ss-num")
    expect(speed).to_have_text(re.compile(r"^throughput [\d.]+ tok/s · [\d.]+ tok/s per sequence$"))
    reason = "no batched plain decoding among these runs"
    expect(pane(page, 0).locator(".ss-marks")).to_contain_text(f"no speed-up: {reason}")
    expect(page.get_by_role("table", name="Figures of all runs").locator("tbody")).to_contain_text(reason)
    folds = pane(page, 0).locator("details.ss-sequence")
    assert folds.evaluate_all("all => all.map((fold) => fold.open)") == [True, False, False, False]
    for i, prompt in enumerate(PROMPTS):
        head = folds.nth(i).locator("summary").inner_text()
        assert prompt in head
        assert f"{len(traces[0].token_ids(i))} tokens" in head
    folds.nth(2).locator("summary").click()
    assert folds.nth(2).locator(".ss-token:not(.ss-ghost)").count() == len(traces[0].token_ids(2))

    def tokens(trace, sequence):
        lost = [d for d in trace.decisions if d.sequence == sequence and d.outcome == "rejected"]
        return len(trace.token_ids(sequence)) + len(lost)

    choice = page.get_by_label("Sequence of EMS-SD", exact=False).first
    sources = pane(page, 0).locator(".ss-source-text")
    for sequence in (0, 2, 1):
        choice.select_option(str(sequence))
        marks = tokens(traces[0], sequence) + tokens(traces[1], 0)
        assert page.get_attribute("#viewer", "data-marks") == str(marks)
        assert folds.nth(sequence).evaluate("fold => fold.open")
        copied = any(copy.sequence == sequence for copy in traces[0].copies)
        assert copied <= sources.count() <= 1
        assert not copied or PROMPTS[sequence] in sources.inner_text()
    cards = page.locator(".ss-packing").all()
    for card, trace, note in zip(cards, traces, ("of them padding", "no padding"), strict=True):
        first = packings(trace)[0]
        bar = card.locator(".ss-packing-round")
        bar.evaluate("bar => { bar.value = 0; bar.dispatchEvent(new Event('input')); }")
        says = f"Round {first['step']}: {len(first['shares'])} sequences"
        assert card.locator("[role=status]").inner_text().startswith(says)
        cells = [
            (
                s["rows"] * (s["cached"] + s["rows"]),
                s["padded_rows"] * (s["padded_cached"] + s["padded_rows"]),
            )
            for s in first["shares"]
        ]
        texts = [block.locator("text").last.text_content() for block in card.locator("[role=listitem]").all()]
        assert [t.replace("\u2009", "") for t in texts] == [f"{own} of {most} cells" for own, most in cells]
        assert note in card.locator(".ss-note").first.inner_text()


# Runs aligned by token, rows of KV caches, and views opened large.


@pytest.fixture
def page_of_trees(opened, runs):
    """Show a tree run, the same text with commits that are 5 ms later, and another text."""
    trace = runs["tree"]
    commits = [replace(commit, time=commit.time + 5_000_000) for commit in trace.commits]
    later = replace(trace, header=replace(trace.header, run_id="later"), commits=commits)
    return opened.runs([trace, later, sample_trace("autoregressive")])


def test_runs_of_one_text_are_compared_token_by_token(page_of_trees, runs):
    page, trace = page_of_trees, runs["tree"]
    view = page.get_by_role("region", name="Token by token")
    expect(view).to_contain_text("Autoregressive: another text from the first token on")
    expect(view.locator(".ss-aligned-name")).to_have_count(2)
    expect(view.locator(".ss-aligned-name").last).to_contain_text("5.00 ms behind")
    plot = view.get_by_role("group", name="Tokens of all runs by position")
    plot.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    status = view.get_by_role("status")
    expect(status).to_contain_text("Token 2, ")
    expect(status).to_contain_text("5.00 ms behind Token tree")
    page.keyboard.press("Enter")
    expect(page.locator(".ss-float")).to_contain_text("pinned")
    page.keyboard.press("Escape")
    expect(page.locator(".ss-float")).to_be_hidden()
    page.keyboard.press("End")
    expect(status).to_contain_text("Token 40, ")
    view.get_by_text("Token by token as a table").click()
    expect(view.locator("tbody tr")).to_have_count(len(trace.commits))
    expect(view.locator("thead th")).to_have_count(7)


def test_caches_follow_the_replay_and_a_tree_opens_large(page_of_trees, runs):
    page, trace = page_of_trees, runs["tree"]
    target = next(view for view in caches(trace) if view["model"] == "target")
    row = page.get_by_role("region", name="KV caches").locator(".ss-kv-row").first
    page.evaluate("(t) => view.seek(t)", target["t"][3])
    valid, kept, lost = (target["rows"][state][3] for state in ("valid", "new", "lost"))
    expect(row).to_contain_text(f"step 3: {valid} cached before, {kept} new and kept, {lost} rolled back")
    tree = page.locator(".ss-pane").first.locator(".ss-tree")
    nodes = tree.locator(".ss-leaf").count()
    tree.get_by_role("button", name="Open large").click()
    dialog = page.get_by_role("dialog", name="Draft tree")
    expect(dialog.locator(".ss-leaf")).to_have_count(nodes)
    dialog.locator(".ss-leaf").first.click()
    expect(dialog.locator(".ss-float")).to_contain_text("pinned")
    page.keyboard.press("Escape")
    expect(dialog.locator(".ss-float")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(tree.locator(".ss-leaf")).to_have_count(nodes)
    expect(tree.get_by_role("button", name="Open large")).to_be_focused()
