"""Models without weights, called through the LanguageModel interface like in a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from specscope.engine.errors import UsageError
from specscope.engine.model.language import LanguageModel
from specscope.engine.model.slots import Rows
from specscope.engine.simulate.oracle import Scripted, bernoulli_models
from specscope.engine.simulate.recorded import recorded_pair
from specscope.engine.trace.events import Commit, Decision, Header
from specscope.engine.trace.trace import Trace
from tests.engine.worker.harness import scripted_pair


def along(model: LanguageModel, path: Sequence[int], first: int = 0, slot: int = 0) -> torch.Tensor:
    """Return the logits after each token of a path, from number `first` on."""
    cache = model.new_cache(slot + 1, len(path))
    return model.forward(cache, Rows.chain(slot, path, 0), np.arange(first, len(path))).logits


def after(model: LanguageModel, path: Sequence[int], slot: int = 0) -> int:
    return int(along(model, path, len(path) - 1, slot)[0].argmax())


def text(model: LanguageModel, prompt: Sequence[int], n: int, slot: int = 0) -> list[int]:
    cache = model.new_cache(slot + 1, len(prompt) + n)
    rows, tokens = list(prompt), list[int]()
    for _ in range(n):
        start = cache.length(slot)
        out = model.forward(cache, Rows.chain(slot, rows, start), np.array([len(rows) - 1]))
        rows = [int(out.logits[0].argmax())]
        tokens += rows
    return tokens


known_text = cache(text)


def agreements(target, drafter, prompt: Sequence[int], n: int, slot: int = 0) -> list[bool]:
    """Return for each of n positions of the target's text whether the drafter agrees."""
    path = [*prompt, *known_text(target, tuple(prompt), n, slot)][:-1]
    tokens = [along(m, path, len(prompt) - 1, slot).argmax(1) for m in (target, drafter)]
    return (tokens[0] == tokens[1]).tolist()


def ranks_and_logits(
    n: int, rates: Sequence[float], vocab_size: int = 128, **options: float
) -> tuple[np.ndarray, torch.Tensor]:
    """Return the target's place among the drafter's tokens at n positions, and the logits."""
    target, drafter = bernoulli_models(rates, vocab_size, 1, 5, **options)
    logits = [along(m, [1, *text(target, [1], n - 1)]) for m in (target, drafter)]
    order = logits[1].argsort(1, descending=True)
    return (order == logits[0].argmax(1)[:, None]).float().argmax(1).numpy(), logits[1]


class TestScripted:
    def test_logits_are_one_certain_token(self):
        model, _ = scripted_pair(lambda path: int(path.sum()) % 11, lambda _: 3, vocab_size=11)
        cache = model.new_cache(1, 8)
        out = model.forward(cache, Rows.chain(0, [4, 5, 9], 0), np.array([2, 0]))
        assert out.logits.shape == (2, 11)
        assert out.logits.dtype.is_floating_point
        assert out.logits.argmax(1).tolist() == [18 % 11, 4]  # in the order asked for
        assert sorted(set(out.logits.flatten().tolist())) == [-1e4, 0]
        hottest = (out.logits / 10).softmax(-1)  # the highest temperature there is
        assert hottest.max(1).values.tolist() == [1, 1]
        assert hottest.sum().item() == 2
        assert out.hidden == {}

    def test_paths_follow_the_tree_and_the_slot(self):
        digits = lambda path: int(path @ 10 ** np.arange(len(path))[::-1])  # noqa: E731
        model, _ = scripted_pair(digits, lambda _: 0, 10_000)
        cache = model.new_cache(2, 8)
        rows = [Rows.of(1, [7], [-1]), Rows.of(0, [1, 2, 3, 4], [-1, 0, 0, 1])]  # 1 -> 2 -> 4 and 1 -> 3
        out = model.forward(cache, Rows.join(rows), np.arange(5))
        assert out.logits.argmax(1).tolist() == [7, 1, 12, 13, 124]
        more = model.forward(cache, Rows.of(0, [5], [2]), np.array([0]))
        assert more.logits.argmax(1).tolist() == [135], "hung on cached row 2, which is 1 -> 3"

    def test_wrong_use(self):
        model = Scripted("target", lambda path, _: int(path[-1]), 4, context=6)
        with pytest.raises(UsageError, match="no hidden states"):
            model.forward(model.new_cache(1, 4), Rows.chain(0, [1], 0), np.array([0]), hidden=(1,))
        with pytest.raises(UsageError, match="returned token 4; its vocabulary is 0 to 3"):
            after(model, [4])
        with pytest.raises(UsageError, match="context is 6"):
            after(model, [1] * 7)


