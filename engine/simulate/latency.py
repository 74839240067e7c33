"""How long a forward takes on hardware we do not have: a roofline anchored at one published speed per model.

Source: PEARL (ICLR 2025), Table 10 (one-row speeds, shapes), appendix C.3 (placement), Table 15 (judge, communicate).

    T(rows, context, batch) = max(bandwidth, compute) + cache + hops + layers * launch

    bandwidth   weight bytes / memory bandwidth: the weights are streamed once, however many rows there are
    compute     (2 * weights * rows + 4 * layers * dim * rows * keys) / peak; a row attends to
                keys = (context + (rows + batch) / 2) / batch rows, on average
    cache       KV bytes of context + rows / memory bandwidth
    hops        rows * dim * element size / link, once per border between the GPUs of a model
    launch      what Table 10 leaves: (1 / speed - the first four at 1 row, no context, one sequence) / layers

So one row after an empty cache costs exactly what was measured, and nothing is fitted. A model on several GPUs is split
by layers, which run one after the other (PEARL places it with accelerate), so one GPU's bandwidth and peak count.
Weights are all that a forward reads: every matrix and the head, not the embedding table (one line of it per row).

What the model leaves out, on purpose: launches that overlap with streaming, bandwidth below the data sheet's, the length
at which Table 10 was measured. All of it ends up in launch, which is why that is not one number: 405-474 us a layer for
six of the ten models, 513-537 for the 70B ones (three GPUs), 607 for Deepseek 1.3B. One number for the software stack,
their median of 456 us, would miss Table 10's times by at most 6 %, and Deepseek 1.3B's by 23 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UsageError
from engine.types import check_range

HEAD_DIM = 128
"""Width of an attention head, in every model of PEARL's Table 10."""

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of one weight, by dtype."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of GPU and the link between two of them."""

    name: str
    bandwidth_gb_s: float
    """Memory bandwidth, 10^9 bytes per second."""
    peak_tflops: float
    """Dense matrix products in the models' dtype, 10^12 per second."""
    link_gb_s: float
    """Between two GPUs, one direction, 10^9 bytes per second."""
    source: str


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a Llama-like decoder, and its published speed."""

    title: str
    layers: int
    dim: int
    ffn: int
    """Inner width of the gated MLP."""
    kv_heads: int
    vocab: int
    dtype: str
    gpus: int
    """GPUs its layers are spread over."""
    speed: float
    """Tokens per second of autoregressive decoding: 1 / T(one row)."""
    source: str

    @property
    def weights(self) -> int:
        """Weights one forward reads: q and o, k and v, the MLP's three matrices, the head."""
        layer = 2 * self.dim**2 + 2 * self.dim * self.kv_heads * HEAD_DIM + 3 * self.dim * self.ffn
        return self.layers * layer + self.vocab * self.dim

    @property
    def element(self) -> int:
        """Bytes of one weight."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache per row."""
        return 2 * self.layers * self.kv_heads * HEAD_DIM * self.element

    def roofline_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Microseconds of a forward without its launches; the arguments are those of `Latency`."""
        keys = (context + (rows + batch) / 2) / batch
        products = 2 * self.weights * rows + 4 * self.layers * self.dim * rows * keys
        bandwidth = self.weights * self.element / (hardware.bandwidth_gb_s * 1e3)
        compute = products / (hardware.peak_tflops * 1e6)
        cache = self.kv_bytes * (context + rows) / (hardware.bandwidth_gb_s * 1e3)
        hops = (self.gpus - 1) * rows * self.dim * self.element / (hardware.link_gb_s * 1e3)
        return max(bandwidth, compute) + cache + hops

    def launch_us(self, hardware: Hardware) -> float:
        """Microseconds per layer that the published speed needs on top of the roofline."""
        return (1e6 / self.speed - self.roofline_us(hardware, 1, 0)) / self.layers


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one pair of models under a profile. Pure: the same question has the same answer."""

    pair: str
    """The pair's key in its profile."""
    target: Model
    drafter: Model
    hardware: Hardware
    sample_us: int
    """Microseconds to decide the tokens once the logits are there."""
    communicate_us: int
    """Microseconds to bring a draft to the target, or its verdict back."""

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        """Return the microseconds of one forward; the formula is in the module's docstring.

        Args:
            model: `target` or `drafter`.
            rows: New rows, of all sequences together; at least 1. Prefill is a forward of many rows.
            context: Rows already cached, of all sequences together; 0 or more.
            batch: Sequences the rows belong to, assumed equally long; at least 1.

        Raises:
            UsageError: An argument is out of range, or the model is neither of the two.
        """
        check_range("rows", rows, 1)
        check_range("context", context, 0)
        check_range("batch", batch, 1, rows)
        shape = self._shape(model)
        launches = shape.layers * shape.launch_us(self.hardware)
        return round(launches + shape.roofline_us(self.hardware, rows, context, batch))

    @property
    def c(self) -> float:
        """T(target) / T(drafter), one row each: Table 10's speeds, divided."""
        return self.drafter.speed / self.target.speed

    def _shape(self, model: str) -> Model:
        if model not in ("target", "drafter"):
            raise UsageError(f"a profile times no model {model!r}; choose target or drafter")
        return self.target if model == "target" else self.drafter
