"""Why a call of a Ray actor failed, in a few words."""

from __future__ import annotations

from engine.errors import one_line


def cause(error: BaseException) -> str:
    """Return in a few words what Ray reports of a call that failed."""
    from ray import exceptions

    if isinstance(error, exceptions.ActorUnavailableError):
        return "cannot be reached"
    if isinstance(error, exceptions.ActorDiedError) and "creation task" in str(error):
        last = one_line(str(error).rstrip().splitlines()[-1])
        missing = "; install SpecScope with the extra ray on its node" if "No module named" in last else ""
        return f"cannot start ({last}){missing}"
    if isinstance(error, exceptions.ActorDiedError):
        return "died"
    if isinstance(error, exceptions.ObjectLostError):
        return "lost the data of another worker that died"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"failed ({text[:200]})"
