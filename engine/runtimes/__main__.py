"""A worker process, or with a third word `forks` the fork server.

`python -P -m specscope.engine.runtimes FD PARENT` starts it. See `process.py` and
`forks.py` beside this file.
"""

import sys

from specscope.engine.runtimes.forks import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))  # first: the imports take seconds
    from specscope.engine.runtimes.serve import serve, serve_forks

    (serve_forks if sys.argv[3:] else serve)(int(sys.argv[1]))
