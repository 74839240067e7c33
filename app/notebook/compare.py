"""`specscope.compare`: what `specscope compare` returns, without a command line or a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specscope.app.busy import busy_since, read_load
from specscope.app.experiments.compare import Comparison, RacePlan, decode_all
from specscope.app.named import PromptRow, able, method_keys
from specscope.app.notebook.opening import arguments, bar, opened, texts
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError, named_arguments
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling


@named_arguments
def compare(
    methods: str | Sequence[str],
    prompts: str | Sequence[Any],
    *,
    cluster: Cluster | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    passes: int = 1,
    progress: bool = True,
    **others: Any,
) -> Comparison:
    """Decode the same prompts with several methods and plain decoding.

    Args:
        methods: Keys, as a list or with commas; `all` takes those that the models can run.
        prompts: A text, or a list of prompts as `Cluster.run` takes them.
        cluster: An open cluster. Without one, `others` has the arguments of `specscope.open`.
        settings: Fields of a method's Config, by key of the method.
        sampling: As in `Cluster.run`; prompt i has the seed + i.
        limits: When to stop.
        passes: How often all methods decode, 1 to 9; more than 1 in measured runs only.
        progress: Whether to show a bar.
        others: See `cluster`; and fields of Sampling and Limits, as in `Cluster.run`.

    Raises:
        UsageError: A name or a setting is wrong, or a method lacks its models.
    """
    sampling, limits, models = arguments(compare, sampling, limits, others)
    keys, given, left_out = method_keys(methods), dict(settings or {}), dict[str, str]()
    if unknown := [key for key in given if key not in keys]:
        raise UsageError(f"settings of {unknown[0]!r}, which is not compared; choose of {', '.join(keys)}")
    several = texts(prompts)
    rows = [PromptRow(prompt if isinstance(prompt, str) else "") for prompt in several]
    with opened(cluster, models) as place:
        if methods == "all":
            keys, left_out = able(keys, place)
        configs = {key: given.get(key, {}) for key in keys}
        race = RacePlan(rows, several, configs, sampling, limits, passes)
        race.check(measured=not place.placement.profile)
        before = read_load()
        with bar(race.runs, "run", progress) as step:

            def decode(key: str, mine: list[Any], more: dict[str, Any]) -> Trace:
                trace = place.run(key, *mine, **more)
                step()
                return trace

            found = decode_all(race, decode, left_out=left_out)
        here = place.placement.runtime.startswith("local")
        return replace(found, warning=busy_since(before) if here else "")
