"""One file per command: `OPTIONS`, `run(args) -> exit code`, docstring = help."""

from importlib import import_module

NAMES = (
    *("play", "run", "compare", "sweep", "map", "advise", "load"),
    *("methods", "models", "plan", "runs", "follow", "report"),
    *("whatif", "diff", "audit", "export", "import", "train"),
    *("calibrate", "bench", "papers", "completion"),
)
FILES = {"import": "imports"}
"""Files of commands whose name is a keyword of Python."""
COMMANDS = {name: import_module(f"specscope.app.cli.{FILES.get(name, name)}") for name in NAMES}
