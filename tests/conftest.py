"""Settings of all tests: results depend neither on the number of cores nor on the load.

No test reads or changes the user's downloaded models and measurements.
"""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from engine.files import cache_folder

os.environ["OMP_NUM_THREADS"] = "1"
"""One thread per test process: two processes run at once, and a sum depends on how it is split."""
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

USER_CACHE = Path(os.environ.setdefault("SPECSCOPE_USER_CACHE", str(cache_folder())))
"""The cache of the person who runs the tests; only tests of a real model read it.

The processes of pytest-xdist inherit both variables from the first one.
"""
os.environ["SPECSCOPE_CACHE"] = tempfile.mkdtemp(prefix="specscope-tests-")
os.environ["HF_HUB_CACHE"] = os.environ["SPECSCOPE_CACHE"] + "/hub"
atexit.register(shutil.rmtree, os.environ["SPECSCOPE_CACHE"], ignore_errors=True)


SHARING = {
    "server": ("tests/browser/playground/",),
    "report": ("tests/browser/report/",),
    "trained pair": ("tests/engine/training/",),
    "commands": tuple(f"tests/app/test_{name}.py" for name in ("busy", "cli", "compare", "load", "sweep")),
    "worker processes": tuple(
        f"tests/engine/runtimes/test_{name}.py" for name in ("group", "pipeline", "ray", "timely")
    ),
    "runtimes": tuple(f"tests/engine/methods/test_{name}.py" for name in ("ems", "ems_trees")),
}
"""Files whose tests share a costly fixture, such as a server: one process of xdist runs them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Return a scheduler by files, which keeps files of `SHARING` together."""
    from xdist.scheduler import LoadFileScheduling

    class BySharing(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = (name for name, places in SHARING.items() if nodeid.startswith(places))
            return next(shared, super()._split_scope(nodeid))

    return BySharing(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the imported modules, a million objects that stay, from garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
