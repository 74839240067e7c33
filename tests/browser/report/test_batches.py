"""A run of several sequences in a report: folds, the chosen sequence, and padding."""

import re

import pytest
from playwright.sync_api import expect

from specscope.engine.types import Limits
from specscope.traces.view.caches import packings
from specscope.traces.view.document import view_model
from specscope.traces.view.tokens import trees
from tests.browser.report.opened import centre_of, pane

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
    assert folds.count() == len(PROMPTS)
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
    for sequence in (0, 2, 1):
        choice.select_option(str(sequence))
        marks = tokens(traces[0], sequence) + tokens(traces[1], 0)
        assert page.get_attribute("#viewer", "data-marks") == str(marks)
        fold = pane(page, 0).locator(f'details[data-sequence="{sequence}"]')
        assert fold.evaluate("fold => fold.open")
        copied = any(copy.sequence == sequence for copy in traces[0].copies)
        assert copied <= pane(page, 0).locator(".ss-source-text").count() <= 1
        assert not copied or PROMPTS[sequence] in pane(page, 0).locator(".ss-source-text").inner_text()
    cards = page.locator(".ss-packing")
    assert cards.count() == 2
    for card, trace in zip(cards.all(), traces, strict=True):
        first = packings(trace)[0]
        shares = first["shares"]
        card.locator(".ss-packing-round").evaluate(
            "bar => { bar.value = 0; bar.dispatchEvent(new Event('input')); }"
        )
        assert (
            card.locator("[role=status]")
            .inner_text()
            .startswith(f"Round {first['step']}: {len(shares)} sequences")
        )
        blocks = card.locator("[role=listitem]")
        assert blocks.count() == len(shares)
        for i, share in enumerate(shares):
            own = share["rows"] * (share["cached"] + share["rows"])
            all_cells = share["padded_rows"] * (share["padded_cached"] + share["padded_rows"])
            text = blocks.nth(i).locator("text").last.text_content().replace("\u2009", "")
            assert text == f"{own} of {all_cells} cells"
    spared = cards.nth(1).locator(".ss-note").first.inner_text()
    assert spared.endswith("no padding")
    assert "of them padding" in cards.nth(0).locator(".ss-note").first.inner_text()
