"""What tests of the playground fill in, press and read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any


def given(page: Any, **changed: object) -> list:
    """Return the values of the form's controls."""
    return [changed.get(name, control.value) for name, control in page.form.controls.items()]


def noted(page: Any, **changed: object) -> list:
    """Return the values of those controls that a page notes: not the key of a server."""
    names = [name for name in page.form.controls if name != "server_key"]
    return [changed.get(name, page.form.controls[name].value) for name in names]


def play_all(updates: AsyncIterator[dict], act: Callable[[list[dict]], object] | None = None) -> list[dict]:
    """Return all updates of a handler; `act` sees those until each of them."""

    async def drain() -> list[dict]:
        seen = []
        async for update in updates:
            seen.append(update)
            if act is not None:
                act(seen)
        return seen

    return asyncio.run(drain())


def merged(updates: list[dict]) -> dict:
    """Return what the page shows after some updates."""
    state: dict = {}
    for update in updates:
        state |= update
    return state


def shown(updates: AsyncIterator[dict], act: Callable[[dict], object] | None = None) -> dict:
    """Return what the page shows after a handler; `act` sees it after each update."""
    return merged(play_all(updates, None if act is None else lambda seen: act(merged(seen))))
