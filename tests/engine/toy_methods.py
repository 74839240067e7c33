"""The real methods, and trees of other forms, for toy runs."""

from __future__ import annotations

import shlex
from collections.abc import Coroutine

from specscope.engine.layout import Pipelined
from specscope.engine.methods import find
from specscope.engine.sampling.draws import Key, process_logits
from specscope.engine.types import Draft, DraftToken
from tests.engine.toy import Method, ToyRun


def spelled_out(table: str) -> list[str]:
    """Return a `method settings` for all settings in lines of `method: settings | settings`."""
    lines = (line.split(":", 1) for line in table.strip().splitlines())
    return [f"{method} {words.strip()}".strip() for method, all_of in lines for words in all_of.split("|")]


SMALL = "[[0],[1],[0,0],[0,1],[1,0],[0,1,0]]"
"""A tree for vocabularies of four tokens: children of every number, three levels."""
TWO = "[[0],[1],[0,0],[1,0]]"
"""Two chains of two: in a parallel drafter's tree the second tokens of both come from one row."""
METHODS = spelled_out(f"""
4 autoregressive:
4 speculative: gamma=1 | gamma=2
3 speculative: gamma=3
4 speculative: gamma=1 drafts=greedy | gamma=3 drafts=greedy | gamma=2 schedule=threshold confidence=0.4
4 speculative: gamma=3 schedule=threshold confidence=0.4 drafts=greedy | gamma=2 schedule=average
4 speculative: gamma=2 schedule=average confidence=0.5 | gamma=2 schedule=average drafts=greedy
4 pearl: gamma=1 | gamma=2
3 pearl: gamma=3 | gamma=2 pre_verify=False
4 pearl: gamma=2 post_verify=False | gamma=2 guesses=2
3 pearl: gamma=3 placement=pipeline stages=2
4 pearl: gamma=2 schedule=threshold confidence=0.4 | gamma=2 schedule=average
4 pearl: gamma=2 schedule=average confidence=0.4
4 pearl: gamma=2 schedule=average pre_verify=False post_verify=False
4 pearl: gamma=3 schedule=threshold confidence=0.4 pre_verify=False
4 pearl: gamma=2 schedule=threshold confidence=0.4 guesses=1
4 pearl: gamma=3 schedule=threshold confidence=0.4 placement=pipeline stages=2
3 pearl: gamma=3 guesses=1
4 dsi: lookahead=2 sp=1
3 dsi: lookahead=2 sp=1 drafts=sampled | lookahead=1 sp=1 acceptance=rejection
4 ssd: gamma=1 forks=1
3 ssd: gamma=2 forks=2
4 ssd: gamma=2 forks=1 backup=none | gamma=2 forks=1 saguaro=0.2
4 ssd: gamma=1 fanout=[2,1] saguaro=0.5 backup=none
3 ssd: gamma=2 forks=1 fanout=geometric saguaro=0.6
4 ssd: gamma=2 fanout=[1,2,1] backup=none drafts=greedy
3 ssd: gamma=2 forks=1 schedule=threshold confidence=0.4
4 ssd: gamma=2 fanout=[1,2,1] schedule=threshold confidence=0.4 backup=none
3 ssd: gamma=2 forks=1 schedule=threshold confidence=0.4 saguaro=0.5 | gamma=2 forks=1 schedule=average
4 ssd: gamma=2 forks=1 schedule=average confidence=0.4 saguaro=0.5 backup=none
4 ssd: gamma=2 forks=1 schedule=average drafts=greedy
4 llma: match=1 copy=3 | match=1 copy=2 reference=0123012
4 prompt_lookup: ngram=2 copy=3 | ngram=1 copy=2 which=latest
4 suffix: depth=6 copy=3 factor=2.0 | depth=3 copy=2 offset=1.0 least=0.4 finished=0
4 hybrid: depth=4 copy=3 gamma=1 | depth=6 factor=2.0 gamma=3 | depth=4 gamma=2 weigh=seconds c=1.5
4 hybrid: depth=4 offset=1.0 gamma=2
4 assisted: start=1 confidence=0.0 | start=3 confidence=0.5 | schedule=constant start=3 confidence=0.4
4 assisted: start=2 confidence=0.4 drafts=greedy
4 lookahead: level=2 window=4 guesses=4 | level=3 window=3 guesses=2
4 ouroboros: gamma=1 level=2 window=3 guesses=3 phrases=2 | gamma=2 level=2 window=2 reference=0123012
4 ouroboros: gamma=2 level=3 window=2 guesses=2 phrases=3
3 tree: width=1 depth=3
4 tree: width=2 depth=1
3 tree: width=2 depth=2 | width=2 depth=3
4 tree: width=3 depth=1 | width=2 depth=2 drafts=greedy | width=3 depth=3 drafts=greedy
4 ems: match=1 copy=3 | base=speculative gamma=2
3 ems: base=speculative gamma=2 width=2 | base=speculative gamma=2 width=3
3 easyspec: gamma=3 | gamma=3 calibrate=False | gamma=2 width=2
4 easyspec: gamma=3 width=3 drafts=greedy
3 eagle: tree={TWO}
4 eagle: tree={SMALL} drafts=greedy
4 eagle2: top=2 depth=3 total=6
4 hydra: tree={SMALL} heads=4
4 medusa: tree={SMALL} heads=4
4 parallelspec_medusa: tree={SMALL} masks=2 | tree={SMALL} masks=2 first=mask
3 parallelspec_eagle: tree={TWO} masks=2
4 parallelspec_eagle: tree={SMALL} masks=2 drafts=greedy
4 dflash: gamma=2 | gamma=2 confidence=0.4
3 dflash: gamma=3
4 dflash: gamma=3 drafts=greedy confidence=0.4
4 mtp: gamma=2 | gamma=2 confidence=0.4
3 mtp: gamma=3
4 mtp: gamma=3 drafts=greedy confidence=0.4
4 specbranch: gamma=2 length=2 threshold=0.5
3 specbranch: gamma=1 length=2 threshold=0.6 branches=6
4 specbranch: gamma=2 length=2 threshold=0.4 branches=1
4 specbranch: gamma=2 length=2 threshold=0.6 branches=6 drafts=greedy
4 pearl: gamma=2 pre_verify=False post_verify=False
""")
"""The tokens of the vocabulary, a method, and its settings; `|` is between settings.

Configs with many outcomes have three tokens. Smaller chains of the same methods have four, trees
with more siblings are in `WORLDS` of `test_joint.py`.
"""


