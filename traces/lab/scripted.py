"""Runs of a sweep over acceptance rates: scripted drafts on a virtual cluster, without models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.simulate.profile import Profile
from engine.types import Limits, check_range

if TYPE_CHECKING:
    from engine.trace.trace import Trace
    from traces.lab.sweep import Job

MOST_TOKENS = 512
MOST_SEEDS = 5
_VOCABULARY, _EOS = 512, 0
_PROMPT = tuple(range(1, 33))


@dataclass(frozen=True, slots=True)
class Scripted:
    """A `Runner` of jobs with an acceptance rate; the sample of a job is its seed."""

    profile: str
    profile_pair: str = ""
    tokens: int = 64
    """Tokens of each run."""

    def check(self, seeds: int) -> None:
        """Check profile, pair, tokens, and the number of seeds.

        Raises:
            UsageError: One of them is unknown or out of range.
        """
        check_range("tokens", self.tokens, 1, MOST_TOKENS)
        check_range("seeds", seeds, 1, MOST_SEEDS)
        Profile.load(self.profile).latency(self.profile_pair or None)

    def __call__(self, job: Job) -> Trace:
        """Return the trace of a run whose drafts are right at the job's rate.

        Scripted drafts have no second choices, so a tree is as good as its chain.

        Raises:
            UsageError: The method refuses its settings, or drafts n-grams of the text.
        """
        import engine
        from engine.pairs.pair import Pair  # imports torch, which takes seconds
        from engine.simulate.oracle import Source, bernoulli_models
        from traces.whatif.script import CONTEXT, NO_TEXTS

        assert job.rate is not None
        pair = Pair("scripted", Path("scripted"), Path("scripted"), NO_TEXTS, _VOCABULARY, CONTEXT, (_EOS,))
        models = bernoulli_models((job.rate,), _VOCABULARY, len(_PROMPT), job.sample, avoid=[_EOS])
        source = Source(models, f"bernoulli:{job.rate:g}, seed {job.sample}")
        with engine.open(
            pair,
            runtime="virtual",
            profile=self.profile,
            profile_pair=self.profile_pair or None,
            tokens=source,
        ) as cluster:
            limits = Limits(self.tokens)
            trace = cluster.run(job.method, _PROMPT, config=job.config, limits=limits, group=job.group)
        if trace.pooled:
            raise UsageError(f"{trace.header.title} drafts n-grams of a real text; a script has none")
        trace.commits = [replace(c, text=f"{c.token} ") for c in trace.commits]
        trace.header = replace(trace.header, prompts=(f"{len(_PROMPT)} scripted tokens",))
        return trace
