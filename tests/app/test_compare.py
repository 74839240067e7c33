"""`specscope compare`: methods, settings, categories, and prompts that are too long."""

from __future__ import annotations

import json
import re

import pytest

import specscope
from specscope.app.named import able
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.methods import METHODS
from specscope.traces.metrics import measure
from specscope.traces.store import Store
from tests.app.commands import VIRTUAL, answer, call

pytestmark = pytest.mark.usefixtures("shared_clusters")


def test_all_leaves_out_methods_whose_models_are_missing_with_a_reason():
    with specscope.open(runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.5") as cluster:
        keys, left_out = able(list(METHODS), cluster)
    assert {"autoregressive", "speculative", "tree"} <= set(keys)
    assert {key for key in METHODS if METHODS[key].layout(METHODS[key].Config()).head} <= set(left_out)
    assert "hidden states" in left_out["medusa"]
    assert sorted([*keys, *left_out]) == sorted(METHODS)


TARGET = ["--target", str(PAIRS / "bundled" / "target")]


def test_methods_whose_drafter_or_head_is_missing_are_left_out_before_models_load(capsys, db, monkeypatch):
    words = [*TARGET, "--prompt", "Why?", *VIRTUAL, *db]
    code, out, err = call(capsys, "compare", "--methods", "speculative,eagle,llma", *words)
    assert code == 0
    assert err.startswith(
        "specscope: left out: speculative needs a drafter, and none was given; name one with"
    )
    assert "eagle needs a drafting head of kind eagle, and " in err
    assert out.startswith("target · 1 prompt · virtual · pearl-4xA100 · ")
    assert {line.split()[0] for line in out.splitlines()[2:4]} == {"autoregressive", "llma"}
    assert "\nspeculative         left out: speculative needs a drafter" in out
    monkeypatch.setattr(specscope, "open", None)
    for command in (["compare", "--methods", "speculative"], ["run", "--method", "speculative"]):
        code, _, err = call(capsys, *command, *words)
        assert (code, err.count("\n"), "speculative needs a drafter" in err) == (2, 1, True)


def test_settings_are_given_by_method_and_a_lossy_run_is_marked(capsys, db):
    words = ["compare", "--methods", "speculative,medusa", "--prompt", "Hello", "--temperature", "0.9"]
    words += [*VIRTUAL, *db]
    settings = ["--set", "medusa.acceptance=typical", "--set", "speculative.gamma=2"]
    code, out, _ = call(capsys, *words, *settings, "--json")
    summary = json.loads(out)["methods"]
    assert (code, summary["medusa"]["lossless"], summary["speculative"]["lossless"]) == (0, False, True)
    assert "(lossy)" in call(capsys, *words, *settings)[1]


def test_a_drafter_that_is_often_wrong_has_the_option_of_a_better_one(capsys, db):
    words = ["compare", "--methods", "speculative", "--prompt", "Tell me a story.", "--temperature", "2"]
    measured = ["--max-new-tokens", "32", "--runtime", "local-thread", *db]
    code, out, _ = call(capsys, *words, *measured, "--json")
    methods = json.loads(out)["methods"]
    assert (code, methods["autoregressive"]["advice"]) == (0, None)
    assert re.match(r"This drafter is wrong in \d\d % of the first tokens", methods["speculative"]["advice"])
    _, out, _ = call(capsys, *words, *measured)
    assert re.search(
        r"^speculative +This drafter is wrong .* The option is --drafter int4\.$", out, re.MULTILINE
    )
    _, out, _ = call(capsys, *words, *measured, "--drafter", "int8", "--json")
    assert json.loads(out)["methods"]["speculative"]["advice"] is None


def test_all_methods_have_figures_by_category(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"turns": [f"Tell me about {x}"], "category": x[0]} for x in ("cats", "cows", "dogs")]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    common = ["--prompt-file", str(file), "--limit", "2", *VIRTUAL, "--max-new-tokens", "6", *db]
    result = answer(capsys, "compare", "--methods", "all", *common, "--json")
    possible = [key for key in METHODS if key not in result["left_out"]]
    assert list(result["methods"]) == list(dict.fromkeys(["autoregressive", *possible]))
    assert all("head" in reason for reason in result["left_out"].values())
    assert (result["prompts"], result["skipped"]) == (2, [])
    assert result["methods"]["autoregressive"]["speedup"] == 1
    for key, figures in result["methods"].items():
        assert figures["lossless"] is True
        assert figures["equal_to_autoregressive"], key
        assert list(figures["categories"]) == ["c", "d"]
        assert sum(c["tokens"] for c in figures["categories"].values()) == figures["tokens"]
        for row in (figures, *figures["categories"].values()):
            assert row["tokens_per_target_forward"] >= 1
            assert row["speedup"] > 0
    assert len(result["methods"]["ems"]["runs"]) == 2, "a batch for each category"


