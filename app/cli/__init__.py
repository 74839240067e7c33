"""One file per command: `add_arguments(parser)`, `run(args) -> exit code`, docstring = help."""

from app.cli import (
    bench,
    calibrate,
    compare,
    diff,
    export,
    imports,
    load,
    methods,
    models,
    papers,
    plan,
    play,
    report,
    run,
    sweep,
    train,
    whatif,
)

COMMANDS = {
    "play": play,
    "run": run,
    "compare": compare,
    "sweep": sweep,
    "load": load,
    "methods": methods,
    "models": models,
    "plan": plan,
    "report": report,
    "whatif": whatif,
    "diff": diff,
    "export": export,
    "import": imports,
    "train": train,
    "calibrate": calibrate,
    "bench": bench,
    "papers": papers,
}
"""Module by command."""
