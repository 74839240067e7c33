"""A corpus small enough to learn in a second."""

from __future__ import annotations

import argparse
import lzma

from specscope.engine.training import cli

HEAD = {
    "batch": 8,
    "sequence": 64,
    "written": 1200,
    "answer": 40,
    "warmup": 2,
    "learning_rate": 1e-2,
    "held_out": 0.1,
    "device": "cpu",
}
"""Settings of a head's training that takes a second."""
NAMES = ("Mia", "Tom", "Ann", "Ben", "Lily", "Max")
THINGS = ("ball", "kite", "dog", "boat", "tree", "cake")


def stories():
    return [
        f"Once there was a {t}. {n} saw the {t} and was happy. Then {n} went home."
        for n in NAMES
        for t in THINGS
    ]


def chats():
    return [
        f"<|user|>Do you like the {t}, {n}?<|assistant|>Yes, I like the {t} very much."
        for n in NAMES
        for t in THINGS
    ]


def write_source(folder, name, documents):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.txt.xz"
    path.write_bytes(lzma.compress("\x1e".join(documents).encode()))
    return path


def parse(words):
    """Return the arguments of a command line of `specscope train`."""
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(words.split())


def train(words):
    """Run a command of `specscope train`."""
    return cli.run(parse(words))
