"""Take the pictures of the documents from real runs: `python -m tests.docs.screenshots [NAME ...]`.

Without names, all pictures are taken. `notebook` shows the stored outputs of docs/notebook.ipynb.
For the others, a playground with a temporary database runs, and Chromium visits it. `playground` is
the race that `python -m specscope.app.shipped.demo` recorded, `beside` the runs of `python -m
specscope.app.shipped.beside`. The other pictures show the runs of docs/tutorial.md, whose virtual
times are always the same; `cluster` measures the bundled pair on two nodes of Ray.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import torch
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from transformers import MixtralConfig, MixtralForCausalLM

from specscope.app.pairs import TOY
from specscope.engine.checkpoints.catalog import PAIRS
from tests.browser.conftest import launched
from tests.browser.playground.conftest import PATIENCE, playing
from tests.browser.playground.steps import answer, choose, fill, viewer, wait_for
from tests.docs.notebook import FILE
from tests.engine.runtimes.ray_nodes import two_nodes

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TOKENS = 32
"""New tokens on the Ray cluster."""
CLUSTER = "3 × A100 80GB"
SAMPLE = "A lighthouse keeper"
PROMPT = "Tell me a story about a lighthouse keeper who is afraid of the dark."
"""The example that the tutorial runs: its button and its prompt."""
COLOURS = 256
WIDE, NARROW, HEIGHT, MARGIN = 1400, 1100, 1600, 10
"""Of the window for the README and for other documents, and the space around a part (pixels)."""


STYLE = """
  :root { color-scheme: light dark; }
  body { margin: 0; padding: 16px; font: 14px system-ui, sans-serif; background: light-dark(#fff, #111);
    color: light-dark(#212121, #e0e0e0); }
  .cell { display: grid; grid-template-columns: 64px 1fr; gap: 6px 8px; margin-bottom: 14px; }
  .prompt { font: 12px ui-monospace, monospace; text-align: right; padding-top: 8px; color: light-dark(#307fc1, #64b5f6); }
  pre { margin: 0; padding: 7px 10px; font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; }
  .source { background: light-dark(#f5f5f5, #212121); border: 1px solid light-dark(#e0e0e0, #424242); }
  h1, h2, p { margin: 4px 0; }
  .output { min-width: 0; overflow: auto; }
  table { border-collapse: collapse; font-size: 12px; }
  tbody tr:nth-child(odd) { background: light-dark(#f5f5f5, #1c1c1c); }
  th, td { padding: 4px 8px; text-align: right; }
"""
"""The colours and the sizes of JupyterLab's two themes."""


def notebook_page() -> str:
    """Return the notebook as HTML: the cells, and each output in its richest form."""
    cells = "".join(_cell(cell) for cell in nbformat.read(FILE, 4).cells)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Notebook</title><style>{STYLE}</style>{cells}</html>'


def _cell(cell: Any) -> str:
    if cell.cell_type != "code":
        title, _, words = cell.source.partition("\n\n")
        level = len(title) - len(title.lstrip("#"))
        text = f"<h{level}>{escape(title.lstrip('# '))}</h{level}><p>{escape(words)}</p>"
        return f'<div class="cell"><span></span><div>{text}</div></div>'
    outputs = "".join(f'<span></span><div class="output">{_output(one.data)}</div>' for one in cell.outputs)
    prompt = f'<span class="prompt">[{cell.execution_count}]:</span>'
    return f'<div class="cell">{prompt}<pre class="source">{escape(cell.source)}</pre>{outputs}</div>'


def _output(data: Any) -> str:
    return data["text/html"] if "text/html" in data else f"<pre>{escape(data['text/plain'])}</pre>"


def save(name: str, page: Page, *parts: Locator) -> None:
    """Write the picture of the smallest rectangle that holds all parts."""
    page.evaluate("scrollTo(0, 0)")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    boxes = [box for part in parts if (box := part.bounding_box())]
    left, top = (max(0, min(box[side] for box in boxes) - MARGIN) for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes) + MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + MARGIN
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file, clip=clip, full_page=True)
    shrink(file)
    print(f"{file.relative_to(IMAGES.parents[1])}: {file.stat().st_size // 1024} KiB")


def shrink(file: Path) -> None:
    """Write a picture with the 256 colours that fit it best: a third of its bytes."""
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLOURS, kmeans=8, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def playground(page: Page) -> None:
    """The README's picture: the finished race of the first page, in both themes."""
    race = page.locator("#demo")
    page.get_by_role("button", name="The whole timeline").click()
    race.locator(".ss-gantt canvas").first.wait_for()
    for theme in ("light", "dark"):
        save(f"playground-{theme}", page, race)
        page.get_by_role("button", name="Light or dark").click()


def beside(page: Page) -> None:
    """The History's example: texts, clocks and timelines of three runs."""
    page.get_by_role("tab", name="History").click()
    page.locator("#history-example").click()
    viewer(page, "#history-viewer").wait_for()
    opened = page.locator("#history-viewer")
    save("beside", page, opened.locator(".ss-panes"), opened.locator(".ss-gantt"))


def cluster(page: Page) -> None:
    """PEARL on two nodes of a Ray cluster: the timeline with the error of their clocks."""
    page.get_by_role("radio", name="Ray cluster").check()
    for method in ("Autoregressive", "Speculative decoding"):
        choose(page, method, on=False)
    answer(page, PROMPT, TOKENS)
    live = page.locator("#live-viewer")
    parts = (live.locator(".ss-panes"), live.locator(".ss-gantt"))
    save("cluster", page, page.locator("#folded"), page.locator("#turn"), *parts)


def mixture(folder: Path) -> Path:
    """Write a target of random weights: eight experts in each layer, two for a row."""
    sizes = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    torch.manual_seed(1)
    config = MixtralConfig(**sizes, **heads, **experts, architectures=["MixtralForCausalLM"])
    MixtralForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(PAIRS / TOY / "target" / name, folder)
    return folder


def experts(page: Page, target: Path) -> None:
    """A race on a target of eight experts: how many of them each forward reads."""
    page.get_by_role("radio", name="My own").check()
    fill(page.locator("#target textarea, #target input"), str(target))
    page.get_by_role("radio", name=re.compile("8 bits")).check()
    choose(page, "PEARL", on=False)
    choose(page, "Token tree", on=True)
    fill(page.get_by_role("spinbutton", name="Temperature"), "1")
    answer(page, PROMPT, TOKENS)
    cards = page.locator("#live-viewer .ss-experts")
    expect(cards).to_have_count(3)
    save("experts", page, cards.first, cards.last)


def run_tutorial(page: Page) -> None:
    """Run the turn of the tutorial, which the pictures below show."""
    page.get_by_role("radio", name="Virtual cluster").check()
    page.get_by_role("combobox", name="Cluster").click()
    page.get_by_role("option", name=CLUSTER).click()
    expect(page.get_by_role("combobox", name="Modelled pair")).to_have_value(re.compile("Codellama"))
    page.get_by_role("button", name=SAMPLE).click()
    expect(page.get_by_role("textbox", name="Prompt", exact=True)).to_have_value(PROMPT)
    page.locator("#run").click()
    wait_for(page, "done")
    viewer(page).wait_for()


def panes(page: Page) -> None:
    """The status line and the panes with their verdicts."""
    live = page.locator("#live-viewer")
    save("panes", page, page.locator("#turn"), live.locator(".ss-panes"))


def timeline(page: Page) -> None:
    """The bar, the legend and the timeline."""
    live = page.locator("#live-viewer")
    save("timeline", page, live.locator(".ss-bar"), live.locator(".ss-gantt"))


def tokens(page: Page) -> None:
    """Two panes with the card of the first rejected draft."""
    live = page.locator("#live-viewer")
    find(live, "rejected")
    save("tokens", page, live.locator(".ss-pane").nth(1), live.locator(".ss-float"))
    find(live, "")


def find(live: Locator, query: str) -> None:
    """Search in a viewer and show the card of the first match; without a query, close the card."""
    box = live.get_by_role("searchbox", name="Search")
    box.fill(query)
    box.press("Enter" if query else "Escape")
    expect(live.locator(".ss-float")).to_be_visible(visible=bool(query))


def list_runs(page: Page) -> None:
    """Show the list of stored runs."""
    page.get_by_role("tab", name="History").click()
    if page.locator("#history-back").is_visible():
        page.locator("#history-back").click()
    page.locator(".app-runs tbody tr").first.wait_for()


def open_run(page: Page, *methods: str) -> None:
    """Open the newest runs of these methods."""
    list_runs(page)
    for box in page.locator(".app-runs input:checked").all():
        box.uncheck()
    for method in methods:
        row = page.locator(".app-runs tbody tr").filter(has_text=method).first
        row.get_by_role("checkbox").check()
    opener = "Open selected" if len(methods) == 1 else f"Compare {len(methods)}"
    button = page.locator("#history-compare")
    expect(button).to_have_text(opener)
    button.click()
    viewer(page, "#history-viewer").wait_for()
    expect(page.locator("#history-viewer .ss-pane")).to_have_count(len(methods))


def whatif(page: Page) -> None:
    """The what-if of speculative decoding with gamma 2, and the closed forms."""
    open_run(page, "Speculative decoding")
    card = page.locator("#whatif")
    card.get_by_label("Settings").fill("gamma=2")
    page.locator("#whatif-replay").click()
    viewer(page, "#whatif-viewer").wait_for()
    card.locator(".app-figure .main-svg").first.wait_for()
    page.locator("#whatif-viewer").evaluate("(node) => { node.style.display = 'none'; }")
    save("whatif", page, card)


def diff(page: Page) -> None:
    """The difference of speculative decoding and PEARL."""
    open_run(page, "Speculative decoding", "PEARL")
    page.locator("#difference .app-figure .main-svg").first.wait_for()
    save("diff", page, page.locator("#difference"))


def lab(page: Page) -> None:
    """A sweep of speculative decoding on the cluster and pair of EasySpec's points."""
    page.get_by_role("tab", name="Lab").click()
    card = page.locator("#lab")
    for name, choice in (
        ("Method", "Speculative decoding"),
        ("Cluster", "8 × A100 80GB"),
        ("Modelled pair", "Llama 3 8B / 70B, target at TP = 8"),
    ):
        card.get_by_role("combobox", name=name).click()
        page.get_by_role("option", name=choice).click()
    card.get_by_role("textbox", name="Rates, drafters or values").fill("0.6, 0.7, 0.8, 0.9, 1")
    page.locator("#lab-start").click()
    expect(page.locator("#lab-message")).to_contain_text("40 cells.")
    card.locator(".app-figure .main-svg").first.wait_for()
    save("lab", page, card)


def load(page: Page) -> None:
    """Requests under load with the tab's first settings."""
    page.get_by_role("tab", name="Load").click()
    page.locator("#load-start").click()
    expect(page.locator("#load-message")).to_contain_text("12 runs.", timeout=PATIENCE)
    card = page.locator("#load")
    card.locator(".app-figure .main-svg").last.wait_for()
    save("load-tab", page, card)


def advise(page: Page) -> None:
    """The first answer of the finished example, with the controls, in both themes."""
    page.get_by_role("tab", name="Advise").click()
    page.locator("#advise-result .app-answer").first.wait_for()
    controls = page.locator("#advise h2"), page.locator("#advise-start")
    for theme in ("light", "dark"):
        save(f"advise-{theme}", page, *controls, page.locator(".app-advice").first.locator(".app-gpus"))
        page.get_by_role("button", name="Light or dark").click()


def notebook(browser: Browser) -> None:
    """Methods side by side and a sweep in docs/notebook.ipynb, in both themes."""
    for theme in ("light", "dark"):
        page = browser.new_page(viewport={"width": NARROW, "height": 6 * HEIGHT}, color_scheme=theme)
        page.set_content(notebook_page())
        frames = page.locator("iframe")
        frames.nth(1).content_frame.locator(".ss-gantt canvas").first.wait_for()
        frames.nth(2).content_frame.locator(".app-heat").wait_for()
        shown = [page.locator(".cell:has(iframe)").nth(i) for i in (1, 2)]
        save(f"notebook-{theme}", page, *shown)
        page.close()


PICTURES = (panes, timeline, tokens, whatif, diff, lab, load, advise)
"""The pictures of the tutorial's runs, in the order in which they are taken."""
NAMES = tuple(p.__name__ for p in (notebook, playground, beside, cluster, experts, *PICTURES))


def take(names: list[str], browser: Browser, url: str) -> None:
    """Take pictures of a running playground."""
    if playground.__name__ in names:
        playground(visit(browser, url, WIDE))
    if beside.__name__ in names:
        beside(visit(browser, url, WIDE))
    if wanted := [picture for picture in PICTURES if picture.__name__ in names]:
        run_tutorial(page := visit(browser, url, NARROW))
        for picture in wanted:
            picture(page)


def visit(browser: Browser, url: str, width: int) -> Page:
    """Open the playground in a window of its own."""
    page = browser.new_page(
        viewport={"width": width, "height": HEIGHT}, color_scheme="light", reduced_motion="reduce"
    )
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    page.locator("#run").wait_for()
    return page


def main(names: list[str]) -> int:
    """Take the named pictures, or all; return the exit code."""
    names = names or list(NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        print(f"there is no picture {', '.join(unknown)}; choose from {', '.join(NAMES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        toy, browser = ("--pair", TOY, "--db", f"{folder}/traces.db"), launched(playwright)
        if notebook.__name__ in names:
            notebook(browser)
        if set(names) - {notebook.__name__, cluster.__name__}:
            with playing(*toy) as server:
                take(names, browser, server.url)
                if experts.__name__ in names:
                    experts(visit(browser, server.url, NARROW), mixture(Path(folder) / "mixture"))
        if cluster.__name__ in names:
            with two_nodes() as nodes, playing(*toy, "--ray", "--address", nodes.address) as server:
                cluster(visit(browser, server.url, NARROW))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
