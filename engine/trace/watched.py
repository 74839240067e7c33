"""The recording of one call of transformers' `generate`: what its hooks see, as rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from specscope.engine.errors import UsageError
from specscope.engine.trace.appended import KeptLines, Lines
from specscope.engine.trace.chances import chances, common
from specscope.engine.trace.events import Status
from specscope.engine.trace.generators import (
    SHARED,
    cached_of,
    config_of,
    layers_of,
    looks_up,
    rule_of,
    sampling_of,
    shape_of,
    title_of,
)
from specscope.engine.trace.record import record
from specscope.engine.trace.recorder import Recorder
from specscope.engine.trace.work import OpenSpan

RUNTIME = "transformers"
WORK = {"drafter": "draft", "target": "verify"}


class WatchedDraft(NamedTuple):
    """The tokens of a round that are to be judged; empty in plain generation."""

    tokens: list[int]
    spans: list[int]
    """The span that drafted each token."""
    logits: torch.Tensor | None
    """The drafter's (tokens, vocabulary), as drawn from; None without a distribution."""


NO_DRAFT = WatchedDraft([], [], None)


class Call:
    """One call of `generate` of a target, with its assistant if there is one."""

    def __init__(
        self,
        model: Any,
        assistant: Any,
        decode: Callable[[list[int]], str] | None,
        lines: Lines | KeptLines,
    ) -> None:
        self.model, self.assistant = model, assistant
        self.drafting = False
        """Whether a candidate generator is at work; forwards are then the drafter's."""
        self._decode, self._lines = decode, lines
        self._rec: Recorder | None = None
        self._ended: list[bool] = []
        """Whether each sequence has ended."""
        self._prompted: set[str] = set()
        """Sides that have read the prompt."""
        self._open: OpenSpan | None = None
        self._forwards: list[int] = []
        """Spans of the forwards since the last round, of the side that is at work."""
        self._drafter: Any = None
        """The model that drafts; None without one."""
        self._draft, self._scores = NO_DRAFT, None

    @property
    def begun(self) -> bool:
        return self._rec is not None

    @property
    def running(self) -> bool:
        """Whether the output still grows."""
        return self._rec is not None and not all(self._ended)

    def begin(self, ids: torch.Tensor, settings: Any, kwargs: Any, generator: Any = None) -> None:
        """Open the recording.

        Args:
            ids: The prompts (sequences, tokens).
            settings: The call's generation config.
            kwargs: The arguments of the model's forwards.
            generator: The candidate generator; None for plain generation.
        """
        self._check(settings, kwargs)
        self._drafter = self._drafter_of(generator)
        self._settings, self._length, self._rows = settings, ids.shape[1], 0 if looks_up(generator) else -1
        rule, lossless = rule_of(settings, generator)
        drafter = self._drafter if layers_of(generator) is None else self.model
        devices = self._devices(generator)
        self._rec = record(
            self._lines,
            method=title_of(generator),
            devices=devices,
            target=_name(self.model),
            drafter="" if drafter is None else _name(drafter),
            decode=self._decode,
            sampling=sampling_of(settings),
            config=config_of(generator),
            rule=rule,
            lossless=lossless,
            runtime=RUNTIME,
            events={name: partial(_Mark, name) for name in devices},
        )
        masks = kwargs.get(
            "decoder_attention_mask" if self.model.config.is_encoder_decoder else "attention_mask"
        )
        for i, row in enumerate(ids):
            self._rec.prompt(ids=row if masks is None else row[masks[i].bool()])
        self._ended = [False] * len(ids)

    def _check(self, settings: Any, kwargs: Any) -> None:
        if self._rec is not None:
            raise UsageError("a second call of generate in one watch; open a watch for each call")
        if settings.num_beams > 1:
            raise UsageError(f"num_beams is {settings.num_beams}; watch records greedy decoding and sampling")
        if self.model._valid_auto_compile_criteria(kwargs, settings):
            raise UsageError(
                "the forward is compiled, which hides it; call generate with disable_compile=True"
            )

    def _drafter_of(self, generator: Any) -> Any:
        if (own := layers_of(generator)) is not None:
            return own
        drafter = getattr(generator, "assistant_model", None)
        if drafter is not None and not any(drafter is one for one in (self.model, self.assistant)):
            raise UsageError(
                "the call's assistant_model is not watched; give specscope.watch(model, assistant)"
            )
        return drafter

    def _devices(self, generator: Any) -> dict[str, str]:
        """Return name -> role; without a drafter, drafts are made on the target's device."""
        target, drafter = _place(self.model), _place(self._owner("drafter"))
        if generator is None:
            return {target: "target"}
        return {drafter: "drafter", target: "drafter+target" if drafter == target else "target"}

    def _owner(self, side: str) -> Any:
        return self.model if side == "target" or self._drafter is None else self._drafter

    def forward_begins(self, _: Any, args: Any, kwargs: Any) -> None:
        if not self.running:
            return
        side = "drafter" if self.drafting else "target"
        read = side in self._prompted or (self.drafting and kwargs.get(SHARED))
        batch, rows = shape_of(args, kwargs)
        context = batch * cached_of(self._owner(side), kwargs)
        self._open = self._span(
            WORK[side] if read else "prefill", side, max(-1, batch * rows), max(-1, context)
        )

    def forward_ends(self, *_: Any) -> None:
        if self._open is None or self._rec is None:
            return
        self._rec.end(self._open)
        self._forwards.append(self._open.id)
        self._open = None
        if self.drafting:
            self._prompted.add("drafter")

    def _span(self, kind: str, side: str, rows: int, context: int) -> OpenSpan:
        assert self._rec is not None, "the call has begun"
        work = {"rows": rows, "context": context, "sequence": 0 if len(self._ended) == 1 else -1}
        return self._rec.span(kind, _place(self._owner(side)), model=side, **work)

    def candidates(self, original: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        """Draft by `get_candidates`; its forwards are the spans, without forwards all of it."""
        self.drafting, self._forwards = True, []
        whole = self._span("draft", "drafter", self._rows, self._rows)
        ids, logits = original(input_ids, **kwargs)
        self.drafting, spans, self._forwards = False, self._forwards, []
        tokens: list[int] = ids[0, input_ids.shape[1] :].tolist()
        if tokens and not spans and self._rec:
            self._rec.end(whole)
            spans = [whole.id]
        elif self._rec:
            self._rec.drop(whole)
        shares = [spans[i * len(spans) // len(tokens)] for i in range(len(tokens))]
        self._draft = WatchedDraft(tokens, shares, None if logits is None else logits[0])
        return ids, logits

    def judged(self, original: Any, input_ids: Any, scores: torch.Tensor, num_matches: Any) -> Any:
        """Keep the target's logits (1, drafted + 1, vocabulary), after the call's processors."""
        self._scores = scores[0]
        return original(input_ids, scores, num_matches)

    def round(self, input_ids: torch.Tensor, done: torch.Tensor) -> None:
        """Record what the output grew by, after each check of the stopping criteria.

        Older transformers check the drafts, too, before the target's forward: no round is recorded.
        """
        assert self._rec is not None, "the call has begun"
        if not self._forwards:
            return
        ends, outputs = done.tolist(), input_ids[:, self._length :].tolist()
        self._length = input_ids.shape[1]
        (drafted, spans, logits), scores = self._draft, self._scores
        for i, (emitted, end) in enumerate(zip(outputs, ends, strict=True)):
            if self._ended[i]:
                continue
            accepted = common(drafted, emitted)
            self._rec.round(
                drafted,
                accepted,
                emitted,
                sequence=i,
                draft=spans or None,
                verify=self._forwards[-1] if drafted and "target" not in self._prompted else None,
                reason=self._reason(emitted) if end else "",
                **chances("q", logits, drafted),
                **chances("p", scores, drafted, emitted[accepted:], accepted),
            )
            self._ended[i] = end
        self._prompted.add("target")
        self._draft, self._scores, self._forwards = NO_DRAFT, None, []

    def _reason(self, emitted: list[int]) -> str:
        eos = self._settings._eos_token_tensor
        if eos is not None and emitted[-1] in eos.flatten().tolist():
            return "eos"
        return "length" if self._length >= self._settings.max_length else "stop"

    def close(self, status: Status = "done", error: str = "") -> None:
        if self._rec is None:
            return
        if self._open is not None:
            self._rec.end(self._open, "cancelled")
        self._rec.close(status, error)


class _Mark:
    """A CUDA event on the current stream of one GPU, whichever GPU is current."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._event: Any = torch.cuda.Event(enable_timing=True)
        self.query, self.synchronize = self._event.query, self._event.synchronize

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def elapsed_time(self, other: _Mark) -> float:
        return self._event.elapsed_time(other._event)


def _place(model: Any) -> str:
    return str(model.device)


def _name(model: Any) -> str:
    return model.name_or_path or type(model).__name__
