"""Published clusters beside advise: what is asked, what counts, and the page's table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.traces.advise.acceptance import UNKNOWN
from specscope.traces.advise.answer import advise
from specscope.traces.advise.option import Likely
from specscope.traces.advise.question import Question
from specscope.traces.facts.closed_forms import speculative_tokens
from specscope.traces.papers import winners
from specscope.traces.papers.clusters import published
from specscope.traces.papers.forwards import forward_ms
from specscope.traces.papers.rows import numbers
from specscope.traces.papers.winners import WinnerRow, WinnerTable, compared, table_lines
from tests.app.commands import call, refused

PAGE = (Path(__file__).parents[3] / "docs" / "advise.md").read_text(encoding="utf-8")
SOURCES = {source["key"]: source for source in numbers("winners")["sources"]}


def asked(key: str) -> dict[str, dict]:
    return {one.name: dict(one.asked) for one in published(SOURCES[key])}


def test_all_published_rows_are_asked():
    """Six pairs and three means of PEARL; EasySpec's 20 sets, as trees and as chains."""
    counts = {key: sum(len(one.speedups) for one in published(source)) for key, source in SOURCES.items()}
    assert counts == {
        "pearl": 9,
        "easyspec": 20,
        "easyspec-chains": 20,
        "nano-pearl": 96,
        "ssd": 4,
        "ssd-qwen": 4,
        "ssd-again": 4,
        "specbranch": 12,
    }
    for source in SOURCES.values():
        for one in published(source):
            methods = next(iter(one.speedups.values()))
            Question(
                **{
                    **source["question"],
                    **one.asked,
                    "batches": tuple(one.speedups),
                    "methods": tuple(methods),
                }
            )


def test_a_rate_follows_from_printed_tokens_or_is_unknown():
    pearl, nano, ssd = asked("pearl"), asked("nano-pearl"), asked("ssd")
    assert pearl["codellama-7-34, HumanEval"]["rates"] == pytest.approx((27.95 / 28.95,) * 2)
    assert pearl["llama-3.1-8-70, HumanEval"]["rates"] == UNKNOWN
    # Table 11's runs put the pairs of Table 7 within 0.02 of its rates; Llama 2 has only the runs
    assert pearl["llama-2-7-70, HumanEval"]["rates"][0] == pytest.approx(0.935, abs=0.005)
    mat = [row[1] for name, row in numbers("outside")["nano-PEARL, H200"].items() if "3B/72B, GSM8K" in name]
    assert nano["Qwen2.5 3B/72B, GSM8K"]["rates"] == pytest.approx((1 - 1 / min(mat), 1 - 1 / max(mat)))
    (rate, _), gamma = ssd["llama-3.1-70b, GSM8K"]["rates"], 6
    assert speculative_tokens(rate, gamma) == pytest.approx(270 * 21.12 / 1e3, rel=1e-6)
    slower = speculative_tokens(ssd["llama-3.1-70b, Alpaca"]["rates"][0], gamma)
    assert slower == pytest.approx(270 * 21.12 / 1e3 * 145 / 188, rel=1e-6)
    shares = asked("easyspec-chains")["llama-3, temperature 0, MMLU"]["rates"]
    assert sum(shares[0] ** k for k in range(1, 6)) / 5 == pytest.approx(0.57)


def test_three_rows_are_what_advise_says_of_their_clusters():
    for key, name in (("easyspec", "llama-3, temperature 0, MMLU"), ("ssd-again", "qwen3-32b, GSM8K")):
        (one,) = (one for one in published(SOURCES[key]) if one.name == name)
        (row,) = compared(SOURCES[key], one)
        assert row.best == row.winner == {"easyspec": "easyspec", "ssd-again": "ssd"}[key]
        assert set(row.advised) == set(row.published) == {"speculative", row.winner}
        assert row.published["speculative"] < row.published[row.winner]
        for found in row.advised.values():
            assert 1 < found.low < found.mid < found.high
        assert row.plain == pytest.approx(1, abs=0.3)
    (one,) = (one for one in published(SOURCES["nano-pearl"]) if one.name == "Qwen3 0.6B/32B, AIME")
    (row,) = compared(SOURCES["nano-pearl"], one._replace(speedups={8: one.speedups[8]}))
    assert (row.best, row.published) == ("pearl", {"pearl": 2.41})
    assert row.advised["pearl"].mid == pytest.approx(2.41, rel=0.15)


