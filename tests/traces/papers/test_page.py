"""The page of the papers: self-contained, escaped, with all rows."""

import re
import zlib
from base64 import b64decode

import numpy as np
import pytest

from specscope.app.main import main
from specscope.traces.papers import page as pages
from specscope.traces.papers.rows import Heat, Paper, Row, anchor
from specscope.traces.papers.summary import PAPERS
from specscope.traces.papers.trust import Trust, trusts
from specscope.traces.papers.trust_table import trust_table


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "papers.html"
    assert main(["papers", "--paper", "pearl", "--paper", "parallelspec", "-o", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_page_requests_nothing_and_has_no_script(page):
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_the_page_has_every_item_and_contradiction(page):
    for key in ("pearl", "parallelspec"):
        section = page[page.index(f'data-paper="{key}"><h2>') :]
        for item in PAPERS[key].items:
            assert f"<h3>{item}</h3>" in section
            assert f'id="{anchor(key, item)}"' in section
    assert "Table 12 (Llama 3.1 8B and 70B) repeats Table 2" in page


def test_the_page_opens_with_a_line_per_method_and_all_tables_are_folded(page):
    rows = [row for key in ("pearl", "parallelspec") for row in PAPERS[key].rows()]
    table = page[page.index('<table class="trust">') : page.index("</table>")]
    lines = re.findall(r'<tr><th scope="row">(.*?)</tr>', table)
    assert len(lines) == len(trusts(rows)) > 5
    assert page.index("</table>") < page.index("All rows") < page.index('<details class="item">')
    assert not re.search(r"<details[^>]* open", page)
    for trust, line in zip(trusts(rows), lines, strict=True):
        assert line.startswith(f"{trust.title}</th>")
        assert f"{len(trust.predicted) - len(trust.missed)} of {len(trust.predicted)}<" in line
    targets = re.findall(r'href="#([^"]+)"', table)
    assert targets
    assert all(page.count(f'id="{target}"') == 1 for target in targets)


def test_a_line_counts_predictions_alone_and_escapes_names_and_reasons():
    """No verdict is written down: other rows have another line."""

    def row(ours: float, **more) -> Row:
        return Row(
            "r", 1.0, ours, "closed form", paper="<p>", item="<i>", method="pearl", reason="<why>", **more
        )

    rows = (row(1.1), row(2.0), row(0.5), row(9.0, fitted=True), row(9.0, easy=True))
    (trust,) = trusts([*rows, Row("x", 1.0, 1.0, "exact", method="pearl"), Row("y", 1.0, 1.0, "closed form")])
    assert (len(trust.predicted), len(trust.missed), trust.exact, trust.span()) == (3, 2, 1, "-50 to +100%")
    assert "1 of 3 within 15%, 1 exact; missed by -50 to +100%: <p> <i> (2)" in trust.line()
    assert Trust("pearl", (row(1.0),)).line().endswith("1 of 1 within 15%; nothing missed")
    paper = Paper("pearl")
    paper.key = "<p>"
    html = trust_table([paper], rows)
    assert "<why>" not in html
    assert "<i>" not in html.replace("<i style", "")
    assert "2, off by -50 to +100%" in html


def test_a_filter_hides_all_rows_but_those_of_its_word(page):
    """Each row and each mark of a chart has its kind, and the state of a fitted or missed row."""
    rows = [row for key in ("pearl", "parallelspec") for row in PAPERS[key].rows()]
    words = re.findall(r'<tr data-is="([^"]*)"', page)
    assert len(words) == len(rows)
    for word, count in (
        ("exact", sum(row.kind == "exact" for row in rows)),
        ("fitted", sum(row.fitted for row in rows)),
        ("easy", sum(row.group == "easy" for row in rows)),
        ("copied", sum(row.kind == "copied" for row in rows)),
        ("missed", sum(row.predicted and not row.hit for row in rows)),
    ):
        assert sum(word in text for text in words) == count > 0
        assert f'[name="papers-kind"][value="{word}"]:checked) [data-is]:not([data-is*="{word}"])' in page
        assert f'<input type="radio" name="papers-kind" value="{word}">' in page
    assert (
        '.papers:has([name="papers-paper"][value="pearl"]:checked) .paper:not([data-paper="pearl"])' in page
    )
    marks = re.findall(r'<g data-is="([^"]*)"', page)
    assert {"closed form missed", "closed form", "closed form fitted"} <= set(marks)


def test_a_chart_has_a_ring_and_a_dot_for_each_row_and_marks_a_miss():
    rows = [Row(f"<{i}>", 1.0, ours, "closed form") for i, ours in enumerate((1.0, 1.1, 1.3))]
    svg = pages.chart("x", rows)
    assert svg.count('class="published"') == 3
    assert svg.count('class="ours"') == 2
    assert svg.count('class="missed"') == 1
    assert "&lt;0&gt;" in svg


def test_a_chart_of_different_units_has_ratios():
    rows = [
        Row("a", 1.0, 1.1, "closed form"),
        Row("b", 500.0, 400.0, "closed form"),
        Row("c", 2, 2, "closed form"),
    ]
    assert "ours over published" in pages.chart("x", rows)
    assert pages.chart("x", rows[:2]) == ""


def test_a_heat_map_is_a_picture_with_a_pixel_for_each_cell():
    values = np.full((3, 2), 1.0)
    values[0, 1] = 4.0
    figure = pages.heat_map(Heat("<speed>", values))
    data = b64decode(re.search(r"base64,([^\"]+)", figure)[1])
    assert data[16:24] == (3).to_bytes(4, "big") + (2).to_bytes(4, "big")
    start = data.index(b"IDAT")
    pixels = zlib.decompress(data[start + 4 :])
    assert pixels[1:4] == bytes((0, 84, 150))
    assert pixels[4:7] == bytes((248, 248, 250))
    assert "&lt;speed&gt;: 1.00 to 4.00" in figure


def test_an_output_in_a_missing_folder_is_an_error_of_use(tmp_path, capsys):
    assert main(["papers", "-o", str(tmp_path / "no" / "papers.html")]) == 2
    assert "does not exist; make it first" in capsys.readouterr().err
