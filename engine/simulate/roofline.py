"""Times of forwards on published hardware: a roofline anchored at one published speed per model.

Without a published speed the anchor is computed from the card's data sheet
(`PublishedModel.computed_us`).

Sources: PEARL (ICLR 2025), Table 10 (one-row speeds, shapes), appendix C.3 (placement), Table 15
(judge, communicate), appendix G and Table 16 (moving KV rows); EasySpec, Table 1 (speeds under
tensor parallelism); the profiles name others.

    T(rows, context, batch) = max(bandwidth, compute) + cache + hops + layers * launch
                              or bandwidth + compute, where the speed is computed

    bandwidth   weight bytes / memory bandwidth: every forward reads the weights once
    compute     (2 * weights * rows + 4 * layers * heads * head_dim * rows * keys) / peak; a row
                attends to keys = (context + (rows + batch) / 2) / batch rows, on average
    cache       KV bytes of context + rows / memory bandwidth
    hops        split by layers: rows * dim * element size / link, once per border between the GPUs
                of a model tensor-parallel: two all-reduces a layer, each of 2 (g - 1) / g times
                that
    launch      (1 / published speed - the first four terms at 1 row, no context, one sequence) /
    layers

So one row after an empty cache takes exactly the published time, and no constant is fitted here;
`Latency.fitted` takes published times of a fuzzy forward and of a verification. A model
split by layers runs them one after the other (PEARL places it with accelerate), so one GPU's
bandwidth and peak count. Under tensor parallelism all g GPUs work on every layer: bandwidth,
compute and cache are divided by g, and the waits of the all-reduces are in launch. A forward reads
all weights but the embedding table: every matrix and the output head.

The formula deliberately leaves out launches that overlap with streaming, bandwidth below the data
sheet's, and the length at which a speed was measured. All of these end up in launch, so launch
differs between models: in PEARL's Table 10 it is 405-474 us a layer for six of the ten models,
513-537 for the 70B ones (three GPUs), 607 for Deepseek 1.3B. Their median of 456 us for all models
would miss Table 10's times by at most 6 %, and Deepseek 1.3B's by 23 %.

Weights of fewer bits are those of the layers' matrices; the LM head, activations, keys and values
have 16. A forward of n rows reads, in each layer of a mixture of E experts of which k compute a
row, E (1 - (1 - k / E)^n) experts: the expected number of distinct ones if rows choose evenly.

A model may instead have times measured on a grid (`engine.simulate.grid`), which replace the
formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from specscope.engine.errors import UsageError
from specscope.engine.heads.work import Work
from specscope.engine.simulate.records import Delay, Positive

WEIGHT_BITS = {"bfloat16": 16, "float16": 16, "float32": 32, "fp8": 8, "int8": 8, "int4": 4.25}
"""Bits of a weight in a layer's matrices; int4 has two numbers of 16 bits for 128 weights."""

SPLITS = ("layers", "tensor")
"""Distribution of a model over GPUs: whole layers on each, or a share of every layer on each."""
COPIES = "copies"
"""Of a drafter, too: all of it on each GPU, for a share of the sequences."""

OPERATORS = 40
"""Operators that a Llama layer of transformers runs per token."""
ATTENTION_LAUNCHES = 26 / OPERATORS
"""Attention's share of a layer's launches: 26 of the 40 operators, views left out.

Norm 8, attention 17, residual 1; then norm 8, MLP 5, residual 1. `test_latency.py` counts them.
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of GPU and the link between two of them; a number without a source is None."""

    name: str
    link_gb_s: Positive
    """Link between two GPUs, one direction, 10^9 bytes per second."""
    source: str
    bandwidth_gb_s: Positive | None = None
    """Memory bandwidth, 10^9 bytes per second."""
    peak_tflops: Positive | None = None
    """Dense matrix products in the models' dtype, 10^12 per second."""
    collective_us: Positive | None = None
    """Microseconds that all GPUs wait for one all-reduce or gather, besides its bytes."""
    memory_gib: Positive | None = None
    """Memory of one GPU, 2^30 bytes: what a data sheet calls GB."""
    fp8_tflops: Positive | None = None
    """Dense products of fp8 weights; by default they are unpacked to 16 bits, as int4's are."""
    int8_tops: Positive | None = None
    """The same of int8 weights."""
    hop_us: Delay = 0.0
    """What each of the 2 (g - 1) steps of an all-reduce among g GPUs adds to `collective_us`."""
    layer_us: Delay | None = None
    """Microseconds of a layer's kernels and their launches besides streaming and products."""
    host_us: Delay = 0.0
    """Microseconds of the host per forward."""

    def known(self, name: str) -> float:
        value: float | None = getattr(self, name)
        if value is None:
            raise UsageError(f"the profile of {self.name} does not say hardware.{name}; choose another one")
        return value

    def stream_us(self, size: float) -> float:
        return size / (self.known("bandwidth_gb_s") * 1e3)

    def compute_us(self, operations: float) -> float:
        return operations / (self.known("peak_tflops") * 1e6)

    def speed_up(self, dtype: str) -> float:
        """Return how many times as fast as those of 16 bits products with such weights are."""
        peak = {"fp8": self.fp8_tflops, "int8": self.int8_tops}.get(dtype)
        return peak / self.known("peak_tflops") if peak else 1.0

    def link_us(self, size: float) -> float:
        return size / (self.link_gb_s * 1e3)


