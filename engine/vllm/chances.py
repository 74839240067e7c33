"""p and q of a step, computed from the logits and the requests' own settings.

Not read from the sampler: a sampler that draws from another distribution than a request asked for
is what the comparison of p and q with the accepted drafts finds. No value of vLLM is changed, and
nothing waits for a GPU: small results are copied to the host behind the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

MOST_CELLS = 2**25
"""Most numbers of logits of which p is computed; a larger step has none."""


class Asked(NamedTuple):
    """A request's distribution; at temperature 0 that of 1, of which the best token is taken."""

    temperature: float
    top_k: int
    top_p: float

    @classmethod
    def of(cls, params: Any) -> Asked | None:
        """Return it of `SamplingParams`; None if more than these three settings shape it."""
        plain = (
            not params.min_p
            and not params.presence_penalty
            and not params.frequency_penalty
            and params.repetition_penalty == 1
            and not params.min_tokens
            and not (params.logit_bias or params.allowed_token_ids or params.bad_words)
            and params.thinking_token_budget is None
            and params.trace_decode_token_ids is None
        )
        if not plain:
            return None
        if params.temperature < 1e-5:
            return cls(0.0, 0, 1.0)
        return cls(params.temperature, max(0, params.top_k), params.top_p)

    @property
    def heat(self) -> float:
        return self.temperature or 1.0


class ChanceRows:
    """The rows of logits of a step: for each request its drafts, then its own token.

    Args:
        asked: Of each request of the batch, in its order.
        drafts: The number of drafts of each.
    """

    def __init__(self, asked: Sequence[Asked | None], drafts: Sequence[int]) -> None:
        self.drafts = [*drafts]
        self.asked = [one for one, n in zip(asked, drafts, strict=True) for _ in range(n + 1)]
        """Of each row."""
        self.size = len(self.asked)
        self.starts = list(accumulate((n + 1 for n in drafts), initial=0))[:-1]
        self.drafted = [start + i for start, n in zip(self.starts, drafts, strict=True) for i in range(n)]
        """The rows that decide drafts."""
        self.numbers = [i for i, n in enumerate(drafts) for _ in range(n)]
        """The request of each draft."""
        self.places = [i for n in drafts for i in range(n)]

    def heats(self, rows: Sequence[int]) -> list[float]:
        return [one.heat if one else 1.0 for one in (self.asked[row] for row in rows)]


def target(logits: Any, rows: ChanceRows) -> Any:
    """Return p of all tokens, [rows, vocabulary], in new memory; None if it would be too much."""
    import torch

    if logits.numel() > MOST_CELLS or not any(rows.asked):
        return None
    p = logits.to(torch.float32, copy=True)
    p /= sent(rows.heats(range(rows.size)), p)[:, None]
    p = p.softmax(-1)
    narrow = [(i, one) for i, one in enumerate(rows.asked) if one and (one.top_k or one.top_p < 1)]
    if narrow:
        index = sent([i for i, _ in narrow], p, whole=True)
        p[index] = _narrowed(p[index], [one.top_k for _, one in narrow], [one.top_p for _, one in narrow])
    unknown = [i for i, one in enumerate(rows.asked) if one is None]
    if unknown:
        p[sent(unknown, p, whole=True)] = torch.nan
    return p


def _narrowed(p: Any, top_k: Sequence[int], top_p: Sequence[float]) -> Any:
    """Return the distributions of the k best tokens, and of the fewest of these with mass top_p."""
    import torch

    width = p.shape[-1]
    most = width if 0 in top_k else min(width, max(top_k))
    best, order = p.sort(-1, descending=True) if most == width else p.topk(most)
    rank = torch.arange(most, device=p.device)
    k = sent([k or width for k in top_k], p, whole=True)
    best = best * (rank < k[:, None])
    best = best / best.sum(-1, keepdim=True)
    best = best * (best.cumsum(-1) - best < sent(list(top_p), p)[:, None])
    return torch.zeros_like(p).scatter_(-1, order, best / best.sum(-1, keepdim=True))


def of_drafts(p: Any, rows: ChanceRows, ids: Any) -> Any:
    """Return p of the drafted tokens, whose ids are those of all requests in order."""
    return chosen(p[sent(rows.drafted, p, whole=True)], ids)


def of_own(p: Any, rows: ChanceRows, ids: Any, counts: Any) -> Any:
    """Return p of each request's own token, the last of its `counts` ids."""
    last = (counts.long() - 1).clamp(min=0)
    return chosen(p[sent(rows.starts, p, whole=True) + last], ids.long().gather(1, last[:, None])[:, 0])


def of_drafter(logits: Any, rows: ChanceRows, slots: Any, ids: Any) -> Any:
    """Return q of the drafted tokens from [slot, place, vocabulary] logits without temperature."""
    numbers, places = (sent(which, logits, whole=True) for which in (rows.numbers, rows.places))
    mine = logits[slots[numbers], places].float()
    return chosen((mine / sent(rows.heats(rows.drafted), mine)[:, None]).softmax(-1), ids)


def chosen(table: Any, ids: Any) -> Any:
    """Return each row's value of its id; ids of placeholders take any."""
    return table.gather(1, ids.long().clamp(0, table.shape[-1] - 1)[:, None])[:, 0]


def sent(values: Sequence[float], like: Any, *, whole: bool = False) -> Any:
    """Return a tensor on the device of another one; a GPU is not waited for."""
    import torch

    kind = torch.int64 if whole else torch.float32
    if like.device.type != "cuda":
        return torch.tensor(values, dtype=kind, device=like.device)
    return torch.tensor(values, dtype=kind, pin_memory=True).to(like.device, non_blocking=True)


def fetched(tensor: Any) -> Any:
    """Return a copy on the host, complete once an event behind it has passed."""
    return None if tensor is None else tensor.to("cpu", non_blocking=True, copy=True)
