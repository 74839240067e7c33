"""Runs aligned by token, rows of KV caches, and views opened large."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from specscope.traces.view.caches import caches
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def trace():
    return sample_trace("tree", tokens=40, acceptance=0.6)


@pytest.fixture(scope="module")
def traces(trace):
    """A tree run, the same text with commits that are 5 ms later, and another text."""
    commits = [replace(commit, time=commit.time + 5_000_000) for commit in trace.commits]
    later = replace(trace, header=replace(trace.header, run_id="later"), commits=commits)
    return [trace, later, sample_trace("autoregressive")]


def test_runs_of_one_text_are_compared_token_by_token(page, trace):
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


def test_caches_follow_the_replay_and_a_tree_opens_large(page, trace):
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
