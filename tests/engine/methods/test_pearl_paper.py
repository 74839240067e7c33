"""PEARL's own examples, step by step: scripted models, the paper's prefixes and modes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.worker.harness import scripted_cluster

TABLE_9 = {
    "": "Great , I ’ m",
    "I": "’ m glad you could",
    "I ’ m glad you could": "are interested in exploring more",
    "I ’ m happy": "to help you with this",
    "I ’ m happy to help you with this": "equation ! However , I",
    "I ’ m happy to help you with your": "question ! However , I",
    "I ’ m happy to help you with your question ! However , I": "notice that the equation you",
    "I ’ m happy to help you with your question ! However , I notice that the equation you": "provided is not correct .",
}
TEXT_9 = "I ’ m happy to help you with your question ! However , I notice that the equations"


def _ids(text: str, words: dict[str, int]) -> list[int]:
    return [words.setdefault(w, len(words) + 10) for w in text.split()]


@pytest.mark.parametrize(
    ("gamma", "script", "text", "emits", "modes"),
    [
        (5, TABLE_9, TEXT_9, [1, 1, 2, 1, 4, 1, 5, 3], ["pre-verify"] * 2 + ["post-verify", "pre-verify"] * 2 + ["post-verify"] * 2),
        (
            3,
            {
                "": "x1 x2 x3",
                "y1": "x4 x5 x6",
                "y1 x4 x5 x6": "x7 x8 x9",
                "y1 x4 x5 x6 x7 x8 x9": "x10 x11 x12",
            },
            "y1 x4 x5 x6 x7 x8 y2",
            [1, 1, 3, 2],
            ["pre-verify", "pre-verify", "post-verify", "post-verify"],
        ),
    ],
    ids=["table 9", "figure 3"],
)  # fmt: skip
def test_prefix_and_mode_of_every_step(gamma, script, text, emits, modes):
    words: dict[str, int] = {}
    prompt = [1, 2, 3]
    truth = _ids(text, words)
    drafts = [(_ids(before, words), _ids(then, words)) for before, then in script.items()]

    def target(path: np.ndarray) -> int:
        out = path[len(prompt) :].tolist()
        return truth[len(out)] if out == truth[: len(out)] and len(out) < len(truth) else 5

    def drafter(path: np.ndarray) -> int:
        out = path[len(prompt) :].tolist()
        for before, then in drafts:
            rest = out[len(before) :]
            if out[: len(before)] == before and len(rest) < len(then) and rest == then[: len(rest)]:
                return then[len(rest)]
        return 6

    with scripted_cluster(target, drafter) as cluster:
        # one token more than the text, so that the last step is not cut short
        trace = cluster.run(
            "pearl", prompt, config={"gamma": gamma}, limits=cluster.limits(len(truth) + gamma)
        )
    rounds = trace.rounds[: len(emits)]
    assert [r.emitted for r in rounds] == emits
    assert [r.mode for r in rounds] == modes
    assert trace.token_ids()[: len(truth)] == truth


def test_next_draft_starts_after_all_pending_tokens():
    """Post-verify drafts on as if all pending tokens were accepted: one new row per draft."""
    with scripted_cluster(lambda p: int(p[-1]) % 50 + 10, lambda p: int(p[-1]) % 50 + 10) as cluster:
        trace = cluster.run("pearl", [1, 2, 3], config={"gamma": 4}, limits=cluster.limits(40))
    decode = [s for s in trace.spans if s.kind == "draft"]
    assert [s.rows for s in decode] == [1] * len(decode)
    # emitted: 1 in pre-verify, then gamma each round
    assert [r.emitted for r in trace.rounds] == [1] + [4] * 9 + [3]
