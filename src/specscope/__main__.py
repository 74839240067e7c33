"""`python -m specscope`: the command line."""

import sys

from specscope.app.main import main

if __name__ == "__main__":
    sys.exit(main())
