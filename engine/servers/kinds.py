"""The servers that are known: how each is recognised, asked for text, and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specscope.engine.schema import fits
from specscope.engine.servers.address import Address, ServerError
from specscope.engine.servers.counters import Counters, counters, metrics_of
from specscope.engine.servers.steps import LlamaReader, Reader, VllmReader
from specscope.engine.trace.ranges import NO_TOKEN, TokenId

if TYPE_CHECKING:
    from specscope.engine.types import Limits, Sampling

Prompt = str | Sequence[Mapping[str, str]]
"""A text, or chat messages."""
Body = dict[str, Any]
MOST_NAME = 1000
"""Characters of a model's name, which may be a path."""
PLAIN_DRAWS: Body = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""What a server's own defaults may add to temperature, top-k and top-p."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One kind of server."""

    name: str
    shows: str
    """The facts that it reports, and the flag for further facts of each answer."""
    rule: str
    """Its rule of acceptance above temperature 0; empty if unknown."""
    request: Callable[[FoundServer, Prompt, Sampling, Limits], tuple[str, Body]]
    """Returns the path and the body of a request."""
    reader: Callable[[FoundServer], Reader]
    chances: Callable[[Sampling], Body] = lambda _: {}
    """Returns what a request adds to get p of the tokens; nothing if no flag is needed or known."""
    flag: str = ""
    """The flag without which its totals are not known."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that answered, and what it is."""

    address: Address
    kind: ServerKind
    version: str
    model: str
    longest: int | None
    """The most tokens of its drafts, 0 without drafts; None if unknown."""
    counted: bool
    """Whether it counts drafts at `/metrics`."""

    @property
    def title(self) -> str:
        return f"{self.kind.name} at {self.address.url.partition('://')[2]}"

    @property
    def line(self) -> str:
        """One line on what the server is and shows."""
        version = f" {self.version}" if self.version else ""
        model = f", model {self.model}" if self.model else ""
        checked = " Its totals are checked, too." if self.counted else self.kind.flag
        return f"{self.kind.name}{version}{model}. {self.kind.shows}{checked}"

    def counters(self) -> Counters | None:
        return counters(self.address) if self.counted else None


def find(address: Address) -> FoundServer:
    """Ask a server what it is.

    Raises:
        ServerError: It does not answer, or has none of the routes of a known server.
    """
    props, models = address.json("/props"), address.json("/v1/models")
    entry = next((row for row in _rows(models) if isinstance(row, dict)), {})
    model, owner = _text(entry.get("id")), _text(entry.get("owned_by"))
    known = counters(address)
    if isinstance(props, dict) and ("default_generation_settings" in props or "build_info" in props):
        version = _text(props.get("build_info"))
        return FoundServer(
            address, LLAMA, version, _text(props.get("model_alias")) or model, None, known is not None
        )
    if not isinstance(models, dict):
        raise ServerError(
            f"the server at {address.url} has neither /v1/models nor /props; give the address of llama-server, "
            "vLLM, or another server with OpenAI's routes"
        )
    if owner == "vllm":
        row = address.json("/version")
        version = _text(row.get("version")) if isinstance(row, dict) else ""
        longest = len(known.places) or None if known else None
        if known is None and "vllm:" in metrics_of(address):
            longest = 0  # it counts drafts only if it makes some
        return FoundServer(address, VLLM, version, model, longest, known is not None)
    return FoundServer(address, SGLANG if owner == "sglang" else PLAIN, "", model, None, False)


def _llama(found: FoundServer, prompt: Prompt, sampling: Sampling, limits: Limits) -> tuple[str, Body]:
    text = prompt if isinstance(prompt, str) else _templated(found.address, prompt)
    body: Body = {
        "prompt": text,
        "n_predict": limits.max_new_tokens,
        "return_tokens": True,
        "timings_per_token": True,
        "cache_prompt": False,
        "top_k": sampling.top_k,
        "repeat_penalty": 1.0,
    }
    return "/completion", body | PLAIN_DRAWS | _shared(sampling, limits)


