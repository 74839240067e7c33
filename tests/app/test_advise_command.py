"""`specscope advise`: what it prints and refuses, its JSON and its page."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from specscope.app.render.advise import html, page
from specscope.traces.advise.acceptance import UNKNOWN
from tests.app.commands import IMPORTED, VIRTUAL, answer, call, printed, refused

CARDS = ("advise", "--gpus", "2xH100")
MODELS = ("--target", "qwen3-8b", "--drafter", "qwen3-0.6b")
QUICK = (*CARDS, *MODELS, "--context", "32", "--max-new-tokens", "16", "--methods", "speculative,dsi")


@pytest.fixture(scope="module")
def found():
    from specscope.traces.advise.answer import advise
    from specscope.traces.advise.question import Question
    from specscope.traces.advise.words import facts

    methods = ("speculative", "dsi")
    batches = (1, 2)
    return facts(
        advise(
            Question(
                2, "H100", "qwen3-8b", "qwen3-0.6b", batches=batches, context=32, tokens=16, methods=methods
            )
        )
    )


def rows(table: str) -> list[list[str]]:
    """Return the cells of an HTML table's body."""
    body = table.rpartition("<tbody>")[2]
    cells = (
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    )
    return [[unescape(re.sub("<[^>]+>", "", cell)).strip() for cell in row] for row in cells]


def test_every_number_of_the_table_is_the_json(found):
    for part in found["batches"]:
        section = html({**found, "batches": [part], "left_out": {}})
        shown = rows(section)
        assert len(shown) == len(part["options"])
        for cells, option in zip(shown, part["options"], strict=True):
            low, high = option["low"], option["high"]
            assert cells[:2] == [option["title"], option["place"]]
            assert cells[2] == (f"{low:.2f} to {high:.2f}×" if option["parts"] else "1")
            assert cells[3] == f"{option['tokens_per_second']:,.0f}"
            assert cells[4] == f"{option['tokens_per_second_per_card']:,.0f}"
            assert cells[5] == ", ".join(f"{name} {value}" for name, value in option["config"].items())
            assert option["tokens_per_second_per_card"] == pytest.approx(
                option["tokens_per_second"] / option["cards"], abs=0.01
            )
            assert low <= option["speedup"] <= high
            assert f"{option['speedup']:.2f}×" in section


def test_the_page_has_the_answer_of_each_batch_and_no_link(found):
    document = page(found)
    for part in found["batches"]:
        assert part["answer"] in unescape(document)
        assert all(change["text"] in unescape(document) for change in part["changes"])
    assert not re.search(r'(?:href|src)="(?!#)', document)
    assert [*found["left_out"]] == ["DSI at batch 2"]


def test_a_command_prints_its_answer_its_json_and_its_page(capsys, tmp_path):
    file = tmp_path / "advice.html"
    told = answer(capsys, *QUICK, "--json", "-o", str(file))
    assert told["gpus"] == "2xH100"
    assert told["acceptance"] == [*UNKNOWN]
    assert not told["acceptance_known"]
    assert told["batches"][0]["answer"] in unescape(file.read_text())
    text = printed(capsys, *QUICK)
    assert "acceptance 0.5 to 0.95 (unknown) · context 32 · virtual · data sheets" in text
    headline, *_ = (line for line in text.splitlines() if line.startswith("With one sequence"))
    assert headline.endswith(".")


def test_names_of_files_are_text(capsys, tmp_path):
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 1000,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    file = tmp_path / "advice.html"
    told = printed(
        capsys,
        *CARDS,
        "--target",
        "qwen3-8b",
        "--drafter",
        str(folder / "config.json"),
        *QUICK[7:],
        "-o",
        str(file),
    )
    assert "\x1b" not in told
    document = file.read_text()
    assert "<script>alert" not in document
    assert "&lt;script&gt;alert" in document


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (CARDS, "--target is missing; as in --gpus 2xH100 --target llama-3.1-70b --drafter llama-3.1-8b"),
        ((*CARDS, *MODELS, "--gpus", "2xH900"), "the card is 'H900'; choose one of H100, H200"),
        ((*QUICK, "-o", "advice.txt"), "the output advice.txt is no page; name a file that ends in .html"),
        ((*QUICK, "--recorded", "x", "--acceptance", "0.7"), "leave out --acceptance"),
        ((*QUICK, "--target", "/nowhere/config.json"), "there is no such file"),
        ((*QUICK, "--head-acceptance", "2"), "the head: the acceptance rate is 2; it must be at least 0.01"),
        ((*QUICK, "--ngram-acceptance", "x"), "the n-grams: the acceptance rate is 'x'; write a rate"),
    ],
)
def test_what_is_wrong_is_one_line_with_exit_code_2(capsys, given, words):
    assert words in refused(capsys, *given)


def test_a_target_that_fits_nowhere_is_one_line(capsys):
    given = ("--gpus", "1xRTX-4090", "--target", "llama-3.1-70b", "--drafter", "llama-3.1-8b")
    code, out, err = call(capsys, "advise", *given)
    assert (out, err.count("\n")) == ("", 1)
    assert code not in (0, 130)
    assert "1 × H200 or MI300X would hold it" in err


def test_the_rate_of_an_imported_log_is_taken_and_of_one_that_tells_none_is_not(capsys, tmp_path):
    db = ("--db", str(tmp_path / "runs.db"))
    names = [row["run_id"] for row in answer(capsys, "import", str(IMPORTED / "aiperf.jsonl"), *db, "--json")]
    told = answer(capsys, *QUICK, "--recorded", names[0], *db, "--json")
    low, high = told["acceptance"]
    assert told["acceptance_known"]
    assert low < high
    plain = answer(
        capsys,
        "run",
        "--method",
        "autoregressive",
        "--prompt",
        "Hi",
        *VIRTUAL,
        "--tokens",
        "bernoulli:0.7",
        *db,
        "--json",
    )
    words = refused(capsys, *QUICK, "--recorded", plain["run_id"], *db)
    assert "does not tell how many drafts were accepted by place" in words
