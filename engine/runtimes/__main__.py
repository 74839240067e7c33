"""A worker process, `python -m engine.runtimes FD`, or the fork server, with a second word `forks`.

See `engine.runtimes.process` and `engine.runtimes.forks`.
"""

import os
import sys

from engine.runtimes.forks import end_with_parent

if __name__ == "__main__":
    end_with_parent(os.getppid())  # first: the imports take seconds
    from engine.runtimes.serve import serve, serve_forks

    (serve_forks if sys.argv[2:] else serve)(int(sys.argv[1]))