def test_a_batch_is_compared_with_the_same_batch_decoded_plainly_and_has_two_named_speeds(
    capsys, db, tmp_path
):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"Tell me about {x}"}) for x in ("cats", "dogs")))
    words = ["compare", "--methods", "ems,tree", "--set", "ems.base=speculative", "--prompt-file", str(file)]
    words += [*VIRTUAL, *db]
    code, out, _ = call(capsys, *words, "--json")
    result = json.loads(out)
    assert list(result["methods"]) == ["autoregressive", "ems plain", "ems", "tree"]
    plain, base, batch, tree = result["methods"].values()
    assert (code, result["clock"].split(" · ")[:2]) == (0, ["virtual", "pearl-4xA100"])
    assert len(result["clock"].split(" · ")) == 3, "the modelled pair"
    assert (base["batch"], base["drafted"], base["speedup"]) == (2, 0, 1.0)
    assert base["equal_to_autoregressive"]
    assert (batch["batch"], batch["not_comparable"]) == (2, None)
    assert batch["speedup"] == pytest.approx(batch["tokens_per_second"] / base["tokens_per_second"])
    assert batch["tokens_per_second"] > batch["tokens_per_second_per_sequence"] > 0
    assert (plain["not_comparable"], tree["not_comparable"]) == (None, None)
    assert plain["tokens_per_second"] == pytest.approx(plain["tokens_per_second_per_sequence"])
    assert tree["speedup"] == pytest.approx(tree["tokens_per_second"] / plain["tokens_per_second"])
    _, out, _ = call(capsys, *words)
    rows = {line[:20].strip(): line for line in out.splitlines()}
    assert rows["ems plain"].split()[3] == "1.00×"
    assert rows["ems"].split()[2] == f"{batch['speedup']:.2f}×"
    assert re.search(r"throughput of up to 2 sequences; [\d.]+ tokens/s per sequence", rows["ems"])
    names = ("acceptance_rate", "acceptance_rate_tested")
    assert rows["tree"].split()[5:7] == [f"{100 * tree[name]:.0f}%" for name in names]
    assert rows["tree"].split()[7] == f"{tree['accepted_per_round']:.2f}"
    assert rows["tree"].split()[3:5] == [str(tree["tokens"]), f"{tree['tokens_per_target_forward']:.2f}"]
    assert rows["method"].split()[3:8] == ["tokens", "tok/forward", "acc/drafted", "acc/tested", "acc/round"]
    assert tree["per_level"][0]["rate"] > tree["acceptance_rate"]


def test_prompts_that_are_too_long_are_skipped_and_listed(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"text": "Hello", "category": "a"}, {"text": "word " * 4000, "category": "b"}]
    file.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    common = ["--methods", "prompt_lookup", "--prompt-file", str(file), *VIRTUAL, *db]
    result = answer(capsys, "compare", *common, "--json")
    (skipped,) = result["skipped"]
    assert (skipped["line"], skipped["category"]) == (3, "b")
    assert skipped["tokens"] > 4000
    assert re.fullmatch(r"\d+ tokens and 8 new ones are more than the context of \d+", skipped["reason"])
    assert result["prompts"] == 1
    assert set(result["methods"]["prompt_lookup"]["categories"]) == {"a"}
    _, out, _ = call(capsys, "compare", *common)
    assert f"skipped: line 3 (b): {skipped['reason']}\n" in out
    file.write_text(json.dumps(rows[1]), encoding="utf-8")
    code, _, err = call(capsys, "compare", *common)
    assert code == 2
    assert f"no prompt of {file} fits; line 1: {skipped['reason']}; shorten" in err


