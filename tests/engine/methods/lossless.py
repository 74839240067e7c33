"""Configs of every method and what the tests of lossless methods share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import METHODS
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.pairs import DRAFTERS, make_pair
from tests.engine.toy_methods import settings_of, spelled_out

CONFIGS = """
speculative: gamma=1 | gamma=5 | gamma=4 schedule=threshold | gamma=4 schedule=average off_below=0.2
llma: | match=1 copy=12 | match=1 reference="once upon a time, the fox!"
prompt_lookup: | ngram=1 copy=3 which=latest
suffix: | depth=64 factor=3.0 least=0.0 | depth=2 offset=1.0 finished=0
hybrid: | gamma=1 offset=2.0 least=0.0 | weigh=seconds c=2.0
assisted: | start=1 confidence=0.0 | start=9 confidence=0.9 drafts=greedy | schedule=constant
lookahead: | level=2 window=3 guesses=2 | level=8 window=20 guesses=12
ouroboros: | gamma=12 level=7 window=20 guesses=20 | gamma=1 level=2 phrases=8 window=2 | phrases=0
dsi: | lookahead=64 sp=1 | acceptance=rejection | drafts=sampled
ssd: gamma=3 | gamma=4 forks=2 backup=none | gamma=5 fanout=geometric forks=2 saguaro=0.3
ssd: fanout=[1,2,4] drafts=greedy | gamma=4 forks=2 schedule=threshold
ssd: gamma=4 forks=2 schedule=average off_below=0.2
ems: | base=speculative | base=speculative width=3 | match=1 unpad_inputs=False unpad_kv=False
tree: | width=1 depth=4 | width=12 depth=5 | width=3 drafts=greedy
easyspec: size=2 calibrate=False | size=1 | size=3 width=4 gamma=3 | size=3 width=3 drafts=greedy devices=1
medusa: | tree=eagle heads=2 | acceptance=typical
hydra:
eagle: | tree=medusa drafts=greedy
eagle2: | top=2 depth=8 total=9
parallelspec_medusa: | masks=1 | first=mask
parallelspec_eagle: | masks=2 drafts=greedy
mtp: | gamma=2 drafts=greedy | confidence=0.02
dflash: | gamma=2 drafts=greedy | confidence=0.02
specbranch: gamma=4 length=4 threshold=0.5 | gamma=2 length=6 threshold=0.9 branches=8 drafts=greedy
specbranch: gamma=3 length=1 branches=1 threshold=0.0 placement=co-located |
pearl: gamma=1 | gamma=4 | gamma=3 guesses=4 placement=co-located | gamma=3 placement=pipeline
pearl: gamma=4 placement=pipeline post_verify=False | gamma=4 schedule=threshold
pearl: gamma=4 schedule=average off_below=0.2 | gamma=4 schedule=threshold placement=pipeline
pearl: gamma=3 pre_verify=False | gamma=3 post_verify=False | gamma=3 pre_verify=False post_verify=False
"""
"""Settings of methods, `|` between them; other methods run with their defaults."""
_GIVEN = [settings_of(words) for words in spelled_out(CONFIGS)]
CASES = [
    (key, config)
    for key in METHODS
    for config in [given for method, given in _GIVEN if method == key] or [dict[str, object]()]
]
ONE_EACH = [next(case for case in CASES if case[0] == key) for key in METHODS]
FAMILIES = ("llama3-rope", "mistral-window", "qwen2", "qwen3", "bundled", "qwen2-moe")
OTHER, RIGHT, WRONG = ((FAMILIES[0], drafter) for drafter in DRAFTERS)


def runs_a_drafter(method: str, config: dict[str, object]) -> bool:
    """Return whether a model drafts: neither copies nor a drafting head."""
    registered = METHODS[method]
    return "drafter" in registered.uses and not registered.layout(registered.configure(config)).head


def covered() -> Iterator[tuple[tuple[str, str], str, dict[str, object]]]:
    """Yield (pair, method, config) so that every config, and every method on every pair, is met.

    Every config has the first pair. If it runs a drafter it has a right or a wrong one, by turns,
    too, and its method's first config both. On each other family a method has another config, and
    two with a sliding window, which may end inside a draft.
    """
    for method in METHODS:
        configs = [config for key, config in CASES if key == method]
        for i, config in enumerate(configs):
            yield OTHER, method, config
            if runs_a_drafter(method, config):
                yield from (
                    (pair, method, config) for pair in ((RIGHT, WRONG) if not i else ((RIGHT, WRONG)[i % 2],))
                )
        for i, family in enumerate(FAMILIES[1:]):
            yield (family, "other"), method, configs[i % len(configs)]
        if len(configs) > 1:
            yield (FAMILIES[1], "other"), method, configs[-1]


def on(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    cases = [case for case in covered() if case[0] in pairs]
    return pytest.mark.parametrize(("pair", "method", "config"), cases, ids=str)


def rule_2() -> pytest.MarkDecorator:
    """Run a test on a config of each method that rule 2 judges above temperature 0.

    Its drafts are greedy. All configs are in `tests/engine/test_joint.py`.
    """
    always_sampled = {"acceptance": "rejection"}, {"base": "speculative"}
    cases = dict[str, dict[str, object]]()
    for method, config in CASES:
        drafts = next((s.choices for s in METHODS[method].settings() if s.name == "drafts"), ())
        if "greedy" in drafts:
            cases.setdefault(method, {**config, "drafts": "greedy"})
        elif method != "pearl" and not any(choice.items() <= config.items() for choice in always_sampled):
            cases.setdefault(method, config)
    return pytest.mark.parametrize(("method", "config"), cases.items(), ids=str)


_generated: dict[tuple[object, ...], list[int]] = {}


def generate(model, prompt: list[int], new: int, eos: int | list[int] | None = None) -> list[int]:
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


@contextmanager
def opened_clusters(
    folder: Path,
) -> Generator[Callable[[tuple[str, str]], tuple[specscope.Cluster, torch.nn.Module]]]:
    """(family, drafter) -> a cluster with heads and its target, opened at first use."""
    with ExitStack() as opened:

        @cache
        def cluster(pair: tuple[str, str]) -> tuple[specscope.Cluster, torch.nn.Module]:
            if pair[0] == "bundled":
                found = Pair.find("bundled")
                model = AutoModelForCausalLM.from_pretrained(found.target_path, dtype=torch.float32)
            else:
                found, model = make_pair(folder, *pair)
            found = with_heads(found, folder / f"heads-{pair[0]}")
            return opened.enter_context(specscope.open(found, runtime="local-thread", device="cpu")), model

        yield cluster