@dataclass(frozen=True, slots=True)
class PublishedModel:
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
    speed: float
    """Tokens per second of autoregressive decoding: 1 / T(one row)."""
    source: str
    head_dim: int = 128
    gated: bool = True
    """The MLP has three matrices (gate, up, down), not two."""
    split: str = "layers"
    measured: Callable[[float, float, float], float] | None = None
    """Microseconds by rows and context per sequence and by sequences, as of a `Grid`; they replace
    the roofline."""
    attention_launches: float = ATTENTION_LAUNCHES
    """Attention's share of a layer's launches."""
    heads: int = 0
    """Query heads; 0 for dim / head_dim."""
    tied: bool = False
    """Whether the output head is the embedding table."""
    experts: int = 0
    """Experts of each layer, in place of its MLP; 0 for none."""
    experts_per_token: int = 1
    """Experts that compute a row."""
    expert_ffn: int = 0
    """Inner width of an expert."""
    computed: bool = False
    """Whether the speed is `computed_us`'s instead of a published one.

    Bandwidth and compute then add up: a published speed, which has both in its launches, says how
    well a machine hides one behind the other, and nothing else does.
    """

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim or self.dim

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's attention: q, o, k and v."""
        return 2 * self.dim * (self.attention_width + self.kv_heads * self.head_dim)

    @property
    def layer_weights(self) -> float:
        """Weights of one layer: attention and MLP; of a mixture with all experts."""
        return self.attention_weights + self._mlp_weights(self.experts)

    @property
    def weights(self) -> float:
        """Weights of all layers and the output head: what one forward of many rows reads."""
        return self.layers * self.layer_weights + self.vocab * self.dim

    @property
    def element(self) -> int:
        """Bytes of a number of the activations, the cache and the output head."""
        return 4 if self.dtype == "float32" else 2

    @property
    def kv_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element

    def _mlp_weights(self, experts: float) -> float:
        """Return the weights of one layer's MLP, or of its router and some of its experts."""
        matrices = (3 if self.gated else 2) * self.dim
        if not self.experts:
            return matrices * self.ffn
        return self.dim * self.experts + experts * matrices * self.expert_ffn

    def experts_read(self, rows: int) -> float:
        """Return how many of a layer's experts so many rows use, if they choose them evenly."""
        return (
            self.experts * (1 - (1 - self.experts_per_token / self.experts) ** rows) if self.experts else 0.0
        )

    def forward_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        if self.measured is not None:
            return self.measured(rows / batch, context / batch, batch)
        if self.split == COPIES:  # the one with the most sequences
            most = ceil(batch / self.gpus)
            rows, context, batch = ceil(rows * most / batch), ceil(context * most / batch), most
        return self.layers * self.launch_us(hardware) + self.roofline_us(hardware, rows, context, batch)

    def computed_us(self, hardware: Hardware) -> float:
        """Return one row's microseconds from the data sheet: the anchor without a published speed.

        It is the roofline, the layers' launches, the host, and the waits of all-reduces.
        """
        tensor = self.split == "tensor" and self.gpus > 1
        wait = hardware.known("collective_us") + 2 * (self.gpus - 1) * hardware.hop_us if tensor else 0.0
        launches = self.layers * (hardware.known("layer_us") + 2 * wait)
        return replace(self, computed=True).roofline_us(hardware, 1, 0) + launches + hardware.host_us

    def roofline_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Return the microseconds of a forward without its launches."""
        read, used = (
            self.layers * (self.attention_weights + self._mlp_weights(count))
            for count in (self.experts_read(rows), self.experts_per_token)
        )
        head = self.vocab * self.dim
        busy = self._matrices_us(hardware, (read, used, head), self.layers, rows, context, batch)
        return busy + self._cache_us(hardware, rows, context) + self._hops_us(hardware, rows)

    def head_us(self, hardware: Hardware, work: Work, rows: int, context: int, batch: int = 1) -> float:
        """Return the microseconds of a drafting head's forward; arguments as for `Latency.head`.

        The roofline of its layers of this model's shape, its D x D matrices and its output
        matrices. A layer has this model's launches, any other matrix a fortieth of them (one of a
        layer's 40 operators). For a model measured on a grid: the model's time multiplied by the
        head's share of weights.
        """
        layer = self.attention_weights + (3 if self.gated else 2) * self.dim * self.ffn
        weights = work.layers * layer + work.squares * self.dim**2 + work.heads * self.vocab * self.dim
        if self.measured is not None:
            return self.measured(rows / batch, context / batch, batch) * weights / self.weights
        outputs = work.outputs or rows
        logits = outputs * min(1, work.heads) * self.vocab * self.dim
        products = rows * (weights - work.heads * self.vocab * self.dim) + logits
        attended = 4 * work.layers * self.dim * rows * _keys(rows, context, batch)
        busy = max(hardware.stream_us(weights * self.element), hardware.compute_us(2 * products + attended))
        cache = hardware.stream_us(work.layers * self.kv_bytes / self.layers * (context + rows))
        launches = work.layers + (work.squares + work.heads) / OPERATORS
        return (busy + cache) / self._gpus_per_layer + launches * self.launch_us(hardware)

    def launch_us(self, hardware: Hardware) -> float:
        """Return the microseconds per layer by which the published time exceeds the roofline."""
        return (1e6 / self.speed - self.roofline_us(hardware, 1, 0)) / self.layers

    def attention_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Return the microseconds of one layer's attention: launches, matrices and KV rows."""
        launches = self.attention_launches * self._launch_known(hardware)
        own = self.attention_weights
        busy = self._matrices_us(hardware, (own, own, 0), 1, rows, context, batch)
        return launches + busy + self._cache_us(hardware, rows, context) / self.layers

    def layer_us(self, hardware: Hardware, rows: int, context: int, batch: int = 1) -> float:
        """Return the microseconds of one layer without transfers."""
        launches = self._launch_known(hardware)
        own = self.attention_weights
        weights = (
            own + self._mlp_weights(self.experts_read(rows)),
            own + self._mlp_weights(self.experts_per_token),
            0,
        )
        busy = self._matrices_us(hardware, weights, 1, rows, context, batch)
        return launches + busy + self._cache_us(hardware, rows, context) / self.layers

    @property
    def _gpus_per_layer(self) -> int:
        return self.gpus if self.split == "tensor" else 1

    def _matrices_us(
        self,
        hardware: Hardware,
        weights: tuple[float, float, int],
        layers: int,
        rows: int,
        context: int,
        batch: int,
    ) -> float:
        """Return the microseconds of matrices: weights read, those a row uses, and the head's."""
        read, used, head = weights
        bandwidth = hardware.stream_us(read * WEIGHT_BITS[self.dtype] / 8 + head * self.element)
        attended = 4 * layers * self.attention_width * rows * _keys(rows, context, batch)
        products = used / hardware.speed_up(self.dtype) + head
        compute = hardware.compute_us(2 * products * rows + attended)
        busy = bandwidth + compute if self.computed else max(bandwidth, compute)
        return busy / self._gpus_per_layer

    def _cache_us(self, hardware: Hardware, rows: int, context: int) -> float:
        return hardware.stream_us(self.kv_bytes * (context + rows)) / self._gpus_per_layer

    def _hops_us(self, hardware: Hardware, rows: int) -> float:
        if self.gpus == 1 or self.split == COPIES:
            return 0.0
        transfer = hardware.link_us(rows * self.dim * self.element)
        if self.split == "tensor":
            return 2 * self.layers * 2 * (self.gpus - 1) / self.gpus * transfer
        return (self.gpus - 1) * transfer

    def _launch_known(self, hardware: Hardware) -> float:
        if self.measured is not None:
            raise UsageError(
                f"{self.title} was measured in whole forwards: the profile does not say what its attention layers "
                "take; choose a profile with published figures, such as 8xA100"
            )
        return self.launch_us(hardware)


def _keys(rows: int, context: int, batch: int) -> float:
    return (context + (rows + batch) / 2) / batch
