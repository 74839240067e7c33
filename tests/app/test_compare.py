"""`specscope compare`: methods, settings, categories, passes, and prompts that are too long."""

from __future__ import annotations

import json
import re

import pytest

import specscope
from specscope.app.named import able
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.methods import METHODS
from specscope.traces.database.store import Store
from specscope.traces.facts.metrics import measure
from tests.app.commands import VIRTUAL, answer, call, printed, prompt_file, refused

pytestmark = pytest.mark.usefixtures("shared_clusters")
THREADS = ["--runtime", "local-thread", "--max-new-tokens"]


def runs_of(db):
    """Return the stored runs, the oldest first."""
    with Store(db[1], readonly=True) as store:
        return [store.load(run.header.run_id) for run in reversed(store.runs()[0])]


def test_all_leaves_out_methods_whose_models_are_missing_with_a_reason():
    with specscope.open(runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.5") as cluster:
        keys, left_out = able(list(METHODS), cluster)
    assert {"autoregressive", "speculative", "tree"} <= set(keys)
    assert {key for key in METHODS if METHODS[key].layout(METHODS[key].Config()).head} <= set(left_out)
    assert "hidden states" in left_out["medusa"]
    assert sorted([*keys, *left_out]) == sorted(METHODS)


def test_methods_whose_drafter_or_head_is_missing_are_left_out_before_models_load(capsys, db, monkeypatch):
    words = ["--target", str(PAIRS / "bundled" / "target"), "--prompt", "Why?", *VIRTUAL, *db]
    code, out, err = call(capsys, "compare", "--methods", "speculative,eagle,llma", *words)
    lacks = "speculative needs a drafter"
    assert code == 0
    assert err.startswith(f"specscope: left out: {lacks}, and none was given; name one with")
    assert "eagle needs a drafting head of kind eagle, and " in err
    assert out.startswith("target · 1 prompt · virtual · pearl-4xA100 · ")
    assert {line.split()[0] for line in out.splitlines()[2:4]} == {"autoregressive", "llma"}
    assert f"\nspeculative         left out: {lacks}" in out
    monkeypatch.setattr(specscope, "open", None)
    for command in (["compare", "--methods", "speculative"], ["run", "--method", "speculative"]):
        assert lacks in refused(capsys, *command, *words)


def test_a_drafter_that_is_often_wrong_has_the_option_of_a_better_one(capsys, db):
    words = ["compare", "--methods", "speculative", "--prompt", "Tell me a story.", "--temperature", "2"]
    words += [*THREADS, "32", *db]
    methods = answer(capsys, *words, "--json")["methods"]
    assert methods["autoregressive"]["advice"] is None
    assert re.match(r"This drafter is wrong in \d\d % of the first tokens", methods["speculative"]["advice"])
    line = r"^speculative +This drafter is wrong .* The option is --drafter int4\.$"
    assert re.search(line, printed(capsys, *words), re.MULTILINE)
    better = answer(capsys, *words, "--drafter", "int8", "--json")
    assert better["methods"]["speculative"]["advice"] is None


def test_all_methods_have_figures_by_category(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"turns": [f"Tell me about {x}"], "category": x[0]} for x in ("cats", "cows", "dogs")]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ["--prompt-file", str(file), "--limit", "2", *VIRTUAL, "--max-new-tokens", "6", *db]
    result = answer(capsys, "compare", "--methods", "all", *words, "--json")
    possible = [key for key in METHODS if key not in result["left_out"]]
    assert list(result["methods"]) == list(dict.fromkeys(["autoregressive", *possible]))
    assert all("head" in reason for reason in result["left_out"].values())
    assert (result["prompts"], result["skipped"]) == (2, [])
    assert result["methods"]["autoregressive"]["speedup"] == 1
    for key, figures in result["methods"].items():
        assert figures["lossless"] is figures["equal_to_autoregressive"] is True, key
        assert list(figures["categories"]) == ["c", "d"]
        assert sum(c["tokens"] for c in figures["categories"].values()) == figures["tokens"]
        for row in (figures, *figures["categories"].values()):
            assert row["tokens_per_target_forward"] >= 1
            assert row["speedup"] > 0
    assert len(result["methods"]["ems"]["runs"]) == 2, "a batch for each category"


