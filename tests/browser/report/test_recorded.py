"""A recorded loop in a report: its note, its tokens, its work, and the card of a rejected draft."""

import pytest

import specscope
from specscope.traces.imports.reading import read_traces
from tests.browser.looks import assert_looks

pytestmark = pytest.mark.browser
MS = 1_000_000
TITLE = "<b>mine</b>"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Two rounds of a tree, with other work; without probabilities and cached rows."""
    path = tmp_path_factory.mktemp("recorded") / "mine.jsonl"
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


def test_a_recording_looks_like_a_run(page):
    assert page.get_by_text(
        "Not recorded: rows cached before each forward, probabilities, load by other programs."
    ).is_visible()
    assert page.locator(".ss-legend .ss-k-other").is_visible()
    assert page.get_by_text("other work").is_visible()
    assert page.get_by_text(TITLE).first.is_visible()
    assert page.locator(".ss-tree").is_visible()
    assert_looks(page)


def test_the_card_of_a_rejected_draft_claims_no_rule(page):
    page.get_by_label("rejected drafts").check()
    page.locator(".ss-ghost", has_text="two").first.click()
    card = page.locator(".ss-float")
    assert "The target rejected this draft token." in card.inner_text()
    assert "the file does not say" not in card.inner_text()
