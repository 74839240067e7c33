"""Drafter and target at the same time, as in PEARL: a thread drafts on while the target verifies.

A draft that is accepted as a whole is followed by the one that was drafted meanwhile; after a
rejection that one is thrown away. The six lines with a comment record it.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import AutoTokenizer

import specscope  # 1
from specscope.engine.checkpoints.loader import load_reference  # transformers' model; the pair's drafter is int8

PAIR = Path(__file__).parents[2] / "assets/pairs/bundled"
PROMPT = "How can I sleep better at night?"


@torch.inference_mode()
def draft(model, ids, gamma, rec):
    with rec.span("draft", device="drafter"):  # 5
        for _ in range(gamma):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@torch.inference_mode()
def generate(path, prompt=PROMPT, gamma=4, new_tokens=32):
    tok = AutoTokenizer.from_pretrained(PAIR / "target")
    target, drafter = load_reference(PAIR / "target"), load_reference(PAIR / "drafter")
    chat = [{"role": "user", "content": prompt}]
    ids = tok.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    thread = ThreadPoolExecutor(1)
    with specscope.record(path, "my parallel", devices=["drafter", "target"], decode=tok.decode) as rec:  # 2
        rec.prompt(prompt, ids=ids[0])  # 3
        ahead = draft(drafter, ids, gamma, rec)
        while ids.shape[1] < start + new_tokens:
            judged, ahead = ahead, thread.submit(draft, drafter, ahead, gamma, rec)
            with rec.span("verify", device="target"):  # 4
                best = target(judged).logits[0, ids.shape[1] - 1 : -1].argmax(-1)
            drafted = judged[0, ids.shape[1] :]
            n = int((drafted == best).cumprod(0).sum())
            ids = torch.cat([ids, best[None, : n + 1]], dim=1)
            rec.round(drafted=drafted, accepted=n, emitted=best[: n + 1])  # 6
            ahead = ahead.result()
            if n < gamma:
                ahead = draft(drafter, ids, gamma, rec)
    return ids[0, start:].tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)  # a core for each model
    generate(*sys.argv[1:] or ["own_parallel_loop.jsonl"])
