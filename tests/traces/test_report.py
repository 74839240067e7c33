import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.app.render import shown
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import SCHEMA
from specscope.traces.export.assets import FOLDER, SCRIPTS, viewer_script
from specscope.traces.export.report import LONG, inline_json, render_report
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import packed
from tests.traces.samples import sample_trace, with_header
from tests.traces.strategies import few, traces

ATTACK = "</script><img src=x onerror=alert(1)><b>x</b>&amp;{{model}}\u2028\ud800"


class Page(HTMLParser):
    """Every element with its attributes, and the text outside of scripts and styles."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.words, self.model = [], [], ""
        self._inside = ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag):
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data):
        if not self._inside:
            self.words.append(data)
        elif self.elements[-1] == ("script", {"type": "application/json", "id": "model"}):
            self.model += data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def hostile():
    trace = sample_trace("speculative", tokens=8)
    trace.header = replace(
        trace.header,
        method="no method",
        title=ATTACK,
        prompts=(ATTACK,),
        config={"gamma": 4, ATTACK: ATTACK},
        environment={ATTACK: [ATTACK]},
        profile=ATTACK,
        target_path=ATTACK,
        devices=tuple(replace(d, label=ATTACK) for d in trace.header.devices),
    )
    trace.pieces = dict.fromkeys(trace.pieces, ATTACK)
    trace.commits = [replace(c, text=ATTACK) for c in trace.commits]
    trace.footer = replace(trace.footer, status="failed", error=ATTACK, texts=(ATTACK,))
    return trace


@pytest.fixture(scope="module")
def page():
    return render_report([sample_trace("autoregressive"), sample_trace("pearl")])


def test_the_report_has_the_document_and_the_viewer_and_makes_no_requests(page):
    parsed = Page(page)
    model = packed(view_model([sample_trace("autoregressive"), sample_trace("pearl")]))
    assert json.loads(parsed.model) == json.loads(json.dumps(model))
    assert viewer_script() in page
    policy = next(
        a["content"] for t, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'")
    for tag, attributes in parsed.elements:
        assert not {"src", "href", "action", "data"} & set(attributes), tag


def test_the_summary_precedes_the_scripts_and_is_complete(page):
    first = page.index("<script")
    text = Page(page[:first]).text
    trace = sample_trace("pearl")
    for word in (
        "Tell me about the <cat> & the mat.",
        "seed = 7",
        f"schema {SCHEMA}",
        "sample-pearl",
        "virtual · sample-2xGPU",
    ):
        assert word in text
    assert " ".join(trace.text.split()) in text
    figures = view_model([sample_trace("autoregressive"), trace])["runs"][1]["figures"]
    assert figures["speedup"] in text
    assert "Accepted / drafted" in text


def test_texts_of_a_run_never_become_markup():
    source = render_report([hostile()])
    parsed = Page(source)
    plain = Page(render_report([sample_trace("speculative", tokens=8)]))
    assert [t for t, _ in parsed.elements if t in ("img", "b", "script")] == ["script"] * 3
    assert {t for t, _ in parsed.elements} <= {t for t, _ in plain.elements}
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert "onerror=alert(1)" in parsed.text, "the words are still to be read"
    model = json.loads(parsed.model)
    assert model["runs"][0]["prompts"] == [ATTACK]
    assert not re.search("[<>&\u2028\u2029]", parsed.model)
    source.encode("utf-8")


@few
@given(st.lists(traces(ended=None), min_size=1, max_size=2))
def test_any_trace_makes_a_report(runs):
    source = render_report(runs)
    source.encode("utf-8")
    assert [t for t, _ in Page(source).elements].count("script") == 3


def test_a_redacted_prompt_is_nowhere_in_the_report():
    trace = sample_trace("pearl")
    prompt = trace.header.prompts[0]
    shown, redacted = render_report([trace]), render_report([trace], redact_prompt=True)
    assert html.escape(prompt) in shown
    for form in (prompt, html.escape(prompt), inline_json(prompt)[1:-1]):
        assert form not in redacted
    assert "left out" in Page(redacted).text


def test_a_long_prompt_is_folded_and_whole():
    short, long = sample_trace("speculative", tokens=5), sample_trace("speculative", tokens=5)
    prompt = "<word> " * 100
    long.header = replace(long.header, prompts=(prompt,))
    assert "report-prompt" not in [a.get("class") for _, a in Page(render_report([short])).elements]
    page = Page(render_report([long]))
    folds = [a for t, a in page.elements if t == "details" and a.get("class") == "report-prompt"]
    assert folds == [{"class": "report-prompt"}], "one fold, which is closed"
    assert "… 700 characters" in page.text
    assert prompt.strip() in page.text
    assert "word" not in [t for t, _ in page.elements], "its beginning is text, too"
    titles = [a["title"] for _, a in page.elements if a.get("class") == "ss-prompt"]
    assert len(titles[0]) <= LONG + 1


def test_a_report_of_three_runs_of_a_hundred_tokens_is_small():
    runs = [sample_trace(kind, tokens=100) for kind in ("autoregressive", "speculative", "pearl")]
    assert len(render_report(runs).encode()) <= 1_500_000


def test_a_report_without_runs_is_refused():
    with pytest.raises(UsageError, match="at least one run"):
        render_report([])


def test_every_part_of_the_viewer_is_listed_and_small():
    assert sorted(SCRIPTS) == sorted(path.name for path in FOLDER.glob("*.js"))
    for name in SCRIPTS:
        assert len((FOLDER / name).read_text(encoding="utf-8").splitlines()) <= 300, name
    assert not re.search(r"</script|<!--", viewer_script(), re.IGNORECASE), "nothing ends its element"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", viewer_script())


def test_a_report_holds_all_turns():
    first, last = sample_trace("speculative", tokens=5), sample_trace("pearl", tokens=6)
    first.header = replace(first.header, prompts=("The first question",))
    source = render_report([last], earlier=[([first], [[first]])])
    page = Page(source)
    assert "Turn 1" in page.text
    assert "Turn 2" in page.text
    assert page.text.index("Turn 1") < page.text.index("The first question") < page.text.index("Turn 2")
    (earlier,) = json.loads(page.model)["earlier"]
    assert [run["title"] for run in earlier["runs"]] == ["Speculative decoding"]
    assert "Turn 1" not in Page(render_report([last])).text


def test_a_report_names_models_but_no_folders_of_this_machine():
    environment = {"head": "/opt/someone/heads/eagle", "python": "3.11", "plans": [{"at": "/srv/x/y/z"}]}
    facts = {"target_path": "/opt/someone/models/smollm2/target", "environment": environment}
    text = Page(render_report([with_header(sample_trace(tokens=5), **facts)])).text
    assert [words in text for words in ("smollm2/target", "heads/eagle", "someone", "/srv")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_notebooks_frame_of_a_beginning_says_so(monkeypatch):
    trace = sample_trace("pearl", tokens=60)
    assert shown.viewer([trace]).startswith("<iframe")
    monkeypatch.setattr(shown, "MOST_SPANS", 40)
    monkeypatch.setattr(shown, "LEAST_SPANS", 10)
    note = (
        f"<p>The timeline has the first 40 of {len(trace.spans)} spans; the figures are those of whole runs."
    )
    assert shown.viewer([trace]).startswith(note)
