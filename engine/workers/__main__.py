"""A worker process, `python -m engine.workers FD`, or the fork server, with a second word `forks`.

See `engine.workers.transports.process` and `engine.workers.transports.forks`.
"""

import os
import sys

from engine.workers.transports.lifetime import end_with_parent

if __name__ == "__main__":
    end_with_parent(os.getppid())  # first: the imports take seconds
    if sys.argv[2:]:
        from engine.workers.transports.fork_server import serve_forks

        serve_forks(int(sys.argv[1]))
    else:
        from engine.workers.transports.serve import serve

        serve(int(sys.argv[1]))
