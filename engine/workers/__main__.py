"""The worker process: `python -m engine.workers FD`, started by `engine.workers.transports.process`."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Have the kernel kill this process, even a stopped one, when the thread that started it ends.

    Linux alone can. Elsewhere a worker ends when it finds its connection closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()  # before the imports, which take seconds
    from engine.workers.transports.serve import serve

    serve(int(sys.argv[1]))
