"""Checks of a header that is written or was read. Standard library only.

What a recorder writes is checked as what an import reads: so every stored run can be opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from specscope.engine.bounds import MOST_SEQUENCES
from specscope.engine.errors import UsageError, one_line, shown
from specscope.engine.schema import Range, fits
from specscope.engine.trace.events import NO_DEVICES, Header
from specscope.engine.trace.jsonl import MOST_LINE, check_types, expected, from_json, frozen, to_json
from specscope.engine.trace.ranges import (
    LONGEST_DRAFT,
    MOST_DEVICES,
    MOST_PROMPTS,
    MOST_TIME,
    Amount,
    Count,
    Id,
    Place,
    Size,
    Time,
    TokenId,
)

_ID = re.compile(r"\w[\w.-]{0,99}")
"""An id is a part of addresses, file names and command lines; `,`, `~` and `;` join ids."""
SERVER = "server"
"""The entry of the environment about the server of a run, see `specscope.engine.servers`."""
STATED = ("seconds", "decode_seconds", "tokens_per_second", "ttft_ms", "tpot_ms")
"""Figures that the file of another engine may state itself, by the names of `Metrics`."""
_ANY = "*"
"""In a form of an object: all names that are not listed."""
_Moment = Annotated[int, Range(-MOST_TIME, MOST_TIME)]
_Texts = tuple[str, ...]
FORMS: dict[str, Any] = {
    "sampling": {
        "temperature": (Amount,),
        "top_k": (Annotated[float, Range(-1, 2**31)],),
        "top_p": (Annotated[float, Range(0, 1)],),
    },
    "limits": {"max_new_tokens": Count, "stop": _Texts, "eos": tuple[TokenId, ...]},
    "environment": {
        "clocks": {_ANY: {"node": str, "offset_ns": _Moment, "uncertainty_ns": _Moment}},
        "cores": Count,
        "head": str,
        "imported": {
            "source": str,
            "unknown": _Texts,
            "known": _Texts,
            "prompt_tokens": tuple[Place, ...],
            "dated": bool,
            "counts": {
                "histogram": tuple[Size, ...],
                "drafted": (Size,),
                "gamma": (Annotated[int, Range(0, LONGEST_DRAFT)],),
                "tokens": (Count,),
            },
            "stated": dict.fromkeys(STATED, Amount),
        },
        "load": {
            "arrivals": tuple[Time, ...],
            "batch": Annotated[int, Range(1, MOST_SEQUENCES)],
            "chunk": Count,
            "policy": str,
        },
        "open": {},
        "pair": str,
        "planned": {
            "nodes": Count,
            "levels": Count,
            "tokens_per_forward": Amount,
            "speedup": Amount,
            "low": Amount,
            "high": Amount,
            "runs": Id,
            "others": Amount,
            "shared": bool,
        },
        "profile_pair": str,
        SERVER: {"kind": str, "version": str, "address": str, "unknown": _Texts, "notes": _Texts},
        "recorded": {"start_ns": _Moment, "unknown": _Texts},
        "whatif": {"run": str},
    },
}
"""Field of a header -> name -> the type of its value, or the form of an object.

In a tuple if it may be null. Other names are checked where they are read.
"""


def check_header(header: Header) -> None:
    """Raise ValueError for a value that has another type or range, or contradicts another one."""
    check_types([header])
    check_types(header.devices)
    if not _ID.fullmatch(header.run_id):
        raise ValueError(
            f"run_id of a header is {shown(header.run_id)}; expected 1 to 100 letters, digits and _ . -, "
            "the first of them no . or -"
        )
    for name, form in FORMS.items():
        _check_form(name, getattr(header, name), form)
    _check_devices([d.name for d in header.devices])
    _check_counts(header)


def check_readable(header: Header) -> None:
    """Raise UsageError for a header that cannot be read back."""
    try:
        line = to_json(header)
        if len(line.encode()) > MOST_LINE:
            raise ValueError(f"a header has more than {MOST_LINE} bytes")
        from_json(line)
        check_header(header)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{one_line(error)}; give Python's own values: texts, numbers, lists") from None


def _check_form(name: str, value: Any, form: Any) -> None:
    if isinstance(form, tuple):
        if value is None:
            return
        (form,) = form
    if not isinstance(form, Mapping):
        if not fits(frozen(value), form):
            raise ValueError(f"{name} of a header is {shown(value)}{expected(form)}")
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} of a header is {shown(value)}; expected an object")
    for key, part in value.items():
        if key in form:
            _check_form(f"{name}.{key}", part, form[key])
        elif _ANY in form:
            _check_form(f"{name}[{shown(key)}]", part, form[_ANY])


def _check_devices(names: list[str]) -> None:
    if len(names) > MOST_DEVICES:
        raise ValueError(f"there are {len(names)} devices; at most {MOST_DEVICES} are read")
    if len(set(names)) < len(names):
        raise ValueError(f"two devices have the same name: {shown(', '.join(names))}")
    if taken := [name for name in names if name in ("", *NO_DEVICES)]:
        raise ValueError(f"a device has the name {shown(taken[0])}; rename it")


def _check_counts(header: Header) -> None:
    prompts = len(header.prompts)
    if prompts > MOST_PROMPTS:
        raise ValueError(f"there are {prompts} prompts; at most {MOST_PROMPTS} are read")
    if len(header.prompt_ids) != prompts:
        raise ValueError(f"there are token ids of {len(header.prompt_ids)} prompts, but {prompts} prompts")
    counts = header.environment.get("imported", {}).get("counts")
    if counts and len(counts.get("histogram", ())) > LONGEST_DRAFT + 1:
        raise ValueError(
            f"the histogram of a header has {len(counts['histogram'])} numbers; at most {LONGEST_DRAFT + 1} are read"
        )
