"""The papers' formulas, their rows, the command, and the page."""

import json
import re
import threading
import zlib
from base64 import b64decode
from collections import Counter
from itertools import product

import numpy as np
import pytest

from specscope.app.main import main
from specscope.engine.methods import METHODS
from specscope.traces.facts.closed_forms import speculative_tokens, ssd_hit_rate
from specscope.traces.facts.metrics import measure
from specscope.traces.lab.plan import default
from specscope.traces.lab.sweep import ScriptedRunner, SweepRun
from specscope.traces.papers import block, dsi, ems, parallel
from specscope.traces.papers import page as pages
from specscope.traces.papers import pearl_speeds as pearl
from specscope.traces.papers.dsi import measured_time
from specscope.traces.papers.rows import WITHIN, Heat, Paper, PaperRow, anchor, cells, numbers, parts
from specscope.traces.papers.summary import PAPERS, RowCounts
from specscope.traces.papers.trust import Trust, trusts
from specscope.traces.papers.trust_table import trust_table

KEYS = ["paper", "item", "row", "published", "ours", "difference", "kind", "assumption", "fitted", "easy"]
SHOWN = ("pearl", "parallelspec")


@pytest.fixture(scope="module")
def rows():
    return [row for paper in PAPERS.values() for row in paper.rows()]


def test_every_exact_row_has_the_printed_number_and_every_computed_one_its_assumption(rows):
    """What repeats the print is no proof: copies are equal; arithmetic differs by the rounding."""
    assert [row for row in rows if row.kind in ("exact", "copied") and row.ours != row.published] == []
    for row in rows:
        assert row.assumption, (row.item, row.row)
        if row.kind == "arithmetic":
            assert row.difference == pytest.approx(0, abs=0.03), row.row
        if row.predicted and not row.hit:
            assert row.reason, (row.item, row.row)
            assert row.to_dict()["assumption"].endswith(f"Missed: {row.reason}")
    names = Counter((row.paper, row.item, row.row) for row in rows)
    assert set(names.values()) == {1}


@pytest.mark.parametrize("gamma", numbers("parallel")["SSD, virtual cluster"]["speeds"])
def test_the_recorded_speeds_are_those_of_runs_on_the_virtual_cluster(gamma):
    recorded = numbers("parallel")["SSD, virtual cluster"]
    run = ScriptedRunner(recorded["profile"], recorded["pair"], recorded["tokens"])
    rate, config = parallel.rate_of_reproduction(), {"gamma": int(gamma)}
    speeds = [measure(run(SweepRun("ssd", config, seed, rate, ""))).tokens_per_second for seed in range(8)]
    assert recorded["speeds"][gamma] == pytest.approx(speeds, abs=1e-6)


def test_a_block_drafter_drafts_in_one_forward_whose_later_places_are_accepted_less():
    """A round is fitted to three layers; each further layer takes a 36th of a plain step."""
    assert block.one_forward(3) == pytest.approx(5.64 / 4.69)
    assert block.one_forward(8) - block.one_forward(3) == pytest.approx(5 / 36)
    assert default().later == round(block.later_places(), 2)
    assert [row.row for row in PAPERS["block"].rows() if row.fitted] == ["3 layers, MATH-500"]


def test_two_thirds_of_the_predictions_are_within_the_limit(rows):
    summary = RowCounts.of(rows)
    assert summary.rows >= 250
    assert summary.share >= summary.rest >= 2 / 3
    assert summary.counts["exact"] == summary.exact_equal > 0
    assert f"({summary.share:.0%})" in summary.sentence()
    older = RowCounts.of([row for row in rows if row.paper != "block"])
    assert (summary.largest, older.largest) == ("", "easyspec Table 2"), "of large tables only"
    assert older.remark() == (
        f"{older.most} of the {older.counts['predicted']} predicted rows are Table 2 of EasySpec; of the other rows "
        f"{older.rest:.0%} are within 15%."
    )
    (total, _), *groups = summary.tiles()
    assert len(rows) == int(total.replace(",", "")) == sum(int(n.split(" of ")[-1]) for n, _ in groups)


