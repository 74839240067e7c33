"""The worker process, `python -m engine.workers FD`: see `engine.workers.transports.process`."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Make the kernel kill this process, even a stopped one, when the thread that started it ends.

    Only Linux can. On other systems a worker ends when its connection closes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()  # first: the imports take seconds
    from engine.workers.transports.serve import serve

    serve(int(sys.argv[1]))
