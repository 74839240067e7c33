"""Settings of all tests: results depend neither on the number of cores nor on the load."""

import os

from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"
"""One thread per test process: two processes run at once, and a sum depends on how it is split."""
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
