"""Stand-ins with the methods and values of vLLM 0.32's runners, and a script of their steps."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import numpy as np
import torch

VOCAB = 16
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": None}


def params(**more: Any) -> Some:
    given = dict(
        **GREEDY,
        min_p=0,
        presence_penalty=0,
        frequency_penalty=0,
        repetition_penalty=1,
        min_tokens=0,
        logit_bias=None,
        allowed_token_ids=None,
        bad_words=None,
        thinking_token_budget=None,
        trace_decode_token_ids=None,
        repetition_detection=None,
        eos_token_id=0,
        stop_token_ids=[],
        stop=[],
        max_tokens=100,
    )
    return Some(**(given | more))


def new(name: str, prompt: list[int], known: list[int] | None = None, computed: int = 0, **more: Any) -> Some:
    return Some(
        req_id=name,
        prompt_token_ids=prompt,
        prefill_token_ids=known,
        num_computed_tokens=computed,
        sampling_params=params(**more),
    )


def scheduled(
    fed: dict[str, int],
    *,
    news: list[Some] | None = None,
    finished: tuple[str, ...] = (),
    computed: dict[str, int] | None = None,
    outputs: dict[str, int] | None = None,
) -> Some:
    """Return what a scheduler asks for; `outputs` are the tokens that it knows or expects."""
    cached = dict.fromkeys(outputs or {}, 0) | (computed or {})
    known = dict.fromkeys(cached, 100) | (outputs or {})
    return Some(
        scheduled_new_reqs=news or [],
        scheduled_cached_reqs=Some(
            req_ids=[*cached],
            num_computed_tokens=[*cached.values()],
            num_output_tokens=[*known.values()],
        ),
        num_scheduled_tokens=fed,
        finished_req_ids={*finished},
    )


class Play:
    """What the next step samples: for each request its draft, its ids, and rows of logits."""

    def __init__(self, **requests: tuple[list[int], list[int]]) -> None:
        self.requests = requests
        self.drafts = [len(draft) for draft, _ in requests.values()]
        self.logits = torch.zeros(sum(self.drafts) + len(requests), VOCAB)
        self.partial: list[int] = []
        self.ids = torch.full((len(requests), max([1, *(n + 1 for n in self.drafts)])), -1, dtype=torch.int32)
        for row, (_, ids) in enumerate(requests.values()):
            self.ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.flat = torch.tensor([t for draft, _ in requests.values() for t in draft], dtype=torch.int32)


class Async:
    """An output whose tensors are taken away when vLLM reads it, once."""

    def get_output(self) -> None:
        raise AssertionError("only vLLM may read its output")


class V1:
    """The first runner: samples in `_sample`, in place; drafts in `propose_draft_token_ids`."""

    device = torch.device("cpu")

    def __init__(self, *, q: bool = False) -> None:
        self.play = Play()
        self.q = q
        self.input_batch = Some(req_ids=[], vocab_size=VOCAB)
        self.discard_request_mask = Some(np=np.zeros(512, bool))
        self.state = None

    def execute_model(self, step: Some, intermediate: Any = None) -> Any:
        if not step.num_scheduled_tokens:
            return "empty"
        self.input_batch.req_ids = [*self.play.requests]
        self.discard_request_mask.np[:] = False
        self.discard_request_mask.np[self.play.partial] = True
        return None

    def sample_tokens(self, grammar: Any) -> Any:
        play = self.play
        drafts = Some(draft_token_ids=play.flat, num_draft_tokens=play.drafts) if sum(play.drafts) else None
        result = self._sample(play.logits, drafts)
        self.input_batch.req_ids = []  # the batch is vLLM's, and changes
        self.propose_draft_token_ids(result)
        taken = result.sampled_token_ids.clone()
        result.sampled_token_ids.fill_(-7)
        return Async(), taken

    def _sample(self, logits: Any, drafts: Any) -> Some:
        if drafts is not None:
            self._get_spec_decode_draft_probs(drafts)
        logits.fill_(-1e9)  # in place, as vLLM does
        return Some(sampled_token_ids=self.play.ids)

    def _get_spec_decode_draft_probs(self, drafts: Any) -> Any:
        return torch.full((len(drafts.draft_token_ids), VOCAB), 1 / VOCAB) if self.q else None

    def propose_draft_token_ids(self, result: Any) -> None:
        pass


class V2:
    """The second runner: samples in `sample`; its speculator drafts."""

    device = torch.device("cpu")

    def __init__(self, *, q: bool = False) -> None:
        self.play = Play()
        self.req_states = object()
        self.adaptive_verification = self.batch_sharder = self.pcp_manager = None
        self.sampler = Some(apply_sampling_params=lambda logits, *_: logits.fill_(-1e9))
        logits = torch.zeros(8, 4, VOCAB) if q else None
        self.speculator = Some(propose=lambda *_: None, draft_logits=logits)

    def execute_model(self, step: Some, intermediate: Any = None, dummy_run: bool = False) -> Any:
        return None if step.num_scheduled_tokens else "empty"

    def sample_tokens(self, grammar: Any) -> Any:
        play, rows, before = self.play, [], 0
        inputs, starts = [9, 9], [0]
        for draft, _ in play.requests.values():  # the last token, then the draft
            rows += range(len(inputs), len(inputs) + len(draft) + 1)
            inputs += [9, *draft]
            starts.append(before := before + len(draft) + 1)
        batch = Some(
            req_ids=[*play.requests],
            cu_num_logits_np=np.array(starts),
            input_ids=torch.tensor(inputs, dtype=torch.int32),
            logits_indices=torch.tensor(rows),
            idx_mapping=torch.arange(len(play.requests)),
        )
        result, counts, _ = self.sample(None, batch, grammar)
        self.speculator.propose(batch)
        taken = result.sampled_token_ids.clone()
        result.sampled_token_ids.fill_(-7)
        counts.fill_(-7)
        return Async(), taken

    def sample(self, hidden: Any, batch: Some, grammar: Any) -> tuple[Some, Any, Any]:
        self.sampler.apply_sampling_params(self.play.logits, None, batch.idx_mapping)
        counts = (self.play.ids >= 0).sum(-1)
        counts[self.play.partial] = 0
        ids = self.play.ids.masked_fill(self.play.ids < 0, 5)  # behind the count anything may stand
        return Some(sampled_token_ids=ids), counts, None


def config(**more: Any) -> Some:
    spec = {"method": "draft_model", "model": "drafter", "num_speculative_tokens": 3}
    spec |= {"draft_sample_method": "greedy", "rejection_sample_method": "standard"}
    parallel = {"world_size": 1, "tensor_parallel_size": 1, "prefill_context_parallel_size": 1}
    return Some(
        speculative_config=Some(**(spec | more.pop("spec", {}))),
        model_config=Some(model="target", tokenizer="", max_model_len=more.pop("longest", 1000)),
        scheduler_config=Some(max_num_seqs=8),
        parallel_config=Some(**(parallel | more.pop("parallel", {}))),
    )


def worker(runner: Any, rank: int = 0, **more: Any) -> Any:
    """Return a worker of a class of its own, as vLLM's wrapper has it."""

    class Wrapper:
        def __init__(self) -> None:
            self.global_rank = rank
            self.vllm_config = config(**more)
            self.worker = Some(model_runner=runner)

        def execute_model(self, step: Some) -> Any:
            return self.worker.model_runner.execute_model(step)

    return Wrapper
