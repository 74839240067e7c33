"""Every method that SmolLM2 can run gives the text of transformers' greedy `generate`.

The methods are those without a head, and those for which the pair stores one; the drafter is the
target's own weights in fewer bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import specscope
from specscope.engine.checkpoints.catalog import stored_heads
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster import probing
from specscope.engine.cluster.session import Cluster
from specscope.engine.methods import METHODS
from tests.conftest import USER_CACHE

NAME, TOKENS = "smollm2", 16
FOLDER = USER_CACHE / "models" / NAME
PROMPT = "Repeat this sentence: the old library by the harbour opens at nine in the morning."
"""A prompt whose answer copies from it, so that copied drafts are accepted."""

if not FOLDER.is_dir():
    pytest.skip(
        f"{NAME} is not on this machine; `specscope models get {NAME}` downloads it (93 MB)",
        allow_module_level=True,
    )


def offered(key: str) -> bool:
    """Return whether the pair has the head that a method needs, if any."""
    layout = METHODS[key].layout(METHODS[key].Config())
    return not layout.head or layout.head in stored_heads(NAME)


OFFERED = [key for key in METHODS if offered(key)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The pair; its drafts are planned from two rounds, as their shape changes no text."""
    pair = Pair.find(NAME, resolve=lambda _: FOLDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "VERIFY_S", 0.1)
        patch.setattr(probing, "BUDGET_S", 0.0)
        patch.setattr(probing, "FEWEST", 2)
        with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
            yield cluster


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> list[int]:
    """Return the token ids of transformers' greedy answer."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    ids = torch.tensor([cluster.pair.encode(PROMPT)])
    answer = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=2)
    return answer[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("key", OFFERED)
def test_a_method_writes_the_greedy_text_of_transformers(
    cluster: Cluster, expected: list[int], key: str
) -> None:
    trace = cluster.run(key, PROMPT, limits=specscope.Limits(max_new_tokens=TOKENS))
    assert trace.token_ids() == expected


def test_copied_drafts_save_target_forwards(cluster: Cluster) -> None:
    trace = cluster.run("prompt_lookup", PROMPT, limits=specscope.Limits(max_new_tokens=TOKENS))
    assert len(trace.rounds) < TOKENS / 2