def test_passes_alternate_and_the_median_is_shown_with_the_spread(capsys, db):
    words = [
        "compare",
        "--methods",
        "prompt_lookup",
        "--prompt",
        "Hi",
        "--max-new-tokens",
        "6",
        "--repeat",
        "3",
    ]
    result = answer(capsys, *words, "--runtime", "local-thread", *db, "--json")
    assert result["passes"] == 3
    for figures in result["methods"].values():
        low, high = figures["spread"]
        assert low <= figures["tokens_per_second"] <= high
    with Store(db[1], readonly=True) as store:
        plain, copying = "autoregressive", "prompt_lookup"
        order = [plain, copying, copying, plain, plain, copying]
        assert [run.header.method for run in reversed(store.runs()[0])] == order


def test_of_two_passes_every_speed_is_the_mean(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Hi", "category": "a"}\n{"text": "Why?", "category": "b"}', encoding="utf-8")
    words = f"--prompt-file {file} --max-new-tokens 6 --repeat 2 --runtime local-thread".split()
    code, out, _ = call(capsys, "compare", "--methods", "prompt_lookup", *words, *db, "--json")
    result = json.loads(out)
    with Store(db[1], readonly=True) as store:
        runs = [store.load(run.header.run_id) for run in store.runs()[0]]
    assert (code, len(runs)) == (0, 8)
    for method, figures in result["methods"].items():
        assert figures["tokens_per_second"] == pytest.approx(sum(figures["spread"]) / 2)
        for category, prompt in (("a", "Hi"), ("b", "Why?")):
            mine = [r for r in runs if (r.header.method, r.header.prompts) == (method, (prompt,))]
            speeds = [measure(run).tokens_per_second for run in mine]
            assert len(speeds) == 2
            shown = figures["categories"][category]["tokens_per_second"]
            assert shown == pytest.approx(sum(speeds) / 2)


def test_short_answers_have_a_warning(capsys, db):
    words = ["compare", "--methods", "llma", "--prompt", "Tell me a story.", *VIRTUAL[:2], *db]
    _, out, err = call(capsys, *words, "--max-new-tokens", "31", "--json")
    assert json.loads(out)["short_answers"].startswith(
        "The answer has 31 tokens, and a speed-up over fewer than 32"
    )
    assert err.count("The answer has 31 tokens") == 1
    _, out, err = call(capsys, *words, "--max-new-tokens", "32", "--json")
    assert (json.loads(out)["short_answers"], err) == (None, "")


def test_finished_texts_go_from_prompt_to_prompt_of_a_pass(capsys, db, tmp_path):
    """The third prompt is the first one again, and its answer is among the finished texts."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "\n".join(json.dumps({"text": text}) for text in ("Hello", "Why?", "Hello")), encoding="utf-8"
    )
    words = ["--prompt-file", str(file), "--runtime", "local-thread", "--max-new-tokens", "24", *db, "--json"]
    both = ["--methods", "suffix", "--repeat", "2"]
    compared = answer(capsys, "compare", *both, *words)["methods"]
    ran = answer(capsys, "run", "--method", "suffix", *words)["sequences"]
    with Store(db[1], readonly=True) as store:
        runs = [store.load(run.header.run_id) for run in reversed(store.runs()[0])]
    passes = [runs[i] for i in range(len(runs)) if runs[i].header.method == "suffix"]
    assert len(passes) == 9
    first, *_ = own = [run for run in passes if run.header.run_id in compared["suffix"]["runs"]]
    assert [len(run.documents) for run in own] == [0, 1, 2]
    assert own[2].documents[0].tokens == tuple(first.token_ids()) == tuple(own[2].token_ids())
    assert len(own[2].rounds) < len(first.rounds)
    assert [len(run.documents) for run in passes] == [0, 0, 1, 1, 2, 2, 0, 1, 2]
    assert ran[0]["token_ids"] == ran[2]["token_ids"]
