"""The note on the health of a run in a report, under its pane."""

import pytest
from playwright.sync_api import expect

from specscope.traces.health import health
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace
from tests.traces.test_health import run_of

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def ill():
    return run_of("ar" * 30 + "r" * 60)


@pytest.fixture(scope="module")
def traces(ill):
    return [sample_trace("speculative"), ill]


def test_only_the_run_that_is_ill_has_a_note_and_needs_no_baseline(page, ill):
    sound, other = page.locator(".ss-pane").all()
    expect(sound.locator(".ss-verdict")).to_be_hidden()
    expect(other.locator(".ss-verdict-health")).to_have_text(health(ill))


def test_a_note_is_shown_as_text(opened, ill):
    model = view_model([ill])
    model["runs"][0]["verdict"]["health"] = "<b>x</b>"
    page = opened.show(model)
    opened.ready()
    expect(page.locator(".ss-verdict-health")).to_have_text("<b>x</b>")