class TestBernoulli:
    @pytest.mark.parametrize("rate", [0.0, 0.35, 0.8, 1.0])
    def test_the_drafter_agrees_at_the_rate_given(self, rate: float):
        target, drafter = bernoulli_models((rate,), 100, prompt_length=2, seed=3)
        agreed = np.array(agreements(target, drafter, [5, 6], 1500))
        assert agreed.mean() == pytest.approx(rate, abs=0.04 if 0 < rate < 1 else 0)
        if 0 < rate < 1:  # positions are independent
            for before in (agreed[:-1], ~agreed[:-1]):
                assert agreed[1:][before].mean() == pytest.approx(rate, abs=0.07)

    def test_seed_and_sequence_alone_choose_the_text_and_the_pattern(self):
        pair, same, other = (bernoulli_models((0.5,), 64, 1, seed) for seed in (9, 9, 10))
        assert text(pair[0], [1], 40) == text(same[0], [1], 40) == text(pair[0], [1], 40)
        assert agreements(*pair, [1], 40) == agreements(*same, [1], 40)
        assert text(pair[0], [1], 40) not in (text(other[0], [1], 40), text(pair[0], [1], 40, slot=1))
        patterns = agreements(*other, [1], 40), agreements(*pair, [1], 40, slot=1)
        assert agreements(*pair, [1], 40) not in patterns

    def test_the_seed_of_a_run_and_the_number_of_a_sequence_are_added(self):
        target, _ = bernoulli_models((0.5,), 64, 1)

        def tokens(seed: int, sequence: int) -> list[int]:
            cache = target.new_cache(1, 20)
            cache.reset(0, sequence)
            cache.seed = seed
            return target.forward(cache, Rows.chain(0, range(20), 0), range(20)).logits.argmax(1).tolist()

        assert tokens(0, 0) != tokens(1, 0) == tokens(0, 1)

    @pytest.mark.parametrize("doubt", [0.0, 0.5])
    def test_second_choices_miss_the_target_by_a_power_law(self, doubt: float):
        ranks, logits = ranks_and_logits(2000, (0.6,), doubt=doubt)
        assert (ranks == 0).mean() == pytest.approx(0.6, abs=0.03)
        for choices in (1, 2, 3, 8):
            assert (ranks[ranks > 0] > choices).mean() == pytest.approx((1 + choices) ** -0.7, abs=0.04)
        certain = (logits / 10).softmax(-1).max(1).values
        assert (certain == 1).all() == (not doubt)

    def test_doubts_are_right_on_average(self):
        ranks, logits = ranks_and_logits(2000, (0.7,), doubt=0.5)
        q = logits.softmax(-1).sort(1, descending=True).values
        for rank in range(4):
            assert float(q[:, rank].mean()) == pytest.approx((ranks == rank).mean(), abs=0.03)
        easy = q[:, 0].numpy() > 0.8
        assert easy.mean() == pytest.approx(0.7, abs=0.03)
        assert (ranks[easy] == 0).mean() == pytest.approx(0.85, abs=0.03)
        assert (ranks[~easy] == 0).mean() == pytest.approx(0.35, abs=0.05)

    def test_tokens_cover_the_vocabulary_without_those_to_avoid(self):
        target, drafter = bernoulli_models((0.5,), 8, 1, 0, avoid=[0, 5])
        tokens = set(text(target, [1], 300)) | set(text(drafter, [1], 300))
        assert tokens == {1, 2, 3, 4, 6, 7}

    def test_several_drafters_err_independently_and_the_first_is_that_of_a_pair(self):
        target, *drafters = bernoulli_models((0.5, 0.5, 0.8), 64, 1, 9)
        right = np.array([agreements(target, drafter, [1], 1500) for drafter in drafters])
        assert right[0].tolist() == agreements(*bernoulli_models((0.5,), 64, 1, 9), [1], 1500)
        assert right.mean(1) == pytest.approx([0.5, 0.5, 0.8], abs=0.04)
        assert (right[0] & right[1]).mean() == pytest.approx(0.25, abs=0.04)

    def test_wrong_arguments(self):
        for rate, size, options, message in (
            (1.5, 100, {}, r"acceptance rate is 1\.5; it must be at least 0 and at most 1"),
            (0.5, 3, {"avoid": [0, 1]}, "tokens to choose from is 1; it must be at least 2"),
            (0.5, 8, {"doubt": 1.5}, "doubt is 1.5"),
            (0.5, 8, {"misses": 0.0}, "misses is 0"),
        ):
            with pytest.raises(UsageError, match=message):
                bernoulli_models((rate,), size, **options)


