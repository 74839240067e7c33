"""How long a forward takes on hardware we do not have: a roofline anchored at one published speed per model.

Sources: PEARL (ICLR 2025), Table 10 (one-row speeds, shapes), appendix C.3 (placement), Table 15 (judge, communicate),
appendix G and Table 16 (moving KV rows); EasySpec, Table 1 (speeds under tensor parallelism); the profiles name others.

    T(rows, context, batch) = max(bandwidth, compute) + cache + hops + layers * launch

    bandwidth   weight bytes / memory bandwidth: the weights are streamed once, however many rows there are
    compute     (2 * weights * rows + 4 * layers * dim * rows * keys) / peak; a row attends to
                keys = (context + (rows + batch) / 2) / batch rows, on average
    cache       KV bytes of context + rows / memory bandwidth
    hops        split by layers: rows * dim * element size / link, once per border between the GPUs of a model
                tensor-parallel: two all-reduces a layer, each of 2 (g - 1) / g times that
    launch      what the published speed leaves: (1 / speed - the first four at 1 row, no context, one sequence) / layers

So one row after an empty cache costs exactly what was measured, and nothing is fitted. A model split by layers runs
them one after the other (PEARL places it with accelerate), so one GPU's bandwidth and peak count. Under tensor
parallelism all g GPUs work on every layer: bandwidth, compute and cache are divided by g, and the waits of the all-reduces
are in launch. Weights are all that a forward reads: every matrix and the head, not the embedding table.

What the model leaves out, on purpose: launches that overlap with streaming, bandwidth below the data sheet's, the length
at which a speed was measured. All of it ends up in launch, which is why that is not one number: in PEARL's Table 10
405-474 us a layer for six of the ten models, 513-537 for the 70B ones (three GPUs), 607 for Deepseek 1.3B. One number for
the software stack, their median of 456 us, would miss Table 10's times by at most 6 %, and Deepseek 1.3B's by 23 %.

A model may instead have times measured on a grid (`measured.py`, `specscope calibrate`); then those are all that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.simulate.measured import Grid

if TYPE_CHECKING:
    from engine.heads.drafting import Work

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of one weight, by dtype."""

SPLITS = ("layers", "tensor")
"""How a model lies on several GPUs: whole layers one after the other, or a share of every layer on each."""