def test_each_row_is_of_a_method_or_of_none_and_each_pattern_of_a_paper_finds_some(rows):
    assert {row.method for row in rows} <= {*METHODS, ""}
    for key in PAPERS:
        found = {row.method for row in rows if row.paper == key}
        assert {method for _, method in numbers(key)["methods"]} <= found, key
        for table in numbers(key).values():
            if isinstance(table, dict) and "columns" in table:
                assert all([*cells(part)] for _, part in parts(table)), "as many numbers as columns"
    by_name = {f"{row.paper} {row.item}: {row.row}": row.method for row in rows}
    stub = "parallelspec Stub head: V 7B EAGLE{}, temperature 0.0, speed-up"
    for name, method in {
        "pearl Table 1: PEARL (ours), codellama-7-34": "pearl",
        "dsi Table 1: worst case: SI, t1": "speculative",
        "dsi Table 1: worst case: non-SI, t1": "autoregressive",
        stub.format(" +ParallelSpec"): "parallelspec_eagle",
        stub.format(""): "eagle",
        "outside Spec-Bench, A100: Medusa, speed-up": "medusa",
        "parallel SSD, speeds: SSD, GSM8K, tokens/s": "ssd",
    }.items():
        assert by_name[name] == method
    assert [row for row in rows if row.predicted and not row.method] == []


@pytest.mark.parametrize("key", PAPERS)
def test_each_line_of_a_file_makes_rows_and_each_formula_and_text_is_used(key, monkeypatch):
    paper, lines, row = PAPERS[key], [], PaperRow("x", None, None, "exact")
    monkeypatch.setattr(Paper, "_row", lambda _, __, cell: lines.append(cell.line) or row)
    assert {*paper.rows()} == {row}
    used = {id(line) for line in lines}
    groups = [group for groups in paper.numbers["compare"].values() for group in groups]
    written = [line for group in groups for line in (group if isinstance(group, list) else [group])]
    assert [line for line in written if id(line) not in used] == []
    assert {line["ours"] for line in written if "ours" in line} == {*paper.formulas}
    assert {line["how"] for line in written} == {*paper.numbers["how"]}


@pytest.mark.parametrize(
    ("row", "group"),
    [
        (PaperRow("x", 2.0, 2.2, "closed form"), "predicted"),
        (PaperRow("x", 2.0, 2.2, "closed form", fitted=True), "fitted"),
        (PaperRow("x", 2.0, 2.2, "closed form", easy=True), "easy"),
        (PaperRow("x", None, 2.2, "simulated"), "not printed"),
        (PaperRow("x", 2.0, None, "published only"), "published only"),
        (PaperRow("x", 2.0, 2.0, "exact"), "exact"),
        (PaperRow("x", 2.0, 2.0, "copied"), "repeated"),
        (PaperRow("x", 2.0, 2.0, "arithmetic"), "repeated"),
    ],
)
def test_only_a_prediction_that_may_miss_is_judged(row, group):
    assert (row.group, row.predicted) == (group, group == "predicted")
    assert RowCounts.of([row]).counts[group] == 1


def test_a_row_hits_within_the_limit():
    ours = (2.0 * (1 + WITHIN), 2.31, 1.69)
    assert [PaperRow("x", 2.0, one, "closed form").hit for one in ours] == [True, False, False]
    assert PaperRow("x", 0.0, 0.0, "closed form").difference == 0