def recorded(**limits: object) -> Trace:
    """Return a trace of speculative decoding with gamma 3 and two sequences."""
    prompts = ((1, 2), (3,))
    sampling = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 5}
    names = ("run-1", "", "speculative", "", {}, ("", ""))
    header = Header(*names, prompts, sampling, limits, "local-thread", "", (), "", "")
    trace = Trace(header)

    def decide(sequence: int, position: int, token: int, outcome: str) -> None:
        trace.add(Decision(1, sequence, 0, -1, position, token, None, None, None, "match", outcome, 0, 0))

    # Sequence 0, drafted: 10 11 99 -> 12 corrected; 13 14 15 -> 16 bonus;
    # 98 96 97 -> 17 corrected.
    for position, token, outcome in [
        *((2, 10, "accepted"), (3, 11, "accepted"), (4, 99, "rejected")),
        *((5, 13, "accepted"), (6, 14, "accepted"), (7, 15, "accepted")),
        *((9, 98, "rejected"), (10, 96, "discarded"), (11, 97, "discarded")),
    ]:
        decide(0, position, token, outcome)
    for i, token in enumerate(range(10, 18)):
        trace.add(Commit(1, 0, 2 + i, token, "accepted", "", 0))
    # sequence 1: a tree with two children at its root, the second accepted
    decide(1, 1, 50, "rejected")
    decide(1, 1, 51, "accepted")
    for i, token in enumerate((51, 52)):
        trace.add(Commit(1, 1, 1 + i, token, "accepted", "", 0))
    return trace


class TestRecorded:
    def test_the_target_returns_the_recorded_text_of_each_sequence(self):
        target, _ = recorded_pair(recorded())
        assert text(target, [1, 2], 8) == list(range(10, 18))
        assert text(target, [3], 2, slot=1) == [51, 52]

    def test_after_the_end_the_target_returns_the_eos_or_the_last_token(self):
        target, drafter = recorded_pair(recorded())
        assert text(target, [3], 5, slot=1) == [51, 52, 52, 52, 52]
        target, drafter = recorded_pair(recorded(eos=(40, 41)))
        assert text(target, [3], 5, slot=1) == [51, 52, 40, 40, 40]
        assert target.vocab_size == drafter.vocab_size == 100  # of 99, the rejected draft

    def test_the_drafter_returns_the_recorded_drafts(self):
        _, drafter = recorded_pair(recorded())
        path = [1, 2, *range(10, 18)]
        proposed = {position: after(drafter, path[:position]) for position in (2, 3, 4, 5, 6, 7, 9)}
        assert proposed == {2: 10, 3: 11, 4: 99, 5: 13, 6: 14, 7: 15, 9: 98}
        assert after(drafter, [3], slot=1) == 51  # the accepted sibling, not the first

    def test_untested_positions_agree_at_the_runs_rate(self):
        """6 of 8 tested positions were accepted; positions after the end are untested ones."""
        target, drafter = recorded_pair(recorded(eos=(40,)))
        agreed = agreements(target, drafter, [1, 2, *range(10, 18)], 1500)
        assert np.mean(agreed) == pytest.approx(6 / 8, abs=0.04)

    def test_off_the_text_both_return_other_tokens(self):
        target, drafter = recorded_pair(recorded())
        stray = [1, 2, 10, 77]
        assert text(target, stray, 6) != list(range(12, 18))
        assert text(target, stray, 6) == text(target, stray, 6)
        assert all(0 <= token < 100 for token in text(drafter, stray, 50))

    def test_another_prompt_is_refused(self):
        target, drafter = recorded_pair(recorded())
        message = "sequence {} has another prompt than the recorded run run-1"
        for model, prompt, slot in (
            (target, [1, 9], 0),
            (drafter, [1], 0),
            (target, [1, 2], 1),
            (target, [3], 2),
        ):
            with pytest.raises(UsageError, match=message.format(slot)):
                after(model, prompt, slot)

    def test_a_run_without_drafts_or_tokens_cannot_be_replayed(self):
        trace = recorded()
        trace.decisions = [d for d in trace.decisions if d.outcome == "discarded"]
        with pytest.raises(UsageError, match="run-1 tested no draft"):
            recorded_pair(trace)
        trace.commits = []
        with pytest.raises(UsageError, match="run-1 has no tokens"):
            recorded_pair(trace)


def test_with_doubts_the_drafter_has_the_recorded_q():
    trace = recorded()
    trace.decisions = [replace(d, q=0.3 if d.position == 3 else 1e-9) for d in trace.decisions]
    _, drafter = recorded_pair(trace, doubts=True)

    def q(path: list[int]) -> tuple[int, float]:
        p = along(drafter, path, len(path) - 1)[0].double().softmax(-1)
        return int(p.argmax()), float(p.max())

    assert q([1, 2, 10]) == (11, pytest.approx(0.3))
    assert q([1, 2]) == (10, pytest.approx(2 / 100))  # still the most probable token
    token, certainty = q([1, 2, *range(10, 16)])  # the bonus token: the q of another draft
    assert token in range(100)
    assert any(certainty == pytest.approx(known) for known in (0.3, 2 / 100))
    trace.decisions = [replace(d, q=None) for d in trace.decisions]
    _, drafter = recorded_pair(trace, doubts=True)
    assert 0.999 < q([1, 2, 10])[1] < 1
