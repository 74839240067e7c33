"""The process that renders chat templates: `python -P template_process.py FD BYTES`.

`specscope.engine.checkpoints.templates` starts it. It imports neither SpecScope, transformers nor
torch, so it starts in a tenth of a second. Its Jinja environment matches transformers'
(`transformers.utils.chat_template_utils`); a test compares the texts.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_LONGEST_MESSAGE = 300


class _Refused(Exception):  # noqa: N818 - a decision of the template, not a defect
    """The template called `raise_exception`."""


class _Generation(Extension):
    """The block `{% generation %}`, which only training needs: rendered as its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node:
        next(parser.stream)
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Namespace(Namespace):
    """Variables that a template can assign; their names must not start with an underscore."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}; leave out the underscore")
        super().__setitem__(name, value)


def _dict(*args: Any, **values: Any) -> dict[Any, Any]:
    return dict(*args, **values)


def _refuse(message: object) -> None:
    raise _Refused(str(message)[:_LONGEST_MESSAGE])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    variables: dict[str, Any] = environment.globals
    variables |= {"raise_exception": _refuse, "strftime_now": _now, "dict": _dict, "namespace": _Namespace}
    return environment.from_string(template)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        text = _compiled(request["template"]).render(request["variables"])
        text.encode()  # raises for half of a surrogate pair
    except _Refused as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"failed": "it needs too much memory"}
    except Exception as error:  # noqa: BLE001 - a template can raise anything
        with suppress(Exception):
            return {"failed": f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]}
        return {"failed": type(error).__name__}
    if len(text) > request["limit"]:
        return {"failed": f"it makes {len(text)} characters; the limit is {request['limit']}"}
    return {"text": text}


def main() -> None:
    """Answer requests until the connection closes; a template over its time ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    memory = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # SIGPROF then ends the process
            reply = json.dumps(_answer(request)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(reply)


if __name__ == "__main__":
    main()