def test_the_command_prints_json_or_a_summary_and_the_items_on_request(capsys):
    assert main(["papers", "--paper", "pearl", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert all(list(row) == KEYS for row in printed["rows"])
    assert printed["summary"]["rows"] == len(printed["rows"])
    assert printed["inconsistencies"]["pearl"]
    assert main(["papers", "--paper", "pearl"]) == 0
    summary = capsys.readouterr().out
    line = r"^  pearl +\d+ of \d+ within 15%, 66 exact; missed by .*: pearl Table 3"
    assert re.search(line, summary, re.MULTILINE)
    assert "that must be exact equal the print" in summary
    assert "codellama-7-34" not in summary
    assert main(["papers", "--paper", "pearl", "--rows"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(summary)
    assert all(f"\n{item} " in text for item in PAPERS["pearl"].items)
    assert all(sentence in text for sentence in PAPERS["pearl"].inconsistencies)


def test_the_help_names_every_paper_and_another_one_or_a_missing_folder_is_an_error_of_use(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["papers", "--help"])
    named = capsys.readouterr().out.split(" only ")[1].split("; repeatable")[0]
    assert named.replace(" or", ",").replace(",", " ").split() == list(PAPERS)
    assert main(["papers", "--paper", "nope"]) == 2
    assert "there is no paper 'nope'; choose one of pearl" in capsys.readouterr().err
    assert main(["papers", "-o", str(tmp_path / "no" / "papers.html")]) == 2
    assert "does not exist; make it first" in capsys.readouterr().err


# The page.


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "papers.html"
    papers = (word for key in SHOWN for word in ("--paper", key))
    assert main(["papers", *papers, "-o", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_page_requests_nothing_has_no_script_and_every_item(page):
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    for key in SHOWN:
        section = page[page.index(f'data-paper="{key}"><h2>') :]
        for item in PAPERS[key].items:
            assert f"<h3>{item}</h3>" in section
            assert f'id="{anchor(key, item)}"' in section
    assert "Table 12 (Llama 3.1 8B and 70B) repeats Table 2" in page


def test_the_page_opens_with_a_line_per_method_and_all_tables_are_folded(page, rows):
    known = trusts([row for row in rows if row.paper in SHOWN])
    table = page[page.index('<table class="trust">') : page.index("</table>")]
    lines = re.findall(r'<tr><th scope="row">(.*?)</tr>', table)
    assert page.index("</table>") < page.index("All rows") < page.index('<details class="item">')
    assert not re.search(r"<details[^>]* open", page)
    for trust, line in zip(known, lines, strict=True):
        assert line.startswith(f"{trust.title}</th>")
        assert f"{len(trust.predicted) - len(trust.missed)} of {len(trust.predicted)}<" in line
    targets = re.findall(r'href="#([^"]+)"', table)
    assert targets
    assert all(page.count(f'id="{target}"') == 1 for target in targets)


def test_a_line_counts_predictions_alone_and_escapes_names_and_reasons():
    """No verdict is written down: other rows have another line."""

    def row(ours: float, **more) -> PaperRow:
        names = {"paper": "<p>", "item": "<i>", "method": "pearl", "reason": "<why>"}
        return PaperRow("r", 1.0, ours, "closed form", **names, **more)

    rows = (row(1.1), row(2.0), row(0.5), row(9.0, fitted=True), row(9.0, easy=True))
    (trust,) = trusts(
        [*rows, PaperRow("x", 1.0, 1.0, "exact", method="pearl"), PaperRow("y", 1.0, 1.0, "closed form")]
    )
    assert (len(trust.predicted), len(trust.missed), trust.exact, trust.span()) == (3, 2, 1, "-50 to +100%")
    assert "1 of 3 within 15%, 1 exact; missed by -50 to +100%: <p> <i> (2)" in trust.line()
    assert Trust("pearl", (row(1.0),)).line().endswith("1 of 1 within 15%; nothing missed")
    paper = Paper("pearl", {})
    paper.key = "<p>"
    html = trust_table([paper], rows)
    assert "<why>" not in html
    assert "<i>" not in html.replace("<i style", "")
    assert "2, off by -50 to +100%" in html


def test_a_filter_hides_all_rows_but_those_of_its_word(page, rows):
    """Each row and each mark of a chart has its kind, and the state of a fitted or missed row."""
    shown = [row for row in rows if row.paper in SHOWN]
    words = re.findall(r'<tr data-is="([^"]*)"', page)
    assert len(words) == len(shown)
    for word, has in {
        "exact": lambda row: row.kind == "exact",
        "fitted": lambda row: row.fitted,
        "easy": lambda row: row.group == "easy",
        "copied": lambda row: row.kind == "copied",
        "missed": lambda row: row.predicted and not row.hit,
    }.items():
        assert sum(word in text for text in words) == sum(map(has, shown)) > 0
        assert f'[name="papers-kind"][value="{word}"]:checked) [data-is]:not([data-is*="{word}"])' in page
        assert f'<input type="radio" name="papers-kind" value="{word}">' in page
    hidden = '.papers:has([name="papers-paper"][value="pearl"]:checked) .paper:not([data-paper="pearl"])'
    assert hidden in page
    marks = re.findall(r'<g data-is="([^"]*)"', page)
    assert {"closed form missed", "closed form", "closed form fitted"} <= set(marks)


def test_a_chart_has_a_ring_and_a_dot_for_each_row_and_ratios_for_different_units():
    rows = [PaperRow(f"<{i}>", 1.0, ours, "closed form") for i, ours in enumerate((1.0, 1.1, 1.3))]
    svg = pages.chart("x", rows)
    counts = [svg.count(f'class="{name}"') for name in ("published", "ours", "missed")]
    assert (counts, "&lt;0&gt;" in svg) == ([3, 2, 1], True)
    others = [*rows[:1], PaperRow("b", 500.0, 400.0, "closed form"), PaperRow("c", 2, 2, "closed form")]
    assert "ours over published" in pages.chart("x", others)
    assert pages.chart("x", others[:2]) == ""


def test_a_heat_map_is_a_picture_with_a_pixel_for_each_cell():
    values = np.full((3, 2), 1.0)
    values[0, 1] = 4.0
    figure = pages.heat_map(Heat("<speed>", values))
    data = b64decode(re.search(r"base64,([^\"]+)", figure)[1])
    assert data[16:24] == (3).to_bytes(4, "big") + (2).to_bytes(4, "big")
    pixels = zlib.decompress(data[data.index(b"IDAT") + 4 :])
    assert pixels[1:7] == bytes((0, 84, 150, 248, 248, 250))
    assert "&lt;speed&gt;: 1.00 to 4.00" in figure


# The formulas, by enumeration and against followed forwards.


# DSI's schedule.


@pytest.mark.parametrize(
    ("drafter", "rate", "lookahead"),
    [(0.1, 0.8, 2), (0.3, 0.9, 1), (0.5, 0.7, 5), (0.9, 0.95, 4), (1, 0.5, 3)],
)
def test_the_closed_form_is_the_mean_of_followed_forwards(drafter, rate, lookahead):
    right = np.random.default_rng(0).random(40_000) < rate
    closed = float(dsi.dsi_time(np.array(drafter), np.array(rate), np.array(lookahead)))
    assert dsi.run_time(right, drafter, lookahead) / len(right) == pytest.approx(closed, rel=0.02)
    closed = float(dsi.si_time(np.array(drafter), np.array(rate), np.array(lookahead)))
    assert dsi.si_run_time(right, drafter, lookahead) / len(right) == pytest.approx(closed, rel=0.02)


def test_threads_take_at_least_the_time_of_the_schedule():
    right = [True, True, False, True]
    took = measured_time(right, 0.02, 0.005, 2, 7)
    assert took >= dsi.run_time(np.array(right), 0.25, 2) * 0.02


def test_an_interrupted_pool_leaves_no_thread(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(dsi, "wait", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        measured_time([True] * 4, 0.02, 0.005, 2, 7)
    assert threading.active_count() == before


# EMS-SD's appendix B.


@pytest.mark.parametrize("accuracy", [0.3, 0.8, 0.9])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_figure_7_equals_the_enumeration_of_all_batches(accuracy, batch):
    most = 5
    lengths = {k: accuracy ** (k - 1) * (1 - accuracy) for k in range(1, most)} | {
        most: accuracy ** (most - 1)
    }
    largest = 0.0
    for sample in product(lengths, repeat=batch):
        share = 1.0
        for length in sample:
            share *= lengths[length]
        largest += share * max(sample)
    assert ems.largest_accepted(accuracy, batch, most) == pytest.approx(largest)
    mean = sum(length * share for length, share in lengths.items())
    assert speculative_tokens(accuracy, most - 1) == pytest.approx(mean)
    assert ems.padding_ratio(accuracy, batch, most) == pytest.approx(largest / mean - 1, abs=1e-12)


# SSD.


def test_a_round_lasts_as_long_as_the_verification_or_the_branches():
    """By hand: glue and three steps take 10.45 ms, a verification 11.45 ms; four take 12.99 ms."""
    for gamma, round_ms in ((2, 11.45), (3, 11.45), (4, 12.99), (7, 20.61)):
        missed = 1 - ssd_hit_rate(0.8, gamma, 3, 0.7)
        ms = round_ms + 0.71 + missed * gamma * 2.54
        assert parallel.ssd_speed(0.8, gamma, 11.45) == pytest.approx(
            1e3 * speculative_tokens(0.8, gamma) / ms
        )


# ParallelSpec and the tables of others.


# PEARL.


@pytest.mark.parametrize(("gamma", "gain"), [(5, 1.13), (7, 1.15)])
def test_a_rate_that_varies_along_the_text_makes_pearl_faster(gamma, gain):
    """The reason given for PEARL's misses: harmonic means of two halves against one rate."""
    pair = pearl.pair_of("llama-2-7-70")
    halves = [pair._replace(rate=rate) for rate in (0.98, 0.50)]
    mixed = max(2 / sum(1 / pearl.speculative(half, g) for half in halves) for g in range(1, 33))
    uniform = pearl.pair_of("llama-2-7-70", mixed)
    faster = 2 / sum(1 / pearl.pearl(half, gamma) for half in halves)
    assert faster / pearl.pearl(uniform, gamma) == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize("rate", [0.6, 0.9])
def test_runs_of_independent_tokens_give_the_closed_forms(rate):
    pair = pearl.PublishedPair(50.0, 12.0, 1.9, rate)
    lengths = np.random.default_rng(0).geometric(1 - rate, 200_000) - 1
    assert pearl.speculative_varying(pair, lengths, 5) == pytest.approx(pearl.speculative(pair, 5), rel=0.01)
    assert pearl.pearl_varying(pair, lengths) == pytest.approx(pearl.pearl(pair), rel=0.01)
