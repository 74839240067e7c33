"""Processes that end with the process that started them."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process, even a stopped one, when the thread that started it ends.

    Only Linux can. On other systems a worker ends when its connection closes.

    Args:
        parent: Id of the process that started this one. If it has ended, this process ends too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