OPERATORS = 40
"""Operators that a Llama layer of transformers runs per token."""
ATTENTION_LAUNCHES = 26 / OPERATORS
"""Share of a layer's launches that is attention: 26 of the 40 operators that a Llama layer of transformers runs per token
(norm 8, attention 17, residual 1; then norm 8, MLP 5, residual 1), views left out. `test_latency.py` counts them."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of GPU and the link between two of them. A number that no source gives is None: asking for it is an error."""

    name: str
    link_gb_s: float
    """Between two GPUs, one direction, 10^9 bytes per second."""
    source: str
    bandwidth_gb_s: float | None = None
    """Memory bandwidth, 10^9 bytes per second."""
    peak_tflops: float | None = None
    """Dense matrix products in the models' dtype, 10^12 per second."""
    collective_us: float | None = None
    """What all GPUs wait for one all-reduce or gather besides its bytes, microseconds."""

    def known(self, name: str) -> float:
        """Return one of its numbers.

        Raises:
            UsageError: No source gives it.
        """
        value: float | None = getattr(self, name)
        if value is None:
            raise UsageError(f"the profile of {self.name} does not say hardware.{name}; choose another one")
        return value

    def stream_us(self, size: float) -> float:
        """Microseconds to read so many bytes of one GPU's memory."""
        return size / (self.known("bandwidth_gb_s") * 1e3)

    def compute_us(self, operations: float) -> float:
        """Microseconds of so many floating-point operations on one GPU."""
        return operations / (self.known("peak_tflops") * 1e6)

    def link_us(self, size: float) -> float:
        """Microseconds to send so many bytes from one GPU to another."""
        return size / (self.link_gb_s * 1e3)


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a decoder, and its published speed."""

    title: str
    layers: int
    dim: int
    ffn: int
    """Inner width of the MLP."""
    kv_heads: int
    vocab: int
    dtype: str
    gpus: int
    """GPUs it is split over."""
    speed: float
    """Tokens per second of autoregressive decoding: 1 / T(one row)."""
    source: str
    head_dim: int = 128
    gated: bool = True
    """The MLP has three matrices (gate, up, down), not two."""
    split: str = "layers"
    """One of SPLITS."""
    measured: Grid | None = None
    """Times on a grid, instead of the roofline."""

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's attention: q and o, k and v (heads times head_dim is dim in every model here)."""
        return 2 * self.dim**2 + 2 * self.dim * self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of one layer: attention and MLP."""
        return self.attention_weights + (3 if self.gated else 2) * self.dim * self.ffn

    @property
    def weights(self) -> int:
        """Weights one forward reads: those of all layers, and the head."""
        return self.layers * self.layer_weights + self.vocab * self.dim

    @property
    def element(self) -> int:
        """Bytes of one weight."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache per row."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element

    def forward_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Microseconds of a forward; the arguments are those of `Latency`."""
        if self.measured is not None:
            return self.measured(rows / batch, context / batch, batch)
        return self.layers * self.launch_us(hardware) + self.roofline_us(hardware, rows, context, batch)

    def roofline_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Microseconds of a forward without its launches."""
        busy = self._matrices_us(hardware, self.weights, self.layers, rows, context, batch)
        cache = hardware.stream_us(self.kv_bytes * (context + rows)) / self._at_once
        return busy + cache + self._hops_us(hardware, rows)

    def head_us(self, hardware: Hardware, work: Work, rows: int, context: int) -> float:
        """Microseconds of a drafting head's forward beside this model; the arguments are those of `Latency.head`.

        A roofline of what it computes: layers of this model's shape, D x D matrices, output matrices. The launches of a layer are
        this model's; a D x D matrix and an output matrix have a fortieth of them each (one operator of a layer's 40). Of a model
        measured on a grid the time of a forward, by the share of its weights.
        """
        weights = (
            work.layers * self.layer_weights + work.squares * self.dim**2 + work.heads * self.vocab * self.dim
        )
        if self.measured is not None:
            return self.measured(rows, context, 1) * weights / self.weights
        outputs = work.outputs or rows
        logits = outputs * min(1, work.heads) * self.vocab * self.dim
        products = rows * (weights - work.heads * self.vocab * self.dim) + logits
        attended = 4 * work.layers * self.dim * rows * (context + (rows + 1) / 2)
        busy = max(hardware.stream_us(weights * self.element), hardware.compute_us(2 * products + attended))
        cache = hardware.stream_us(work.layers * self.kv_bytes / self.layers * (context + rows))
        launches = work.layers + (work.squares + work.heads) / OPERATORS
        return (busy + cache) / self._at_once + launches * self.launch_us(hardware)

    def launch_us(self, hardware: Hardware) -> float:
        """Microseconds per layer that the published speed needs on top of the roofline."""
        return (1e6 / self.speed - self.roofline_us(hardware, 1, 0)) / self.layers

    def attention_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Microseconds of one layer's attention: its share of the launches, its own matrices, its KV rows.

        Raises:
            UsageError: The model was measured as a whole.
        """
        launches = ATTENTION_LAUNCHES * self._launch_known(hardware)
        busy = self._matrices_us(hardware, self.attention_weights, 1, rows, context, batch)
        cache = hardware.stream_us(self.kv_bytes * (context + rows)) / self._at_once / self.layers
        return launches + busy + cache

    def layer_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Microseconds of one layer, what its GPUs send to each other left out (errors as `attention_us`)."""
        launches = self._launch_known(hardware)
        busy = self._matrices_us(hardware, self.layer_weights, 1, rows, context, batch)
        cache = hardware.stream_us(self.kv_bytes * (context + rows)) / self._at_once / self.layers
        return launches + busy + cache

    @property
    def _at_once(self) -> int:
        """GPUs that work on one layer at the same time."""
        return self.gpus if self.split == "tensor" else 1

    def _matrices_us(
        self, hardware: Hardware, weights: int, layers: int, rows: int, context: int, batch: int
    ) -> float:
        keys = (context + (rows + batch) / 2) / batch
        bandwidth = hardware.stream_us(weights * self.element)
        compute = hardware.compute_us(2 * weights * rows + 4 * layers * self.dim * rows * keys)
        return max(bandwidth, compute) / self._at_once

    def _hops_us(self, hardware: Hardware, rows: int) -> float:
        if self.gpus == 1:
            return 0.0
        once = hardware.link_us(rows * self.dim * self.element)
        if self.split == "tensor":
            return 2 * self.layers * 2 * (self.gpus - 1) / self.gpus * once
        return (self.gpus - 1) * once

    def _launch_known(self, hardware: Hardware) -> float:
        if self.measured is not None:
            raise UsageError(
                f"{self.title} was measured in whole forwards: the profile does not say what its attention layers "
                "take; choose a profile with published figures, such as 8xA100"
            )
        return self.launch_us(hardware)
