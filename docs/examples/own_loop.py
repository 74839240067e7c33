"""Speculative decoding by hand, with transformers, in the style of a paper's first prototype.

The six lines with a comment record it. `python docs/examples/own_loop.py [file]`, then
`specscope import own_loop.jsonl` and `specscope play`.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

import specscope  # 1
from specscope.engine.checkpoints.loader import load_reference  # transformers' model; the pair's drafter is int8

PAIR = Path(__file__).parents[2] / "assets/pairs/bundled"
PROMPT = "How can I sleep better at night?"


@torch.inference_mode()
def generate(path, prompt=PROMPT, gamma=4, new_tokens=32):
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    target, drafter = load_reference(PAIR / "target"), load_reference(PAIR / "drafter")
    chat = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    with specscope.record(path, "my loop", decode=tokenizer.decode, sampling={"temperature": 0}) as rec:  # 2
        rec.prompt(prompt, ids=ids[0])  # 3
        while ids.shape[1] < start + new_tokens:
            draft, q = ids, []
            with rec.span("draft"):  # 4
                for _ in range(gamma):
                    likely = drafter(draft).logits[0, -1].softmax(-1).max(-1)
                    q.append(likely.values.item())
                    draft = torch.cat([draft, likely.indices.view(1, 1)], dim=1)
            with rec.span("verify"):  # 5
                best = target(draft).logits[0, ids.shape[1] - 1 :].argmax(-1)
            drafted = draft[0, ids.shape[1] :]
            n = int((drafted == best[:gamma]).cumprod(0).sum())
            ids = torch.cat([ids, best[None, : n + 1]], dim=1)
            rec.round(drafted=drafted, accepted=n, emitted=best[: n + 1], q=q)  # 6
    return ids[0, start:].tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    generate(*sys.argv[1:] or ["own_loop.jsonl"])
