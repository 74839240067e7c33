"""Notes in a report: advice of another drafter, health, lossy rules, unrecorded facts."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

import specscope
from specscope.engine.types import Limits, Sampling
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.health import health
from specscope.traces.view.document import view_model
from tests.browser.report.opened import pane
from tests.traces.samples import sample_trace
from tests.traces.test_health import run_of

pytestmark = pytest.mark.browser
MS = 1_000_000
TITLE = "<b>mine</b>"
SAYS = {
    "accepted": "probable enough: p is more than",
    "corrected": "No draft was probable enough here",
    "rejected": "does not find it probable enough",
    "discarded": "another path of such tokens is longer",
}
"""Outcome of a token under typical acceptance -> what its card says."""


def test_a_report_names_the_option_of_a_better_drafter_and_has_no_button(opened):
    """Measured runs of two drafters; a virtual run names none."""
    wrong, right = (sample_trace("speculative", tokens=60, acceptance=a) for a in (0.4, 0.95))
    measured = {"profile": "", "runtime": "local-process"}
    wrong.header = replace(wrong.header, **measured)
    right.header = replace(right.header, **measured, run_id="int4", drafter_path="/models/smollm2/int4")
    page = opened.runs([wrong, right])
    first, second = page.locator(".ss-pane").all()
    expect(first.locator(".ss-verdict")).to_contain_text("This drafter is wrong in")
    expect(first.locator(".ss-verdict")).to_contain_text("The option is --drafter int4.")
    expect(page.locator(".ss-verdict button")).to_have_count(0)
    expect(second.locator(".ss-verdict")).to_be_hidden()
    expect(first.locator(".ss-badge", has_text="drafter")).to_have_count(0)
    expect(second.locator(".ss-badge", has_text="drafter int4 of smollm2")).to_be_visible()


def test_only_the_run_that_is_ill_has_a_note_without_a_baseline_and_as_text(opened):
    ill = run_of("ar" * 30 + "r" * 60)
    page = opened.runs([sample_trace("speculative"), ill])
    sound, other = page.locator(".ss-pane").all()
    expect(sound.locator(".ss-verdict")).to_be_hidden()
    expect(other.locator(".ss-verdict-health")).to_have_text(health(ill))
    model = view_model([ill])
    model["runs"][0]["verdict"]["health"] = "<b>x</b>"
    opened.show(model)
    expect(page.locator(".ss-verdict-health")).to_have_text("<b>x</b>")


def test_pane_table_and_cards_mark_the_lossy_run_alone(opened, decode):
    warm = Sampling(temperature=1.0, seed=4)
    runs = [("autoregressive", {}), ("medusa", {}), ("medusa", {"acceptance": "typical"})]
    traces = [
        decode(method, "Tell me a story.", config=config, sampling=warm, limits=Limits(40))
        for method, config in runs
    ]
    page = opened.runs(traces)
    why = "Its acceptance rule changes the distribution: the text is not drawn as the target alone would draw it."
    for i, marked in enumerate((0, 0, 1)):
        badges = pane(page, i).locator(".ss-marks .ss-badge", has_text="lossy")
        expect(badges).to_have_count(marked)
    expect(badges).to_have_attribute("title", why)
    expect(pane(page, 1)).to_contain_text("identical output")
    expect(pane(page, 2)).to_contain_text("differs from token")
    expect(pane(page, 2).locator(".ss-pane-title")).to_contain_text("acceptance typical")
    expect(page.locator(".ss-legend").first).to_contain_text("accepted as typical (lossy)")
    outputs = page.locator(".ss-tables .ss-table").first.locator("tbody td:last-child").all_inner_texts()
    assert outputs[:2] == ["baseline", "identical"]
    assert outputs[2].startswith("lossy, differs at ")
    expect(pane(page, 1).locator(".ss-typical")).to_have_count(0)
    card = page.locator(".ss-float")
    for outcome, says in SAYS.items():
        page.get_by_role("checkbox", name="rejected drafts").set_checked(outcome in ("rejected", "discarded"))
        pane(page, 2).locator(f".ss-token.ss-typical.ss-{outcome}").first.hover()
        expect(card).to_contain_text(says)
        expect(card.locator("h4")).to_contain_text("typical")
        expect(card.locator("h4 .ss-badge")).to_have_text("lossy")
        expect(card.locator(".ss-facts")).to_contain_text("typical (lossy)")
        expect(card.locator("h4")).not_to_contain_text("undefined")


def recorded(path):
    """Return two rounds of a tree, with other work; without probabilities and cached rows."""
    words = [" zero", " one", " two", "<i>three</i>", " four", " five"]
    with specscope.record(
        path,
        method=TITLE,
        devices={"gpu0": "drafter", "gpu1": "target"},
        decode=lambda ids: "".join(words[i] for i in ids),
    ) as rec:
        rec.prompt("Count", ids=[0])
        rec.start(0)
        for step in range(2):
            now = 10 * MS * step
            rec.add("draft", now, now + 2 * MS, "gpu0", rows=1)
            rec.add("draft", now + 2 * MS, now + 4 * MS, "gpu0", rows=2)
            rec.add("verify", now + 4 * MS, now + 8 * MS, "gpu1", rows=5)
            rec.add("other", now + 8 * MS, now + 9 * MS, "gpu1")
            rec.round([1, 4, 2, 5], 1, [1, 3], parents=[-1, -1, 0, 0], time=now + 9 * MS)
    return list(read_traces(path).traces)


def test_a_recording_looks_like_a_run_and_the_card_of_a_rejected_draft_claims_no_rule(opened, tmp_path):
    page = opened.runs(recorded(tmp_path / "mine.jsonl"))
    unknown = "Not recorded: rows cached before each forward, probabilities, load by other programs."
    expect(page.get_by_text(unknown)).to_be_visible()
    expect(page.locator(".ss-legend .ss-k-other")).to_be_visible()
    expect(page.get_by_text("other work")).to_be_visible()
    expect(page.get_by_text(TITLE).first).to_be_visible()
    expect(page.locator(".ss-tree")).to_be_visible()
    page.get_by_label("rejected drafts").check()
    page.locator(".ss-ghost", has_text="two").first.click()
    card = page.locator(".ss-float")
    expect(card).to_contain_text("The target rejected this draft token.")
    expect(card).not_to_contain_text("the file does not say")