def test_a_batch_is_compared_with_the_same_batch_decoded_plainly_and_has_two_named_speeds(
    capsys, db, tmp_path
):
    file = prompt_file(tmp_path / "prompts.jsonl", "Tell me about cats", "Tell me about dogs")
    words = ["compare", "--methods", "ems,tree", "--set", "ems.base=speculative", "--prompt-file", file]
    words += [*VIRTUAL, *db]
    result = answer(capsys, *words, "--json")
    assert list(result["methods"]) == ["autoregressive", "ems plain", "ems", "tree"]
    plain, base, batch, tree = result["methods"].values()
    assert re.fullmatch("virtual · pearl-4xA100 · [^·]+", result["clock"]), "with the modelled pair"
    assert (base["batch"], base["drafted"], base["speedup"]) == (2, 0, 1.0)
    assert base["equal_to_autoregressive"]
    assert batch["batch"] == 2
    assert batch["speedup"] == pytest.approx(batch["tokens_per_second"] / base["tokens_per_second"])
    assert batch["tokens_per_second"] > batch["tokens_per_second_per_sequence"] > 0
    assert batch["not_comparable"] is plain["not_comparable"] is tree["not_comparable"] is None
    assert plain["tokens_per_second"] == pytest.approx(plain["tokens_per_second_per_sequence"])
    assert tree["speedup"] == pytest.approx(tree["tokens_per_second"] / plain["tokens_per_second"])
    assert tree["per_level"][0]["rate"] > tree["acceptance_rate"]
    rows = {line[:20].strip(): line for line in printed(capsys, *words).splitlines()}
    cells = {name: row.split() for name, row in rows.items()}
    assert (cells["ems plain"][3], cells["ems"][2]) == ("1.00×", f"{batch['speedup']:.2f}×")
    assert re.search(r"throughput of up to 2 sequences; [\d.]+ tokens/s per sequence", rows["ems"])
    assert cells["method"][3:8] == ["tokens", "tok/forward", "acc/drafted", "acc/tested", "acc/round"]
    rates = [f"{100 * tree[name]:.0f}%" for name in ("acceptance_rate", "acceptance_rate_tested")]
    figures = [str(tree["tokens"]), f"{tree['tokens_per_target_forward']:.2f}", *rates]
    assert cells["tree"][3:8] == [*figures, f"{tree['accepted_per_round']:.2f}"]


def test_prompts_that_are_too_long_are_skipped_and_listed(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"text": "Hello", "category": "a"}, {"text": "word " * 4000, "category": "b"}]
    file.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ["compare", "--methods", "prompt_lookup", "--prompt-file", str(file), *VIRTUAL, *db]
    result = answer(capsys, *words, "--json")
    (skipped,) = result["skipped"]
    assert (skipped["line"], skipped["category"], skipped["tokens"] > 4000) == (3, "b", True)
    assert re.fullmatch(r"\d+ tokens and 8 new ones are more than the context of \d+", skipped["reason"])
    assert (result["prompts"], *result["methods"]["prompt_lookup"]["categories"]) == (1, "a")
    assert f"skipped: line 3 (b): {skipped['reason']}\n" in printed(capsys, *words)
    prompt_file(file, rows[1]["text"])
    error = refused(capsys, *words)
    assert f"no prompt of {file} fits; line 1: {skipped['reason']}; shorten" in error


def test_passes_alternate_and_every_speed_is_their_mean(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Hi", "category": "a"}\n{"text": "Why?", "category": "b"}', encoding="utf-8")
    words = ["--prompt-file", str(file), "--repeat", "2", *THREADS, "6", *db, "--json"]
    result = answer(capsys, "compare", "--methods", "prompt_lookup", *words)
    runs = runs_of(db)
    plain, copying = ["autoregressive"] * 2, ["prompt_lookup"] * 2
    assert result["passes"] == 2
    assert sorted(run.header.method for run in runs[:4]) == sorted(plain + copying)
    assert len(runs) == 8
    for method, figures in result["methods"].items():
        low, high = figures["spread"]
        assert low <= figures["tokens_per_second"] == pytest.approx((low + high) / 2)
        for category, prompt in (("a", "Hi"), ("b", "Why?")):
            mine = [r for r in runs if (r.header.method, r.header.prompts) == (method, (prompt,))]
            speeds = [measure(run).tokens_per_second for run in mine]
            shown = figures["categories"][category]["tokens_per_second"]
            assert (len(speeds), shown) == (2, pytest.approx(sum(speeds) / 2))


def test_short_answers_have_a_warning(capsys, db):
    words = ["compare", "--methods", "llma", "--prompt", "Tell me a story.", *VIRTUAL[:2], *db, "--json"]
    _, out, err = call(capsys, *words, "--max-new-tokens", "31")
    warning = "The answer has 31 tokens, and a speed-up over fewer than 32"
    assert json.loads(out)["short_answers"].startswith(warning)
    assert err.count("The answer has 31 tokens") == 1
    _, out, err = call(capsys, *words, "--max-new-tokens", "32")
    assert (json.loads(out)["short_answers"], err) == (None, "")


def test_finished_texts_go_from_prompt_to_prompt_of_a_pass(capsys, db, tmp_path):
    """The third prompt is the first one again, and its answer is among the finished texts."""
    file = prompt_file(tmp_path / "prompts.jsonl", "Hello", "Why?", "Hello")
    words = ["--prompt-file", file, *THREADS, "24", *db, "--json"]
    compared = answer(capsys, "compare", "--methods", "suffix", "--repeat", "2", *words)["methods"]
    ran = answer(capsys, "run", "--method", "suffix", *words)["sequences"]
    passes = [run for run in runs_of(db) if run.header.method == "suffix"]
    first, *_ = own = [run for run in passes if run.header.run_id in compared["suffix"]["runs"]]
    assert [len(run.documents) for run in own] == [0, 1, 2]
    assert own[2].documents[0].tokens == tuple(first.token_ids()) == tuple(own[2].token_ids())
    assert len(own[2].rounds) < len(first.rounds)
    assert [len(run.documents) for run in passes] == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    assert ran[0]["token_ids"] == ran[2]["token_ids"]
