"""The rows of `specscope papers`: exact ones, judged ones, the files, the command."""

import json
import re

import pytest

from specscope.app.main import main
from specscope.engine.methods import METHODS
from specscope.traces.papers.rows import WITHIN, Row, cells, numbers
from specscope.traces.papers.summary import PAPERS, Summary

KEYS = ["paper", "item", "row", "published", "ours", "difference", "kind", "assumption", "fitted", "easy"]


@pytest.fixture(scope="module")
def rows():
    return [row for paper in PAPERS.values() for row in paper.rows()]


@pytest.mark.parametrize("key", PAPERS)
def test_every_exact_row_has_the_printed_number(rows, key):
    exact = [row for row in rows if row.paper == key and row.kind == "exact"]
    assert [(row.item, row.row) for row in exact if row.ours != row.published] == []


def test_runs_on_the_virtual_cluster_have_ssds_cliff_too(rows):
    """Here, where all rows are computed: these runs take 13 s."""
    found = [row for row in rows if row.item == "SSD, virtual cluster"]
    ratios = [row.ours or 0 for row in found]
    assert ratios[1:] == sorted(ratios[1:], reverse=True)
    assert max(ratios) < 1
    assert all(row.hit for row in found if row.predicted)


def test_two_thirds_of_the_predictions_are_within_the_limit(rows):
    summary = Summary.of(rows)
    assert summary.rows >= 250
    assert summary.share >= summary.rest >= 2 / 3
    assert summary.counts["exact"] == summary.exact_equal > 0
    assert summary.largest == "easyspec Table 2"
    assert f"({summary.share:.0%})" in summary.sentence()
    assert summary.remark() == (
        f"{summary.most} of the {summary.counts['predicted']} predicted rows are Table 2 of EasySpec; of the other rows "
        f"{summary.rest:.0%} are within 15%."
    )


def test_each_row_is_of_a_method_or_of_none_and_each_pattern_of_a_paper_finds_some(rows):
    assert {row.method for row in rows} <= {*METHODS, ""}
    for key in PAPERS:
        found = {row.method for row in rows if row.paper == key}
        assert {method for _, method in numbers(key)["methods"]} <= found, key
    by_name = {f"{row.paper} {row.item}: {row.row}": row.method for row in rows}
    for name, method in (
        ("pearl Table 1: PEARL (ours), codellama-7-34", "pearl"),
        ("pearl Table 1: Speculative Decoding, codellama-7-34", "speculative"),
        ("dsi Table 1: worst case: SI, t1", "speculative"),
        ("dsi Table 1: worst case: non-SI, t1", "autoregressive"),
        ("parallelspec Stub head: V 7B EAGLE +ParallelSpec, temperature 0.0, speed-up", "parallelspec_eagle"),
        ("parallelspec Stub head: V 7B EAGLE, temperature 0.0, speed-up", "eagle"),
        ("outside Spec-Bench, A100: Medusa, speed-up", "medusa"),
        ("parallel SSD, speeds: SSD, GSM8K, tokens/s", "ssd"),
    ):
        assert by_name[name] == method
    named = [row for row in rows if row.predicted and not row.method]
    assert named == [], "every prediction is some method's"


def test_the_tiles_add_up_to_all_rows(rows):
    (total, _), *groups = Summary.of(rows).tiles()
    assert len(rows) == int(total.replace(",", "")) == sum(int(n.split(" of ")[-1]) for n, _ in groups)


def test_what_repeats_the_print_is_no_proof(rows):
    """Copies are equal; arithmetic differs by the rounding of the print."""
    for row in rows:
        if row.kind == "copied":
            assert row.ours == row.published
        elif row.kind == "arithmetic":
            assert row.difference == pytest.approx(0, abs=0.03), row.row
    alone = Summary.of([row for row in rows if row.kind in ("copied", "arithmetic")])
    assert alone.counts["repeated"] == alone.rows > 0


def test_every_computed_row_says_its_assumption_and_every_miss_its_reason(rows):
    for row in rows:
        assert row.assumption, (row.item, row.row)
        if row.predicted and not row.hit:
            assert row.reason, (row.item, row.row)
            assert row.to_dict()["assumption"].endswith(f"Missed: {row.reason}")


def test_names_of_rows_are_unique_within_an_item(rows):
    names = [(row.paper, row.item, row.row) for row in rows]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("row", "group"),
    [
        (Row("x", 2.0, 2.2, "closed form"), "predicted"),
        (Row("x", 2.0, 2.2, "closed form", fitted=True), "fitted"),
        (Row("x", 2.0, 2.2, "closed form", easy=True), "easy"),
        (Row("x", None, 2.2, "simulated"), "not printed"),
        (Row("x", 2.0, None, "published only"), "published only"),
        (Row("x", 2.0, 2.0, "exact"), "exact"),
        (Row("x", 2.0, 2.0, "copied"), "repeated"),
        (Row("x", 2.0, 2.0, "arithmetic"), "repeated"),
    ],
)
def test_only_a_prediction_that_may_miss_is_judged(row, group):
    assert row.group == group
    assert row.predicted == (group == "predicted")
    assert Summary.of([row]).counts[group] == 1


def test_a_row_hits_within_the_limit():
    assert Row("x", 2.0, 2.0 * (1 + WITHIN), "closed form").hit
    assert not Row("x", 2.0, 2.31, "closed form").hit
    assert Row("x", 0.0, 0.0, "closed form").difference == 0


def test_the_command_prints_one_json_object(capsys):
    assert main(["papers", "--paper", "pearl", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert all(list(row) == KEYS for row in printed["rows"])
    assert printed["summary"]["rows"] == len(printed["rows"])
    assert printed["inconsistencies"]["pearl"]


def test_the_command_prints_a_summary_and_the_items_on_request(capsys):
    assert main(["papers", "--paper", "pearl"]) == 0
    summary = capsys.readouterr().out
    assert len(summary) < 3000
    assert re.search(
        r"^  pearl +\d+ of \d+ within 15%, 66 exact; missed by .*: pearl Table 3", summary, re.MULTILINE
    )
    assert "that must be exact equal the print" in summary
    assert "codellama-7-34" not in summary
    assert main(["papers", "--paper", "pearl", "--rows"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(summary)
    for item in PAPERS["pearl"].items:
        assert f"\n{item} " in text
    assert all(sentence in text for sentence in PAPERS["pearl"].inconsistencies)


def test_the_help_names_every_paper(capsys):
    with pytest.raises(SystemExit):
        main(["papers", "--help"])
    named = capsys.readouterr().out.split(" only ")[1].split("; repeatable")[0]
    assert named.replace(" or", ",").replace(",", " ").split() == list(PAPERS)


def test_an_unknown_paper_is_an_error_of_use(capsys):
    assert main(["papers", "--paper", "nope"]) == 2
    assert "there is no paper 'nope'; choose one of pearl" in capsys.readouterr().err


def test_a_table_has_as_many_numbers_as_columns():
    for key in PAPERS:
        for table in numbers(key).values():
            if isinstance(table, dict) and "columns" in table:
                assert list(cells(table))
