"""A drafter that is often wrong, and one that is the target in fewer bits, in a report."""

from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def traces():
    """Measured runs of two drafters; a virtual run names none."""
    wrong, right = (sample_trace("speculative", tokens=60, acceptance=a) for a in (0.4, 0.95))
    measured = {"profile": "", "runtime": "local-process"}
    wrong.header = replace(wrong.header, **measured)
    right.header = replace(right.header, **measured, run_id="int4", drafter_path="/models/smollm2/int4")
    return [wrong, right]


def test_a_report_names_the_option_of_a_better_drafter_and_has_no_button(page: Page) -> None:
    first, second = page.locator(".ss-pane").all()
    expect(first.locator(".ss-verdict")).to_contain_text("This drafter is wrong in")
    expect(first.locator(".ss-verdict")).to_contain_text("The option is --drafter int4.")
    expect(page.locator(".ss-verdict button")).to_have_count(0)
    expect(second.locator(".ss-verdict")).to_be_hidden()
    expect(first.locator(".ss-badge", has_text="drafter")).to_have_count(0)
    expect(second.locator(".ss-badge", has_text="drafter int4 of smollm2")).to_be_visible()
