"""Chooses the draft lengths of each round under load, and learns from its verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from specscope.engine.drafting.admission import Costs, PlaceRates, Prospect, by_batch, by_survival, offered
from specscope.engine.run.policies import SURVIVAL
from specscope.engine.types import Verdict


class RoundLengths:
    """The draft lengths of a run's rounds under `by-batch` or `survival`.

    By batch, every request has the acceptance rates of all; by survival, its own.
    """

    def __init__(self, policy: str, costs: Costs) -> None:
        self._costs, self._each = costs, policy == SURVIVAL
        self._all = PlaceRates()
        self._own = defaultdict[int, PlaceRates](lambda: PlaceRates(self._all))
        self._nodes = defaultdict[int, list[int]](lambda: [0, 0])
        """Nodes and drafts that had each level."""

    def choose(self, asked: Mapping[int, int], others: int) -> dict[int, int]:
        """Return the levels of each sequence's draft, given the levels that its method asks for.

        `others` are rows of the round's forward that belong to sequences without a draft.
        """
        most = max(asked.values(), default=0)
        if not most:
            return dict(asked)
        rates = [self._own[number] if self._each else self._all for number in asked]
        survivals = np.array([rate.survivals(most) for rate in rates])
        possible = np.arange(most) < np.array([*asked.values()])[:, None]
        counts = (self._nodes[level] for level in range(most))
        nodes = np.array([nodes / drafts if drafts else 1.0 for nodes, drafts in counts])
        rule = by_survival if self._each else by_batch
        found = rule(Prospect(np.where(possible, survivals, 0.0), nodes, others), self._costs)
        return dict(zip(asked, found.places.tolist(), strict=True))

    def learn(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            levels = offered(verdict)
            for rates in (self._all, self._own[verdict.sequence]):
                rates.observe(len(verdict.accepted), len(levels))
            for level, count in enumerate(levels):
                self._nodes[level][0] += count
                self._nodes[level][1] += 1
