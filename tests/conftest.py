"""Settings of all tests: results depend neither on the number of cores nor on the load.

No test reads or changes the user's downloaded models and measurements.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from specscope.engine.files import cache_folder

os.environ["OMP_NUM_THREADS"] = "1"
"""One thread per test process: two processes run at once, and a sum depends on how it is split."""
ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
"""Of the processes that tests start: this tree's package, and the tests' own models."""
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one under nohup the end of its terminal
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
    "commands": tuple(f"tests/app/test_{name}.py" for name in ("cli", "compare", "load", "status")),
    "worker processes": tuple(f"tests/engine/runtimes/test_{name}.py" for name in ("group", "ray")),
}
"""Files whose tests share a costly fixture, such as a server: one process of xdist runs them."""


THOROUGH = (
    # documents that are executed: other tests run the same commands and calls
    *(f"tests/docs/test_commands.py::test_{name}" for name in ("a_page", "the_stored_notebook")),
    *(f"tests/docs/test_parallel.py::test_{name}" for name in ("the_published_clusters_table", "ssds_cliff")),
    "tests/traces/papers/test_papers.py::test_the_recorded_speeds",  # runs of 13 s
    "tests/traces/advise/test_any_question.py::test_the_same_of",
    *(
        f"tests/traces/test_audit.py::test_{name}"
        for name in ("of_10000_sound", "a_sound_run_of_every_method")
    ),
    # real models, published tables, recorded outputs, what bench and notebooks measure and show
    *("tests/engine/real/", "tests/engine/simulate/test_published.py", "tests/app/test_examples.py"),
    *("tests/bench/", "tests/app/test_bench.py", "tests/app/test_notebook.py"),
    *(
        f"tests/golden/test_golden.py::test_outputs_are_as_recorded[{group}]"
        for group in ("scripted", "bundled", "load", "commands", "papers")
    ),
    # exactness beyond each method's joint distribution and greedy text
    "tests/engine/test_reference.py",
    *(f"tests/engine/methods/test_ems.py::test_{name}" for name in ("a_", "an_", "one_", "24_")),
    *(
        f"tests/engine/methods/test_dsi.py::test_{name}"
        for name in ("no_token", "never_slower_than_autoregressive_with_any", "a_line", "the_text")
    ),
    *(
        "tests/engine/methods/test_lossless.py::test_eos",
        "tests/engine/methods/test_lossless.py::test_the_text_is_the_targets_with_models_of_every_family[('bundled'",
        "tests/engine/methods/test_lossless.py::test_a_stop",
    ),
    *(
        "tests/engine/test_joint.py::test_drafts_that_survive_a_round",
        "tests/engine/test_joint.py::test_one_two_and_three_siblings",
        "tests/engine/trace/test_watch.py",
    ),
    # clusters of several nodes and devices, and servers that hang
    *("tests/engine/runtimes/test_ray.py", "tests/engine/runtimes/test_shards.py"),
    *(
        "tests/security/test_folders.py::TestTheWheel",
        "tests/security/test_hub.py",
        "tests/security/test_page_files.py",
        "tests/security/test_requests.py",
    ),
    "tests/security/test_stored.py::test_a_number",  # every number of a foreign file, with every value
    *("tests/engine/checkpoints/test_catalog.py", "tests/engine/cluster/test_splitting.py"),
    "tests/engine/run/test_policies.py::test_measured",
    # looks in both themes and all widths; tabs whose results are also checked without a browser
    "tests/browser/report/test_looks.py",
    "tests/browser/playground/test_tabs.py",
    "tests/browser/playground/test_playground.py::test_both_themes_fit_a_narrow_window",
    # replays, loaded parts of traces and notes, over all methods
    *("tests/traces/test_whatif.py", "tests/traces/test_long.py"),
    *(
        f"tests/traces/test_whatif_own.py::test_{name}"
        for name in ("a_tree_or_head", "settings_that_name", "what_spans_do_not_time", "fewer_heads")
    ),
    *(
        f"tests/traces/test_health.py::test_{name}"
        for name in ("a_looping_greedy_run", "sampled_runs_of_the_bundled_pair", "sound_runs_of_one_rate")
    ),
)
"""Beginnings of the names of the tests that `make thorough` runs: the longest, half of the time.
They repeat for more cases what the tests of `make test` show for some. CI runs both."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)


def pytest_runtest_teardown() -> None:
    """Take Ctrl-C again: a command that it ended ignores further ones, in its process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
