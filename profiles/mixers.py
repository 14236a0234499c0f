"""Mixers with a state of fixed size: what a layer may have instead of attention.

A mixer reads a sequence in chunks: inside a chunk it multiplies matrices as attention does, between chunks
it passes on one state of each head, so that its cost is linear in the sequence. One object states the sizes
of all such layers of a model; ``MixerSpec`` alone distinguishes the kinds.

- ``gated_delta_net``: the delta rule with a decay (Yang et al. 2025, arXiv:2412.06464; chunks as in Yang et
  al. 2024, arXiv:2406.06484, section 3), as in Qwen3-Next.
- ``mamba2``: the state-space duality (Dao and Gu 2024, arXiv:2405.21060, section 6); its ``B`` and ``C``
  are keys and queries, its groups are key heads, and its state size is a key's.
- ``kimi_delta_attention``: the delta rule with a decay of each channel of a key (Kimi Linear,
  arXiv:2510.26692, section 3); products, there of low rank, yield decays and the output's gate.
- ``lightning_attention``: linear attention with a fixed decay of each head (Qin et al. 2024,
  arXiv:2401.04658; MiniMax-01, arXiv:2501.08313, section 2.2), without a convolution.
- ``short_convolution``: a convolution of a few tokens between two gates, and no scan (LFM2,
  arXiv:2511.23404, section 2.1). Every channel is a head of one value.
- ``mamba1``: the selective scan (Gu and Dao 2023, arXiv:2312.00752, algorithm 2), as in Jamba. Every
  channel is a head of one value with a time step of its own; ``B`` and ``C`` are projected from what the
  convolution yields. Its kernels work token by token, so it has no chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from meshwright.profiles.model_parts import Checked, Exclusion, Limits

MixerKind = Literal[
    "gated_delta_net",
    "kimi_delta_attention",
    "lightning_attention",
    "mamba1",
    "mamba2",
    "short_convolution",
]


class MixerTraits(NamedTuple):
    """State how one kind of mixer differs from the others; no field has a default."""

    fact: str  # as capabilities of launchers name it
    gates: int  # of a head and token: decay and learning rate of a delta net, else decay or time step
    # Trained numbers of a head: decay and time step; a state-space model has a skip connection, too. A
    # selective scan has the time step's bias and the skip in addition to a decay per state (``decays``).
    scalars: int
    has_convolution: bool
    channels: bool  # each is a head of one value
    # Trained, of the output: of one head, which every tensor-parallel rank holds whole, or of all values
    norm: Literal["none", "head", "values"]
    last_projection: str  # transformers' name of the linear layer that yields the output


MIXER_KINDS: Mapping[MixerKind, MixerTraits] = {
    "gated_delta_net": MixerTraits(
        "gated delta nets", gates=2, scalars=2, has_convolution=True, channels=False, norm="head",
        last_projection="out_proj",
    ),
    "kimi_delta_attention": MixerTraits(
        "Kimi's delta attention", gates=1, scalars=1, has_convolution=True, channels=False, norm="head",
        last_projection="o_proj",
    ),
    "lightning_attention": MixerTraits(
        "lightning attention", gates=0, scalars=0, has_convolution=False, channels=False, norm="values",
        last_projection="out_proj",
    ),
    "mamba1": MixerTraits(
        "selective scans (Mamba 1)", gates=1, scalars=2, has_convolution=True, channels=True, norm="none",
        last_projection="out_proj",
    ),
    "mamba2": MixerTraits(
        "state-space layers (Mamba 2)", gates=1, scalars=3, has_convolution=True, channels=False,
        norm="values", last_projection="out_proj",
    ),
    "short_convolution": MixerTraits(
        "short convolutions", gates=0, scalars=0, has_convolution=True, channels=True, norm="none",
        last_projection="out_proj",
    ),
}  # fmt: skip
# Multiply-adds of one state and token of a selective scan: time step by decay, by input, state, output.
# With the exponential they are the 9 FLOPs that fvcore counts of its reference.
_STATE_PRODUCTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerSpec(Checked):
    """The layers of a model that have a mixer with a state, and its sizes.

    Every ``attention_every``-th layer, or each of ``attention_layers``, attends instead.
    """

    POINTER = "/model/mixer"
    LIMITS: ClassVar[Limits] = {
        "num_heads": (1, 2**16),
        "num_key_heads": (1, 2**16),
        "key_head_dim": (1, 2**14),
        "value_head_dim": (1, 2**14),
        "convolution": (0, 1024),
        "chunk": (1, 2**16),
        "time_step_rank": (0, 2**16),
        "gate_rank": (0, 2**16),
        "attention_every": (0, 10_000),
    }

    kind: MixerKind
    num_heads: int  # of values; each has a state of key_head_dim by value_head_dim
    num_key_heads: int  # of keys and queries
    key_head_dim: int
    value_head_dim: int
    convolution: int = 4  # tokens that the short convolution of queries, keys and values reads; 0: none
    chunk: int = 64  # tokens that are multiplied together
    convolution_bias: bool = False
    projection_bias: bool = False
    output_bias: bool | None = None  # of the last projection; None: as projection_bias
    time_step_rank: int = 0  # of the product that yields the time steps of all channels (mamba1 alone)
    # Of the products that yield decays and the gate (kimi_delta_attention alone); 0: of full rank
    gate_rank: int = 0
    full_gate: bool = False  # with gate_rank: the gate is of full rank, and decays alone are not
    inner_norms: bool = False  # trained ones of time step, B and C (mamba1 alone)
    output_norm: bool = True  # trained, of the output (a state-space model may have none)
    with_attention: bool = False  # every layer has both, which read one norm and are summed (mamba2 alone)
    single_projections: bool = False  # it has one for each of six widths; changes adapters alone
    split_projections: bool = False  # transformers' class has several linear layers; changes adapters alone
    attention_every: int = 0  # 0: none by this rule
    attention_layers: tuple[int, ...] = ()  # counted from 0, where they are not every n-th

    def exclusions(self) -> Iterator[Exclusion]:
        """Yield heads that do not share keys evenly, and sizes that only other kinds have."""
        kind, every, listed = self.kind, self.attention_every, self.attention_layers
        heads, keys = self.num_heads, self.num_key_heads
        why = f"{keys} does not divide num_heads = {heads}"
        yield Exclusion("num_key_heads", heads % keys, why, "a divisor of num_heads")
        selective = kind == "mamba1"
        why = "is required: mamba1 projects its time steps" if selective else "applies to mamba1 only"
        yield Exclusion("time_step_rank", selective != bool(self.time_step_rank), why)
        for name, stated, only in (
            ("gate_rank", self.gate_rank, "kimi_delta_attention"),
            ("full_gate", self.full_gate, "kimi_delta_attention"),
            ("inner_norms", self.inner_norms, "mamba1"),
            ("output_norm", not self.output_norm, "mamba2"),
            ("with_attention", self.with_attention, "mamba2"),
        ):
            yield Exclusion(name, stated and kind != only, f"applies to {only} only")
        both = self.with_attention
        yield Exclusion("full_gate", self.full_gate and not self.gate_rank, "needs gate_rank")
        yield Exclusion("attention_every", both and every, "contradicts with_attention")
        yield Exclusion("attention_layers", both and listed, "contradicts with_attention")
        convolves = MIXER_KINDS[kind].has_convolution
        why = f"{self.convolution}: {kind} has {'a' if convolves else 'no'} convolution"
        near = ("1 to 1024", "4") if convolves else ("0", "0")
        yield Exclusion("convolution", convolves != (self.convolution > 0), why, *near)
        for name, value, why in self._sizes_of_kind():
            own, only = getattr(self, name), str(value)
            yield Exclusion(name, own != value, f"{own}: {why}", only, only)
        yield Exclusion("attention_layers", every and listed, "contradicts attention_every")

    def _sizes_of_kind(self) -> tuple[tuple[str, int, str], ...]:
        """Return the only value that a size of this kind may have, and why."""
        match self.kind:
            case "mamba1":
                why = "in mamba1 every channel is a head with one value, and all heads share B"
                return ("num_key_heads", 1, why), ("value_head_dim", 1, why)
            case "short_convolution":
                why = "in a short convolution every channel is a head with one value"
                return (
                    ("num_key_heads", self.num_heads, why),
                    ("key_head_dim", 1, why),
                    ("value_head_dim", 1, why),
                )
            case "kimi_delta_attention":
                return (("num_key_heads", self.num_heads, "each head has keys of its own"),)
            case "gated_delta_net" | "lightning_attention" | "mamba2":
                return ()

    def attends(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, attends instead."""
        by_rule = self.attention_every > 0 and (layer + 1) % self.attention_every == 0
        return by_rule or layer in self.attention_layers

    @property
    def value_width(self) -> int:
        """Return the elements of a token's values, of its gate, and of the output."""
        return self.num_heads * self.value_head_dim

    @property
    def qkv_width(self) -> int:
        """Return the elements of a token's queries, keys and values; a convolution, if any, reads them.

        A selective scan has values only: ``B`` and ``C`` follow from them. So has a short convolution, with
        a gate before and one behind it.
        """
        if MIXER_KINDS[self.kind].channels:
            return self.value_width
        return 2 * self.num_key_heads * self.key_head_dim + self.value_width

    @property
    def gates(self) -> int:
        """Return the numbers of a token that set how its state changes."""
        channels = self.key_head_dim * (self.kind == "kimi_delta_attention")
        return (MIXER_KINDS[self.kind].gates + channels) * self.num_heads

    @property
    def projected(self) -> int:
        """Return the columns of what projects a hidden state: queries, keys, values, gates.

        Of Kimi's delta attention decays and the gate are products of two latents.
        """
        if self.gate_rank:
            return self.qkv_width + self.num_heads + self.latents + self.value_width * self.full_gate
        if MIXER_KINDS[self.kind].channels:
            return self.qkv_width + self.value_width * (2 if self.kind == "short_convolution" else 1)
        return self.qkv_width + self.value_width + self.gates

    @property
    def latents(self) -> int:
        """Return the columns of ``projected`` that tensor parallelism leaves whole."""
        return (1 if self.full_gate else 2) * self.gate_rank

    @property
    def selected(self) -> int:
        """Return the columns of the projection to time steps' latent, B and C; 0 for other kinds."""
        return self.time_step_rank + 2 * self.key_head_dim if self.kind == "mamba1" else 0

    @property
    def decays(self) -> int:
        """Return the number of trained decays, one per state; 0 for other kinds."""
        return self.value_width * self.key_head_dim if self.kind == "mamba1" else 0

    def projections(self) -> dict[str, int]:
        """Return the columns of each linear layer of transformers' class that reads the hidden state."""
        heads, keys, values = self.num_heads, self.num_key_heads * self.key_head_dim, self.value_width
        match self.kind:
            case "kimi_delta_attention":
                rank = self.gate_rank
                whole = {"f_a_proj": rank} if rank else {"f_proj": keys}
                whole |= {"g_a_proj": rank} if rank and not self.full_gate else {"g_proj": values}
                return {"q_proj": keys, "k_proj": keys, "v_proj": values, "b_proj": heads, **whole}
            case "lightning_attention":
                return {"qkv_proj": self.qkv_width, "output_gate": values}
            case "mamba1" | "mamba2" | "short_convolution":
                return {"in_proj": self.projected}
            case "gated_delta_net":
                return self._projections_of_delta_net(keys, values)

    def _projections_of_delta_net(self, keys: int, values: int) -> dict[str, int]:
        heads = self.num_heads
        if self.single_projections:
            return {"q_proj": keys, "k_proj": keys, "v_proj": values, "a_proj": heads, "b_proj": heads,
                    "g_proj": values}  # fmt: skip
        if self.split_projections:
            return {"in_proj_qkv": self.qkv_width, "in_proj_z": values, "in_proj_b": heads,
                    "in_proj_a": heads}  # fmt: skip
        return {"in_proj_qkvz": self.qkv_width + values, "in_proj_ba": self.gates}

    @property
    def last_projection(self) -> str:
        """Return the name of the linear layer of transformers' class that yields the output."""
        return "o_proj" if self.single_projections else MIXER_KINDS[self.kind].last_projection

    def inner_products(self) -> dict[str, tuple[int, int, Literal["inputs", "outputs"]]]:
        """Return the linear layers between the projections: inputs, outputs, which of them ranks split."""
        if self.gate_rank:
            decays = self.num_heads * self.key_head_dim
            found: dict[str, tuple[int, int, Literal["inputs", "outputs"]]]
            found = {"f_b_proj": (self.gate_rank, decays, "outputs")}
            if not self.full_gate:
                found["g_b_proj"] = (self.gate_rank, self.value_width, "outputs")
            return found
        if self.time_step_rank:
            return {"x_proj": (self.value_width, self.selected, "inputs"),
                    "dt_proj": (self.time_step_rank, self.value_width, "outputs")}  # fmt: skip
        return {}

    def vector_parameters(self) -> int:
        """Return further weights that tensor parallelism splits as it splits heads.

        The norm of a state-space model and of lightning attention is over all values, that of a delta net
        over those of one head. Kimi's delta attention adds a trained number to each decay.
        """
        biases = self.qkv_width * self.convolution_bias + self.projected * self.projection_bias
        added = self.num_heads * self.key_head_dim * (self.kind == "kimi_delta_attention")
        scalars = MIXER_KINDS[self.kind].scalars * self.num_heads + added
        return scalars + self.decays + biases + self.split_norm_parameters()

    def split_norm_parameters(self) -> int:
        """Return the weights of the norm of the output that tensor parallelism splits."""
        split = MIXER_KINDS[self.kind].norm == "values" and self.output_norm
        return self.value_width if split else 0

    def norm_parameters(self) -> int:
        """Return the weights of norms that every tensor-parallel rank holds whole.

        Of a delta net's output; of a selective scan's time steps, B and C.
        """
        of_head = self.value_head_dim if MIXER_KINDS[self.kind].norm == "head" else 0
        return of_head + self.selected * int(self.inner_norms)

    def scan_products(self) -> int:
        """Return the multiply-adds of one token's scan, convolution and projections aside.

        Of a delta net's head, with C tokens in a chunk: keys by keys, the inverse by keys and by values,
        queries by keys, scores by values: C (3 k + 2 v); states by keys, by queries, and their change:
        3 k v. Of a state-space model's: C (k of each group, v of each head) and 2 k v, of lightning
        attention's the same with a group for each head. A selective scan has 4 per state, outside of tensor
        cores, a short convolution none.
        """
        k, v, chunk = self.key_head_dim, self.value_head_dim, self.chunk
        match self.kind:
            case "short_convolution":
                return 0
            case "mamba1":
                return _STATE_PRODUCTS * self.decays
            case "gated_delta_net" | "kimi_delta_attention":
                return self.num_heads * (chunk * (3 * k + 2 * v) + 3 * k * v)
            case "lightning_attention" | "mamba2":
                return self.num_key_heads * chunk * k + self.num_heads * (chunk * v + 2 * k * v)

    def scan_elements(self) -> float:
        """Return the 2-byte elements of a token that the scan's kernels move in a forward pass.

        A delta net's five kernels (flash-linear-attention 0.4, ``ops/gated_delta_rule/chunk.py``): keys by
        keys (k read, C of 4 bytes written), its inverse (C of 4 read, of 2 written), keys and values by it
        (k, v, C read, k, v written), states (2 k + v read, v and k v / C written), output (2 k + v and
        k v / C read, v written). A state-space model's (mamba 2, ``ops/triton/ssd_combined.py``): states
        (v read, k v / C of 4 bytes written), their sums (read, and written in 2), output (v and k v / C
        read, v written); of each group keys and queries twice, and C written and read. A selective scan's
        kernel reads values, time steps and the gate, and writes the output with it and without
        (mamba 1.2, ``csrc/selective_scan/selective_scan_fwd_kernel.cuh``). Kimi's delta attention also
        reads each channel's decay, of 4 bytes, in five kernels, and one writes their sums (``ops/kda``).
        Lightning attention's one kernel keeps states on the chip: q, k and v read, the output written
        (lightning-attention 2, arXiv:2401.04658, algorithm 1).
        """
        k, v, chunk = self.key_head_dim, self.value_head_dim, self.chunk
        state = k * v / chunk
        match self.kind:
            case "short_convolution":
                return 0.0
            case "mamba1":
                return 5.0 * self.value_width + 2.0 * self.key_head_dim
            case "lightning_attention":
                return self.num_heads * (2.0 * k + 2.0 * v)
            case "gated_delta_net" | "kimi_delta_attention":
                decays = 12.0 * k * (self.kind == "kimi_delta_attention")
                return self.num_heads * (7.0 * k + 6.0 * v + 6.0 * chunk + 2.0 * state + decays)
            case "mamba2":
                keys = self.num_key_heads * (4.0 * k + 2.0 * chunk)
                return self.num_heads * (3.0 * v + 6.0 * state) + keys

    def kept_elements(self) -> float:
        """Return the 2-byte elements of a token that one layer keeps for its backward pass.

        A delta net: what the convolution reads; queries and keys of every head, values and the inverse, of
        the scan; the norm's input and its gate; the last product's input; decay and learning rate in 4
        bytes (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py). A state-space model is one
        function from its projection on (mamba 2, ops/triton/ssd_combined.py): it keeps the projection and
        the scan's output, and the last product's input is made again. A selective scan is one, too (mamba
        1.2, ops/selective_scan_interface.py, ``MambaInnerFn``): it keeps the projections and the scan's
        output. With norms in between it is four (transformers 5.23, ``JambaMambaMixer``): they keep what
        the convolution, the norms, the time steps' product, the scan and the last product read. Kimi's
        delta attention keeps its latents and its decays, before and after their softplus, too. Lightning
        attention: what silu reads, queries, keys and values; input and output of the norm, the gate's
        input, the last product's input (``MiniMaxLightningAttention``). A short convolution: the
        projection, both inputs of the second gate, and what the convolution and the last product read
        (``Lfm2ShortConv``).
        """
        match self.kind:
            case "mamba1":
                apart = 3 * self.value_width + self.selected if self.inner_norms else 0
                return self.projected + self.value_width + self.selected + apart
            case "mamba2":
                return self.projected + self.value_width
            case "lightning_attention":
                return 2.0 * self.qkv_width + 4.0 * self.value_width
            case "short_convolution":
                return self.projected + 3.0 * self.value_width
            case "gated_delta_net" | "kimi_delta_attention":
                of_head = 2 * self.key_head_dim + self.value_head_dim + self.chunk
                found = self.qkv_width + self.num_heads * of_head + 3 * self.value_width
                own = self.gates + self.latents if self.kind == "kimi_delta_attention" else 0
                return found + 2 * self.gates + own

    def moved_elements(self) -> float:
        """Return the 2-byte elements of a token that convolution and gated norm move in a forward pass.

        The convolution reads and writes what it convolves; the norm reads its input and gate, and writes. A
        selective scan's gate is in its kernel; its norms read and write time steps, B and C. Lightning
        attention's silu reads and writes what it has projected, its norm reads and writes, its gate reads
        both and writes. A short convolution's gates each read two and write one. Decays of Kimi's delta
        attention are read once and written in 4 bytes.
        """
        match self.kind:
            case "short_convolution":
                return 8.0 * self.value_width
            case "lightning_attention":
                return 2.0 * self.qkv_width + 5.0 * self.value_width
            case "kimi_delta_attention":
                return 2.0 * self.qkv_width + 3.0 * self.value_width + 3.0 * self.gates
            case "mamba1":
                return 2.0 * self.qkv_width + 2.0 * self.selected * self.inner_norms
            case "gated_delta_net" | "mamba2":
                return 2.0 * self.qkv_width + 3.0 * self.value_width

    def state_elements(self) -> int:
        """Return the 4-byte elements that a rank of a split sequence passes on.

        The state of every head, and how the rank's tokens change it: a number for each head, or of a delta
        net a matrix of keys by keys (flash-linear-attention 0.4, ``ops/cp``). A convolution alone passes on
        the tokens that it reads before its own.
        """
        k, v = self.key_head_dim, self.value_head_dim
        match self.kind:
            case "short_convolution":
                return self.qkv_width * (self.convolution - 1)
            case "gated_delta_net" | "kimi_delta_attention":
                return self.num_heads * (k * v + k * k)
            case "lightning_attention" | "mamba1" | "mamba2":
                return self.num_heads * (k * v + 1)
