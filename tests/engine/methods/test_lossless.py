"""Every method is lossless: its text equals the target's own.

At temperature 0 the reference is transformers' `generate` in float32; above it, for drafts that are
a function of the prefix, `autoregressive` with the same seed. For sampled drafts see
`tests/engine/test_joint*.py`.
"""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

import engine
from engine.methods import METHODS
from engine.model.pair import Pair
from engine.types import Limits, Sampling
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.pairs import DRAFTERS, make_pair

CONFIGS = {
    "speculative": [{"gamma": 1}, {"gamma": 5}],
    "llma": [{}, {"match": 1, "copy": 12}, {"match": 1, "reference": "once upon a time, the fox!"}],
    "prompt_lookup": [{}, {"ngram": 1, "copy": 3, "which": "latest"}],
    "assisted": [{}, {"start": 1, "confidence": 0.0}, {"start": 9, "confidence": 0.9, "drafts": "greedy"}],
    "lookahead": [{}, {"level": 2, "window": 3, "guesses": 2}, {"level": 8, "window": 20, "guesses": 12}],
    "ouroboros": [
        {},
        {"gamma": 12, "level": 7, "window": 20, "guesses": 20},
        {"gamma": 1, "level": 2, "phrases": 8, "window": 2},
        {"phrases": 0},
    ],
    "dsi": [{}, {"lookahead": 32, "sp": 1}, {"acceptance": "rejection"}],
    "ems": [
        {},
        {"base": "speculative"},
        {"base": "speculative", "width": 3},
        {"match": 1, "unpad_inputs": False, "unpad_kv": False},
    ],
    "tree": [{}, {"width": 1, "depth": 4}, {"width": 12, "depth": 5}, {"width": 3, "drafts": "greedy"}],
    "easyspec": [
        {"size": 1},
        {"size": 2, "calibrate": False},
        {"size": 3, "width": 4, "gamma": 3},
        {"size": 3, "width": 3, "drafts": "greedy", "devices": 1},
    ],
    "medusa": [{}, {"tree": "eagle", "heads": 2}, {"acceptance": "typical"}],
    "hydra": [{}],
    "eagle": [{}, {"tree": "medusa", "drafts": "greedy"}],
    "eagle2": [{}, {"top": 2, "depth": 8, "total": 9}],
    "parallelspec_medusa": [{}, {"masks": 1}],
    "parallelspec_eagle": [{}, {"masks": 2, "drafts": "greedy"}],
    "pearl": [
        {"gamma": 1},
        {"gamma": 4},
        {"gamma": 3, "guesses": 4, "placement": "co-located"},
        {"gamma": 3, "placement": "pipeline"},
        {"gamma": 3, "pre_verify": False},
        {"gamma": 3, "post_verify": False},
    ],
}
"""Configs of each method; other methods run with their defaults."""
CASES = [(key, config) for key in METHODS for config in CONFIGS.get(key, [{}])]
FAMILIES = ("llama3-rope", "mistral-window", "qwen2", "qwen3")
lossless = pytest.mark.parametrize(("method", "config"), CASES, ids=str)


def runs_a_drafter(method: str, config: dict[str, object]) -> bool:
    """Return whether a model drafts: neither copies nor a drafting head."""
    registered = METHODS[method]
    return "drafter" in registered.uses and not registered.layout(registered.configure(config)).head


