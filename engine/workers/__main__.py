"""A worker process, `python -m engine.workers FD`, or the fork server, with a second word `forks`.

See `engine.workers.transports.process` and `engine.workers.transports.forks`.
"""

import os
import sys

from engine.workers.transports.forks import end_with_parent

if __name__ == "__main__":
    end_with_parent(os.getppid())  # first: the imports take seconds
    from engine.workers.transports.serve import serve, serve_forks

    (serve_forks if sys.argv[2:] else serve)(int(sys.argv[1]))
