"""Torch computes with one thread: the tests run two at a time, and a sum does not depend on how many cores there are."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
