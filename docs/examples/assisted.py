"""transformers' own assisted generation, with the bundled pair.

The two numbered lines record it. `python docs/examples/assisted.py [file]`, then
`specscope import assisted.jsonl` and `specscope play`.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

import specscope  # 1
from specscope.engine.checkpoints.loader import load_reference  # transformers' model; the pair's drafter is int8

PAIR = Path(__file__).parents[2] / "assets/pairs/bundled"
PROMPT = "How can I sleep better at night?"


def generate(path, prompt=PROMPT, gamma=4, new_tokens=48):
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    target, drafter = load_reference(PAIR / "target"), load_reference(PAIR / "drafter")
    drafter.generation_config.num_assistant_tokens = gamma
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    drafter.generation_config.assistant_confidence_threshold = 0.0
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with specscope.watch(target, drafter, tokenizer=tokenizer, path=path):  # 2
        output = target.generate(
            **inputs, assistant_model=drafter, do_sample=False, max_new_tokens=new_tokens
        )
    return output[0, inputs["input_ids"].shape[1] :].tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    generate(*sys.argv[1:] or ["assisted.jsonl"])