def test_a_number_counts_where_it_is_in_no_range_and_where_a_method_has_no_place():
    likely = Likely(1.5, 2.0, 2.5)
    fine = WinnerRow("a", {"ssd": 2.2, "pearl": 1.6}, {"ssd": likely, "pearl": likely}, "ssd", None)
    off = WinnerRow("b", {"ssd": 3.0, "pearl": 1.5}, {"ssd": likely}, "pearl", 1.1)
    below = WinnerRow("c", {"ssd": 0.9}, {"ssd": Likely(0.8, 0.9, 1.0)}, "autoregressive", None)
    assert (fine.winner, fine.outside, fine.reason()) == ("ssd", [], "")
    assert (off.winner, off.outside) == ("ssd", ["ssd", "pearl"])
    assert off.reason() == (
        "pearl is named, not ssd; ssd -33%: its tokens/s -27%, plain decoding's +10%; pearl has no place"
    )
    assert below.winner == "autoregressive"
    table = WinnerTable("all", "why", (fine, off, below))
    assert (table.named, table.inside, table.speedups) == (2, 3, 5)
    assert table.width == pytest.approx(2.5 / 1.5)
    lines = [*table_lines([table], rows=True)]
    assert sum("no place" in line for line in lines) == 2
    assert lines[-1].startswith("all ")
    assert lines[-1].split()[1:7] == ["2", "of", "3", "3", "of", "5"]


def test_the_page_s_table_adds_up_and_has_all_sources():
    rows = re.findall(r"^\| (.+?) \| (\d+) of (\d+) \| (\d+) of (\d+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    *sources, whole = rows
    assert [row[0] for row in sources] == [source["title"] for source in SOURCES.values()]
    sums = [sum(int(row[i]) for row in sources) for i in range(1, 5)]
    assert [int(n) for n in whole[1:5]] == sums
    assert sums[1] == 169
    assert sums[2] >= 0.8 * sums[3]
    assert float(whole[5]) <= 1.6


def test_a_speed_with_prefill_is_met_with_prefill():
    """Prompts take half as long as plain decoding; runs have 1.5 times as many tokens."""
    plain, share, longer = 10.0, 0.5, 1.5
    whole = (plain + share * plain) / (share * plain / longer + plain / 4)
    assert winners._with_prefill(4, share, longer) == pytest.approx(whole)
    assert winners._with_prefill(4, 0, 1) == 4
    (one,) = (one for one in published(SOURCES["nano-pearl"]) if one.name == "Qwen3 0.6B/32B, CNN/DM")
    (row,) = compared(SOURCES["nano-pearl"], one._replace(speedups={8: one.speedups[8]}))
    (bare,) = compared(SOURCES["nano-pearl"], one._replace(speedups={8: one.speedups[8]}, longer={}))
    assert row.advised["pearl"].mid < bare.advised["pearl"].mid
    assert abs(row.plain - 1) < abs(bare.plain - 1)


def test_a_target_split_by_layers_has_one_card_s_speed_and_any_number_of_cards():
    more = {"count": 4, "card": "A100-80G", "target": "llama-2-70b", "drafter": "llama-2-7b"}
    question = Question(
        **more, split="layers", target_cards=3, methods=("speculative",), context=256, tokens=16
    )
    plain = next(option for option in advise(question).options if not option.way.drafter)
    latency = question.profile(3, 3, 1).latency()
    assert (plain.way.target, latency.target.split) == (3, "layers")
    alone = forward_ms(latency.target, "A100-80G", "graphs", 1, 264, 1)
    assert 1e3 / plain.tokens_per_second == pytest.approx(alone, rel=0.02)
    with pytest.raises(UsageError, match="choose one of 1, 2, 4, or 0"):
        Question(**more, target_cards=3)
    with pytest.raises(UsageError, match="the split is 'rows'"):
        Question(**more, split="rows")


def test_the_command_prints_the_tables(capsys, monkeypatch: pytest.MonkeyPatch):
    row = WinnerRow("a pair", {"ssd": 2.2}, {"ssd": Likely(1.5, 2.0, 2.5)}, "ssd", None)
    monkeypatch.setattr(winners, "winner_tables", lambda: iter([WinnerTable("a source", "", (row,))]))
    code, out, _ = call(capsys, "papers", "--winners", "--rows")
    assert code == 0
    assert "a pair" in out
    assert "advised 2.00 (1.50 to 2.50)" in out
    assert "leave --paper and -o out" in refused(capsys, "papers", "--winners", "--paper", "pearl")
    assert "leave one of them out" in refused(capsys, "papers", "--winners", "--forwards")
