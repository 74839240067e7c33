"""The entry point of `specscope`: Ctrl-C works from here on. Then commands are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from specscope.app.signals import STOPPED, ended_at_once, terminable


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; print an error as one line on stderr.

    Exit codes: 0 success, 1 failed run, 2 bad usage, 130 after SIGINT, 143 after SIGTERM, 129 after
    SIGHUP. As the program, without `argv`, it waits for no thread after a signal.
    """
    with ended_at_once():
        from specscope.app.command import carry_out
    with terminable() as signals:
        code = carry_out(argv, signals)
        if argv is None and code in STOPPED:
            os._exit(code)
        return code


if __name__ == "__main__":
    sys.exit(main())
