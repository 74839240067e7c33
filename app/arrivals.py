"""Arrivals of requests: drawn at a rate, or read from a text or a file."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import NamedTuple

from engine.errors import UsageError, shown
from engine.files import parse_json, read_text

LEAST_RATE = 1e-6
"""Lowest rate in requests/s: one in eleven days."""


class Arrival(NamedTuple):
    """One request of a file."""

    seconds: float
    """After the first moment of the file's clock."""
    prompt: str | None
    """None where the file has times only."""


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return the seconds of a Poisson process: the first request at 0, then exponential gaps.

    Args:
        rate: Requests per second, at least LEAST_RATE.
        count: Requests.
        seed: Equal seeds give equal arrivals.
    """
    if not (math.isfinite(rate) and rate >= LEAST_RATE):
        raise UsageError(f"the rate is {rate:g}; it must be at least {LEAST_RATE:g} requests/s, and finite")
    draws, now = random.Random(seed), 0.0
    times = list[float]()
    for _ in range(count):
        times.append(now)
        now += draws.expovariate(rate)
    return times


def read_arrivals(path: Path, most: int) -> list[Arrival]:
    """Read a file of at most `most` bytes; see `parse_arrivals`."""
    return parse_arrivals(read_text(path, most), path, rows=path.suffix == ".jsonl")


def parse_arrivals(content: str, path: object, *, rows: bool = False) -> list[Arrival]:
    """Return the requests of a text: a time a line, or JSON with `arrival` and perhaps `prompt`.

    Args:
        content: The text.
        path: Its name in messages.
        rows: Whether a line is a JSON object.

    Raises:
        UsageError: There is no request, or a line is wrong; the message has the line's number.
    """
    parse = _row if rows else _time
    lines = enumerate(content.split("\n"), 1)
    found = [parse(line, f"{path} line {n}") for n, line in lines if line.strip()]
    if not found:
        raise UsageError(f"{path} has no arrival; write one time in seconds in each line")
    prompted = sum(one.prompt is not None for one in found)
    if 0 < prompted < len(found):
        raise UsageError(
            f"{path} has a prompt in {prompted} of {len(found)} rows; give one in all or in none"
        )
    return found


def _time(line: str, where: str) -> Arrival:
    try:
        seconds = float(line)
    except ValueError:
        raise UsageError(f"{where} is {shown(line.strip())}; it must be a time in seconds") from None
    return Arrival(_checked(seconds, where), None)


def _row(line: str, where: str) -> Arrival:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where} is {shown(row)}; it must be an object with arrival and prompt")
    seconds, prompt = row.get("arrival"), row.get("prompt")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{where} has arrival {shown(seconds)}; it must be a time in seconds")
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        raise UsageError(f"{where} has prompt {shown(prompt)}; it must be a text")
    return Arrival(_checked(float(seconds), where), prompt)


def _checked(seconds: float, where: str) -> float:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"{where} has the time {seconds:g}; it must be at least 0, and finite")
    return seconds
