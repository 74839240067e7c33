"""What the tests of `specscope.watch` share: small random models, calls of generate, tokenizers."""

import string
from itertools import pairwise

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ENDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
NOISE = 0.15
"""Of the drafter's weights, in standard deviations of the target's."""


def neox(vocab):
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=vocab, max_position_embeddings=256, **SIZES, **ENDS))


def phimoe(vocab):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1}
    return PhimoeForCausalLM(PhimoeConfig(vocab_size=vocab, **experts, **SIZES, **ENDS))


def t5(vocab):
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=vocab, decoder_start_token_id=0, **sizes, **{**ENDS, "bos_token_id": None})
    )


ARCHITECTURES = {"GPTNeoX": neox, "Phimoe": phimoe, "T5": t5}
CALLS = {
    "plain": ({}, {}),
    "constant": ({}, {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant"}),
    "heuristic": ({}, {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"}),
    "threshold": ({}, {"num_assistant_tokens": 8, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.2,  }),
    "lookup": ({"prompt_lookup_num_tokens": 3}, {}),
}  # fmt: skip
"""Name of a call -> the arguments of generate, and the assistant's settings if it has one."""


def pair_of(name, vocab=64, seed=0, **settings):
    """Return a target, and a drafter with its weights and some noise; both are sharply decided."""
    torch.manual_seed(seed)
    target, drafter = (ARCHITECTURES[name](vocab).eval() for _ in range(2))
    with torch.no_grad():
        for weight in target.parameters():
            if weight.dim() > 1:
                weight *= 4
        if not target.config.tie_word_embeddings:
            target.get_output_embeddings().weight *= 8
        drafter.load_state_dict(target.state_dict())
        for weight in drafter.parameters():
            if weight.dim() > 1:
                weight += NOISE * weight.std() * torch.randn_like(weight)
    set_up(drafter, **settings)
    return target, drafter


def set_up(drafter, **settings):
    """Set the drafter's settings; transformers reads them from its generation config."""
    for key, value in {"assistant_confidence_threshold": 0.0, **settings}.items():
        setattr(drafter.generation_config, key, value)


def generated(target, ids=None, seed=3, **call):
    """Return the output's tokens, without the decoder's first one."""
    ids = torch.tensor([PROMPT]) if ids is None else ids
    torch.manual_seed(seed)
    settings = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    output = target.generate(ids, **{**settings, **call})
    start = 1 if target.config.is_encoder_decoder else ids.shape[1]
    return output[0, start:].tolist()


def check_rounds(trace):
    """The output is the accepted tokens and the target's own ones, round by round."""
    start = len(trace.header.prompt_ids[0])
    assert [c.position for c in trace.commits] == [start + i for i in range(len(trace.commits))]
    for r in trace.rounds:
        commits = [c for c in trace.commits if c.step == r.step]
        decided = [d for d in trace.decisions if d.step == r.step]
        accepted = [d.token for d in decided if d.outcome == "accepted"]
        own = [d.token for d in decided if d.node < 0]
        assert (len(accepted), len(commits)) == (r.accepted, r.emitted)
        assert [c.token for c in commits] == accepted + own
        assert len([d for d in decided if d.node >= 0]) == r.drafted
    ends = sorted((s.start, s.end) for s in trace.spans)
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    times = {s.id: s for s in trace.spans}
    assert all(d.draft_span in times for d in trace.decisions if d.node >= 0)
    assert all(times[r.span].end <= r.time for r in trace.rounds)


def hooks(model):
    """Return the numbers of hooks of a model."""
    return len(model._forward_hooks), len(model._forward_pre_hooks)


def _tokenizer(vocabulary, split=pre_tokenizers.Split("", "isolated")):  # noqa: B008
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="?"))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


def characters():
    """A token for each lower-case letter, the space and the digits."""
    return _tokenizer(["?", " ", *string.ascii_lowercase, *string.digits])


def letters():
    """The letters and the space with other ids, and some further characters."""
    return _tokenizer(["?", *reversed(string.ascii_lowercase), ".", ",", " "])


def words():
    return _tokenizer(
        ["?", *(f"w{i} " for i in range(63))], pre_tokenizers.Split(" ", "merged_with_previous")
    )
