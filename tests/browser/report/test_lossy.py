"""A lossy run next to an exact one in a report: panes, cards, legend and tables mark it."""

import pytest
from playwright.sync_api import expect

from specscope.engine.types import Limits, Sampling
from tests.browser.report.opened import pane

pytestmark = pytest.mark.browser
WARM = Sampling(temperature=1.0, seed=4)


@pytest.fixture(scope="module")
def traces(decode):
    """Runs of the bundled pair: the baseline, Medusa, and Medusa with typical acceptance."""
    runs = [("autoregressive", {}), ("medusa", {}), ("medusa", {"acceptance": "typical"})]
    return [
        decode(method, "Tell me a story.", config=config, sampling=WARM, limits=Limits(48))
        for method, config in runs
    ]


def test_the_lossy_run_alone_is_marked(page):
    for i, marked in enumerate((0, 0, 1)):
        badges = pane(page, i).locator(".ss-marks .ss-badge", has_text="lossy")
        expect(badges).to_have_count(marked)
    expect(badges).to_have_attribute(
        "title",
        "Its acceptance rule changes the distribution: the text is not drawn as the target alone would draw it.",
    )
    expect(pane(page, 1)).to_contain_text("identical output")
    expect(pane(page, 2)).to_contain_text("differs from token")
    expect(pane(page, 2).locator(".ss-pane-title")).to_contain_text("acceptance typical")
    expect(page.locator(".ss-legend").first).to_contain_text("accepted as typical (lossy)")


def test_the_tables_name_the_lossy_run(page):
    outputs = page.locator(".ss-tables .ss-table").first.locator("tbody td:last-child").all_inner_texts()
    assert outputs[:2] == ["baseline", "identical"]
    assert outputs[2].startswith("lossy, differs at ")


SAYS = {
    "accepted": "probable enough: p is more than",
    "corrected": "No draft was probable enough here",
    "rejected": "does not find it probable enough",
    "discarded": "another path of such tokens is longer",
}


def test_a_tokens_card_names_the_rule(page, traces):
    card = page.locator(".ss-float")
    for outcome, says in SAYS.items():
        rows = [d for d in traces[2].decisions if d.outcome == outcome and d.rule == "typical"]
        assert rows, f"the run has {outcome} tokens"
        page.get_by_role("checkbox", name="rejected drafts").set_checked(outcome in ("rejected", "discarded"))
        pane(page, 2).locator(f".ss-token.ss-typical.ss-{outcome}").first.hover()
        expect(card).to_contain_text(says)
        expect(card.locator("h4")).to_contain_text("typical")
        expect(card.locator("h4 .ss-badge")).to_have_text("lossy")
        expect(card.locator(".ss-facts")).to_contain_text("typical (lossy)")
        expect(card.locator("h4")).not_to_contain_text("undefined")


def test_the_exact_runs_tokens_are_not_marked(page):
    expect(pane(page, 1).locator(".ss-typical")).to_have_count(0)
    assert pane(page, 2).locator(".ss-typical.ss-accepted").count() > 0
