"""The options of `specscope.open` that say where a pair runs and how its models compute."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from specscope.engine.environment import processor
from specscope.engine.errors import UsageError, shown
from specscope.engine.types import check_choice, check_range, whole

if TYPE_CHECKING:
    import torch

    from specscope.engine.simulate.oracle import Source
    from specscope.engine.simulate.profile import Profile
    from specscope.engine.trace.events import Device
    from specscope.engine.trace.trace import Trace

RUNTIMES = ("local-process", "local-thread", "ray", "virtual")
FORWARDS = ("auto", "eager", "static", "compiled")
DTYPES = ("auto", "float32", "bfloat16")


def option(default: Any, metavar: str, text: str, *, given: Any = None) -> Any:
    """Declare an option that commands have, too; `given` is its default there, or its type."""
    usual = given if given is not None else str if default is None else default
    return field(default=default, metadata={"flag": (usual, metavar, text)})


@dataclass(frozen=True, slots=True)
class Options:
    """Options, checked as far as no model and no device is needed; `specscope.open` describes them.

    The flags of commands follow from the fields, in their order.

    Raises:
        UsageError: An option is wrong, or two do not go together.
    """

    runtime: str = option(
        "local-process",
        "NAME",
        "local-process, local-thread, ray, or virtual (virtual with --profile)",
        given=str,
    )
    address: str | None = option(
        None, "HOST:PORT", "head of a Ray cluster, or auto for this machine's (this machine alone)"
    )
    profile: str | Profile | None = option(  # noqa: RUF009 - it is a `field`
        None, "NAME", "latency profile of a virtual cluster: a name or a .toml file"
    )
    profile_pair: str | None = option(None, "NAME", "one of the profile's pairs")
    tokens: str | Trace | Source = option(  # noqa: RUF009
        "pair",
        "SOURCE",
        "virtual: pair decodes, bernoulli:RATE[:doubt=D] accepts drafts at a rate (pair)",
    )
    forward: str = option(
        "auto",
        "NAME",
        "eager; static for fixed shapes, on CUDA as graphs; compiled for such graphs of compiled layers, which the "
        "first forward of a size waits for; or auto: on a GPU static until layers are compiled in a pause (auto)",
    )
    device: str = option("auto", "NAME", "auto, cpu or cuda (auto)")
    dtype: str = option("auto", "NAME", "of the weights: float32 (CPUs), bfloat16 (GPUs) or auto (auto)")
    tp: int = option(1, "N", "split the target over N devices, with local-process or ray (1)")
    drafter_tp: int = option(1, "M", "split the drafter over M devices (1)")
    memory: str = option(
        "", "SIZES", "bytes for models by device, as in 0=4GiB,1=4GiB; may split by layers (all)"
    )
    threads: int = 1

    def __post_init__(self) -> None:
        for option, names in (("runtime", RUNTIMES), ("forward", FORWARDS), ("dtype", DTYPES)):
            value = getattr(self, option)
            check_choice(f"there is no {option} {value!r}", value, names)
        whole("threads", self.threads, 1, os.cpu_count() or 1)
        for name in ("tp", "drafter_tp"):
            whole(name, getattr(self, name), -inf)  # `check_devices` knows the range
        if error := self._virtual_error() if self.runtime == "virtual" else self._measured_error():
            raise UsageError(error)
        if self.address is not None and self.runtime != "ray":
            raise UsageError(
                f"address is {self.address!r}, but the runtime is {self.runtime}; use the runtime ray"
            )
        if (self.tp, self.drafter_tp) != (1, 1) and self.runtime not in ("local-process", "ray"):
            raise UsageError(
                f"tp is {self.tp} and drafter_tp is {self.drafter_tp}, but models are split by tensors over "
                f"processes: use the runtime local-process or ray instead of {self.runtime}, or leave both at 1"
            )
        if self.is_sharded and self.forward == "compiled":
            raise UsageError(
                f"forward is compiled, but models are split by tensors (tp {self.tp}, drafter_tp {self.drafter_tp}), "
                "and the layers of a split model are not compiled; use static, or leave forward out"
            )
        if self.memory and self.runtime in ("virtual", "ray"):
            raise UsageError(
                f"memory {shown(self.memory)} is for local devices; leave it out with the runtime {self.runtime}"
            )

    def _virtual_error(self) -> str:
        if self.profile is None:
            return "the runtime virtual needs a profile"
        if self.is_static or self.dtype != "auto":
            return (
                f"forward {self.forward} and dtype {self.dtype} are for local devices; the runtime virtual takes "
                "auto only"
            )
        return ""

    def _measured_error(self) -> str:
        if self.profile is not None:
            name = getattr(self.profile, "name", self.profile)
            return f"the runtime {self.runtime} measures; the profile {name!r} is for virtual"
        if self.tokens != "pair":
            return "recorded or Bernoulli tokens need the runtime virtual and a profile"
        return ""

    @property
    def is_static(self) -> bool:
        """Whether fixed shapes are asked for, compiled or not."""
        return self.forward in ("static", "compiled")

    @property
    def block(self) -> bool:
        """Whether the drafter of a source of models is a block drafter."""
        return getattr(self.tokens, "block", False)

    @property
    def is_sharded(self) -> bool:
        return max(self.tp, self.drafter_tp) > 1

    def forward_on(self, device: Device) -> str:
        """Return how forwards of few rows run: `eager`, `static`, `compiled`, or `auto` on a GPU.

        There graphs halve the time of a forward.
        """
        if self.forward != "auto":
            return self.forward
        return "auto" if device.kind == "cuda" and not self.is_sharded else "eager"

    def dtype_on(self, device: Device) -> torch.dtype:
        import torch  # takes seconds; the command line reads only the declarations

        usual = "bfloat16" if device.kind == "cuda" else "float32"
        return getattr(torch, usual if self.dtype == "auto" else self.dtype)

    def facts(self, device: Device) -> dict[str, Any]:
        """Return the options that a measured trace's header holds, for models on such a device."""
        names = ("threads", "forward", "dtype", *(("tp", "drafter_tp") if self.is_sharded else ()))
        given = {name: getattr(self, name) for name in names}
        return {"host": processor()} | given | {"forward": self.forward_on(device)}

    def check_devices(self, count: int, *, drafter: bool) -> None:
        """Check that models can be split by tensors over `count` devices."""
        check_range("tp", self.tp, 1, count)
        check_range("drafter_tp", self.drafter_tp, 1, count)
        if self.drafter_tp > 1 and not drafter:
            raise UsageError(
                f"drafter_tp is {self.drafter_tp}, but there is no drafter; name one with --drafter"
            )