def on(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    """Run a test on pairs: on the first pair all cases, on the others those that may differ there.

    Another drafter matters to cases that run a drafter; another family to two configs of each
    method.
    """
    cases = [
        (pair, method, config)
        for pair in pairs
        for method, config in CASES
        if pair == OTHER
        or (pair[0] == FAMILIES[0] and runs_a_drafter(method, config))
        or (pair[0] != FAMILIES[0] and config in CONFIGS.get(method, [{}])[:2])
    ]
    return pytest.mark.parametrize(
        ("tiny_cluster", "method", "config"), cases, ids=str, indirect=["tiny_cluster"]
    )


OTHER, RIGHT, WRONG = ((FAMILIES[0], drafter) for drafter in DRAFTERS)
_generated: dict[tuple[object, ...], list[int]] = {}


def generate(model, prompt: list[int], new: int, eos: int | list[int] | None = None) -> list[int]:
    """Return the token ids that transformers generates at temperature 0."""
    key = (model, tuple(prompt), new, str(eos))  # not id(model), which may be reused
    if key not in _generated:
        _generated[key] = _generate(model, prompt, new, eos)
    return _generated[key]


def _generate(model, prompt: list[int], new: int, eos: int | list[int] | None) -> list[int]:
    config = copy.deepcopy(model.generation_config)
    config.update(max_new_tokens=new, do_sample=False, eos_token_id=eos, pad_token_id=0)
    out = model.generate(
        torch.tensor([prompt]), generation_config=config, attention_mask=torch.ones(1, len(prompt))
    )
    return out[0, len(prompt) :].tolist()


def assert_same(model, prompt: list[int], mine: list[int], theirs: list[int]) -> None:
    """Check that two texts are equal, or differ first where the target's best logits tie."""
    if mine == theirs:
        return
    n = next(
        (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
    )
    exact = copy.deepcopy(model).double()
    top = exact(torch.tensor([prompt + theirs[:n]])).logits[0, -1].topk(2).values
    gap = float(top[0] - top[1])
    assert gap < 1e-4, (
        f"differs at token {n} ({mine[n : n + 3]} against {theirs[n : n + 3]}), top-2 gap {gap:.2e}"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def tiny_cluster(request, folder):
    pair, model = make_pair(folder, *request.param)
    pair = with_heads(pair, folder / f"heads-{request.param[0]}")
    with engine.open(pair, runtime="local-thread", device="cpu") as cluster:
        yield cluster, model, request.param[1]


@on(*((family, "other") for family in FAMILIES), RIGHT, WRONG)
def test_text_of_tiny_models_of_every_family(tiny_cluster, method, config):
    cluster, model, drafter = tiny_cluster
    short = [([5], 20), ([3, 9], 1), ([7, 8, 9], 2)]
    if model.config.model_type != "llama" or drafter == "wrong":
        short = []
    for prompt, new in (*short, (list(range(20, 31)), 33)):
        trace = cluster.run(method, prompt, config=config, limits=Limits(new))
        assert_same(model, prompt, trace.token_ids(), generate(model, prompt, new))
        fuzzy = {part.span for part in trace.parts}
        tested = [d for d in trace.decisions if d.node >= 0 and d.outcome != "discarded" and d.top_q]
        tested = [d for d in tested if d.draft_span not in fuzzy]
        best = {d.outcome for d in tested if d.token == d.top_q[0][0]}
        if drafter != "other" and tested:
            assert best == {"accepted" if drafter == "right" else "rejected"}


@on(OTHER, RIGHT, WRONG)
def test_eos_inside_a_draft_ends_the_text(tiny_cluster, method, config):
    cluster, model, _ = tiny_cluster
    prompt = list(range(40, 45))
    unlimited = generate(model, prompt, 24)
    for eos in list(dict.fromkeys(unlimited))[2:5:2]:
        trace = cluster.run(method, prompt, config=config, limits=Limits(24, eos=(eos,)))
        assert_same(model, prompt, trace.token_ids(), generate(model, prompt, 24, eos))
        if trace.token_ids()[-1] == eos:
            assert trace.footer.reasons == ("eos",)
            printable = [token for token in trace.token_ids()[:-1] if 0 < token < 96]
            assert trace.text == "".join(chr(33 + token) for token in printable)


STOPPED = [50, 51, 52]


@pytest.fixture(scope="module")
def unlimited(tiny_cluster):
    """Return the text of the prompt without stop strings."""
    return tiny_cluster[0].run("autoregressive", STOPPED, limits=Limits(16)).text


@on(OTHER, RIGHT)
def test_a_stop_string_inside_a_draft_is_cut(tiny_cluster, unlimited, method, config):
    cluster, _, _ = tiny_cluster
    for stop in (unlimited[:1], unlimited[4:9], "absent"):
        trace = cluster.run(method, STOPPED, config=config, limits=Limits(16, stop=(stop,)))
        assert trace.text == unlimited.partition(stop)[0]
        assert "".join(c.text for c in trace.commits) == trace.text
        assert trace.footer.reasons == (("stop",) if stop in unlimited else ("length",))


@pytest.fixture(scope="module")
def bundled(folder):
    pair = with_heads(Pair.find("bundled"), folder / "heads-bundled")
    model = AutoModelForCausalLM.from_pretrained(pair.target_path, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    with engine.open(pair, runtime="local-thread", device="cpu") as cluster:
        yield cluster, model


@lossless
def test_text_of_the_bundled_pair(bundled, method, config):
    cluster, model = bundled
    prompt, new = "Tell me a story about a dragon.", 40
    ids = cluster.pair.encode(prompt)
    trace = cluster.run(method, prompt, config=config, limits=Limits(new))
    assert trace.header.prompt_ids == (tuple(ids),)
    expected = generate(model, ids, new, list(cluster.pair.eos))
    assert_same(model, ids, trace.token_ids(), expected)


WARM = Sampling(temperature=0.9, top_k=60, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def warm_text(bundled):
    return bundled[0].run("autoregressive", "Tell me a joke.", sampling=WARM, limits=Limits(28)).token_ids()


@lossless
def test_rule_2_gives_the_text_of_autoregressive_above_temperature_0(bundled, warm_text, method, config):
    fields = {s.name: s for s in METHODS[method].settings()}
    if "greedy" in getattr(fields.get("drafts"), "choices", ()):
        config = {**config, "drafts": "greedy"}
    cluster, _ = bundled
    trace = cluster.run(method, "Tell me a joke.", config=config, sampling=WARM, limits=Limits(28))
    if any(d.rule == "ratio" for d in trace.decisions) or not trace.header.lossless:
        return  # rule 1 keeps the distribution, not the text; a lossy rule keeps neither
    assert trace.token_ids() == warm_text


def test_a_seed_repeats_its_text_and_another_seed_differs(bundled):
    cluster, _ = bundled

    def text(seed):
        return cluster.run(
            "speculative", "Tell me a joke.", sampling=Sampling(1.0, seed=seed), limits=Limits(40)
        ).text

    assert text(1) == text(1)
    assert text(1) != text(2)
