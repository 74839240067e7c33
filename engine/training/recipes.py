"""Named settings of head trainings: the defaults of each kind, and those of the paper."""

from __future__ import annotations

from typing import Any

HEAD_DEFAULTS: dict[str, dict[str, Any]] = {
    "medusa": {"size": 5},
    "hydra": {"size": 4},
    "eagle": {"size": 5, "regression": 10.0},
    "parallelspec_medusa": {"size": 4, "anchors": 1.0},
    "parallelspec_eagle": {"size": 4, "anchors": 1.0, "regression": 10.0, "fade": 1.0},
}
"""Trainable kinds of drafting heads, and the defaults in which each differs from `HeadOptions`."""
_TABLE_3 = {"batch": 32, "optimizer": "adamw", "weight_decay": 0.0, "anchors": 1.0, "token_loss": 1.0}
_MEDUSA = _TABLE_3 | {"learning_rate": 5e-4, "beta2": 0.999, "epochs": 20}
_EAGLE = _TABLE_3 | {"learning_rate": 5e-5, "beta2": 0.95, "epochs": 40, "fade": 1.0}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {},
    "paper": {
        "medusa": _MEDUSA,
        "hydra": _MEDUSA,
        "parallelspec_medusa": _MEDUSA,
        "eagle": _EAGLE,
        "parallelspec_eagle": _EAGLE,
    },
}
"""Named settings, by recipe and kind: where each differs from `HEAD_DEFAULTS`.

`paper`: ParallelSpec's Table 3 (its Medusa column for Medusa and Hydra, too), masks after every
token, and the printed losses: cross-entropy to the text (equations 2 and 3), for EAGLE with smooth
L1 to the features (equation 4). The paper names no warm-up and no schedule."""
