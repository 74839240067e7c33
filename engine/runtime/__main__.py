"""The worker process: `python -m engine.runtime FD`, started by `engine.runtime.process`."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends, also while this process is stopped.

    Other systems than Linux cannot; there a worker leaves once it runs and finds its connection closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()  # before the imports, which take seconds
    from engine.runtime.serve import serve

    serve(int(sys.argv[1]))
