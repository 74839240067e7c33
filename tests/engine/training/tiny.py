"""A corpus small enough to learn in a second."""

import argparse
import lzma
import threading

import numpy as np
import pytest

from specscope.engine.errors import UsageError
from specscope.engine.training import cli
from specscope.engine.training.data import Corpus

HEAD = {"batch": 8, "sequence": 64, "written": 1200, "answer": 40, "warmup": 2} | {
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


def toy_corpus(*documents):
    starts = np.cumsum([0, *map(len, documents)])
    ids = np.concatenate([np.array(d, dtype=np.uint16) for d in documents])
    return Corpus(ids, starts, np.ones(len(documents), dtype=np.int64))


def stop_after(steps, phase):
    """Return a listener that stops a training from a step on, and the event that it sets."""
    cancel = threading.Event()

    def listen(progress):
        if progress.phase == phase and progress.step >= steps:
            cancel.set()

    return listen, cancel


def refused(call, message):
    """Check that a call is refused in one line."""
    with pytest.raises(UsageError, match=f"^{message}") as error:
        call()
    assert "\n" not in str(error.value)