def settings_of(words: str) -> tuple[str, dict[str, object]]:
    """Return a method and its settings, from words like `pearl gamma=2`."""
    key, *settings = shlex.split(words)
    return key, dict(setting.split("=", 1) for setting in settings)


def configured(words: str) -> Method:
    """Return the real method with the settings in `words`."""
    key, settings = settings_of(words)
    return method(key, **settings)


def method(key: str, **config: object) -> Method:
    entry = find(key)
    settings = entry.configure(config)

    def decode(run: ToyRun) -> Coroutine[None, None, None]:
        if isinstance(entry.layout(settings).arrangement, Pipelined):  # a drafter at both ends
            run.drafters = [run.drafter, run.drafter]
        return entry.decode(run, settings)

    return decode


def sampled_tree(*widths: int, wide: bool = True) -> Method:
    """Return a method with trees sampled without replacement, `widths[i]` children on level i."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            tokens, contexts, level = list[DraftToken](), {-1: tuple(run.x.tokens.tolist())}, [-1]
            for width in widths:
                grown = list[int]()
                for parent in level:
                    context = contexts[parent]
                    q = process_logits(run.drafter.logits(context)[None], run.sampling)[0]
                    row, rest = run.keep(q), q.clone()
                    for _ in range(min(width, int((q > 0).sum()))):
                        node = len(tokens)
                        token = run.draws.choose(Key(len(context), "draft", node), rest)
                        rest[token] = 0
                        tokens.append(DraftToken(token, parent, row))
                        contexts[node] = (*context, token)
                        grown.append(node)
                level = grown if wide else grown[:1]
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    return decode


def top_tree(*widths: int, as_sampled: bool = False) -> Method:
    """Return a method with greedy trees; `as_sampled` wrongly reports the nodes as sampled."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            tokens, contexts, level = list[DraftToken](), {-1: tuple(run.x.tokens.tolist())}, [-1]
            for width in widths:
                grown = list[int]()
                for parent in level:
                    logits = run.drafter.logits(contexts[parent])
                    row = run.keep(logits.softmax(-1)) if as_sampled else None
                    for token in logits.topk(width).indices.tolist():
                        grown.append(len(tokens))
                        contexts[len(tokens)] = (*contexts[parent], token)
                        tokens.append(DraftToken(token, parent, row))
                level = grown
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    return decode