def prompt_ids(found: FoundServer, prompt: object) -> tuple[int, ...]:
    """Return the ids of a prompt's text, as llama.cpp tokenizes it; empty if unknown."""
    if found.kind is not LLAMA or not isinstance(prompt, str):
        return ()
    body = {"content": prompt, "add_special": True, "parse_special": True}
    ids: Any = found.address.ask("/tokenize", body).get("tokens")
    return tuple(ids) if fits(ids, list[TokenId]) and NO_TOKEN not in ids else ()


def _templated(address: Address, messages: Sequence[Mapping[str, str]]) -> str:
    """Return chat messages as a text, by the model's template: the chat route names no ids."""
    answer = address.ask("/apply-template", {"messages": [dict(message) for message in messages]})
    text = answer.get("prompt")
    if not isinstance(text, str):
        raise ServerError(f"the server at {address.url} answered /apply-template without a prompt")
    return text


def _openai(found: FoundServer, prompt: Prompt, sampling: Sampling, limits: Limits) -> tuple[str, Body]:
    body: Body = {
        "model": found.model,
        "max_tokens": limits.max_new_tokens,
        "stream_options": {"include_usage": True},
        **({"top_k": sampling.top_k} if sampling.top_k else {}),
        **_shared(sampling, limits),
    }
    if isinstance(prompt, str):
        return "/v1/completions", body | {"prompt": prompt}
    return "/v1/chat/completions", body | {"messages": [dict(message) for message in prompt]}


def _vllm(found: FoundServer, prompt: Prompt, sampling: Sampling, limits: Limits) -> tuple[str, Body]:
    path, body = _openai(found, prompt, sampling, limits)
    chances: Body = {"logprobs": 0} if isinstance(prompt, str) else {"logprobs": True, "top_logprobs": 0}
    own: Body = {"return_token_ids": True, "top_k": sampling.top_k or -1, "repetition_penalty": 1.0}
    return path, body | chances | PLAIN_DRAWS | own


def _llama_chances(sampling: Sampling) -> Body:
    """Ask for p after the sampler; at temperature 0, where it leaves one token, before it."""
    return {"n_probs": 1, "post_sampling_probs": not sampling.greedy}


def _shared(sampling: Sampling, limits: Limits) -> Body:
    stop = {"stop": list(limits.stop)} if limits.stop else {}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stream": True,
        **stop,
    }


def _uncounted(_: FoundServer) -> Reader:
    reader = VllmReader(longest=0)
    reader.told.why = "This server reports no counts of speculative decoding."
    return reader


def _rows(value: Any) -> list[Any]:
    rows = value.get("data") if isinstance(value, dict) else None
    return rows if isinstance(rows, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= MOST_NAME else ""


LLAMA = ServerKind(
    "llama.cpp",
    "Every token comes with the counts of drafted and accepted tokens: rounds, origins and times are exact. "
    "Rejected tokens, q, and the parts of drafter and target in a step are not reported.",
    "match",
    _llama,
    lambda _: LlamaReader(),
    _llama_chances,
    flag=" With --metrics, the totals are checked, too.",
)
VLLM = ServerKind(
    "vLLM",
    "Each step arrives as one event: rounds and their times are shown at once. "
    "With --per-request-spec-decode-metrics detailed, draft lengths follow at the end. "
    "Rejected tokens, q, and the parts of drafter and target in a step are not reported.",
    "ratio",
    _vllm,
    lambda found: VllmReader(found.longest),
)
PLAIN = ServerKind(
    "another server",
    "It reports texts and their times, and no drafts. Rounds are shown of llama-server and vLLM.",
    "",
    _openai,
    _uncounted,
)
SGLANG = replace(
    PLAIN,
    name="SGLang",
    shows="Its stream has texts and their times, and no drafts. Its log has acceptance over time: import the log, "
    "or follow it.",
)
