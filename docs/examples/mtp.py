"""transformers' multi-token prediction (`use_mtp`), with the bundled target and its MTP head.

The two numbered lines record it. `python docs/examples/mtp.py [file]`, then
`specscope import mtp.jsonl` and `specscope play`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

import specscope  # 1
from specscope.engine.checkpoints.loader import load_reference
from specscope.engine.heads.files import read_head

PAIR = Path(__file__).parents[2] / "assets/pairs/bundled"
PROMPT = "How can I sleep better at night?"
NAMES = {"norm": "shared_head.norm", "fc": "eh_proj"}


def with_layers(model, folder, layers):
    """Write the head as the layers after the target's last one, where transformers looks for them.

    Checkpoints such as DeepSeek's have these layers; of those, transformers needs no such help.
    """
    first, tensors = model.config.num_hidden_layers, {}
    for name, tensor in read_head(PAIR / "heads/mtp").tensors.items():
        part, _, kind = name.removeprefix("layers.0.").rpartition(".")
        for layer in range(first, first + layers):
            tensors[f"model.layers.{layer}.{NAMES.get(part, part)}.{kind}"] = tensor.clone()
    save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
    model.config.name_or_path = str(folder)
    model.config.num_mtp_layers, model.config.mtp_layer_types = layers, ["full_attention"] * layers
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\."]
    return model


def generate(path, prompt=PROMPT, layers=3, new_tokens=48):
    tokenizer, target = AutoTokenizer.from_pretrained(PAIR / "target"), load_reference(PAIR / "target")
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with TemporaryDirectory() as folder, specscope.watch(target, tokenizer=tokenizer, path=path):  # 2
        with_layers(target, folder, layers)
        output = target.generate(**inputs, use_mtp=True, do_sample=False, max_new_tokens=new_tokens)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    generate(*sys.argv[1:] or ["mtp.jsonl"])
