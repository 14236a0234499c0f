"""The three models, the twenty configurations that a seed draws, and what Meshwright predicts for each.

Every draw trains one model on one GPU: a size of micro-batch, sequence and accumulation, recomputation or
none, an optimizer. What fits is judged by the formula below, not by the cost model, so that the draw stays
the same when prices change.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_gpu, find_model, usual_group
from meshwright.profiles.measured.profile import MeasuredProfile
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.calibration.timed import with_measured
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

SEED = 6151
# nanotron's facts are what ``training.py`` does: 2-byte weights, gradients added to fp32 sums one by one,
# AdamW on fp32 copies, which are copied back. Its kernels are torch's: cuDNN's attention and one product of
# all experts. The loop frees each gradient as it adds it, reads no data and logs nothing. A logit
# takes at most 12 bytes: the logarithm of its softmax and two gradients, in fp32.
FRAMEWORK = "nanotron"
KERNELS: dict[str, str | int | float | bool] = {"attention_kernel": "cudnn", "logit_bytes": 12.0}
OF_EXPERTS: dict[str, str | int | float | bool] = {"grouped_gemm": "grouped", "moe_force_balance": True}
ROOM = 0.8  # of the GPU's memory that a draw may fill
_STATE_BYTES, _FROZEN_BYTES = 18.0, 2.0  # of a trained weight: 2 + 4 + 12; of a frozen one
# Bytes that a layer keeps of a token's hidden element: 34 of a transformer without its scores (Korthikanti
# et al. 2022, arXiv:2205.05198, equation 2), half as much again for a gated MLP that fuses nothing.
_KEPT_BYTES, _LOGIT_BYTES = 51.0, 12.0
LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model, what is profiled of it, and which sizes are drawn."""

    name: str
    model: ModelSpec
    seq_length: int  # that is profiled
    micro_batch_sizes: tuple[int, ...]  # that are profiled
    draws: int
    lora_rank: int = 0
    drawn_micro_batches: tuple[int, ...] = (1, 2, 3, 4)
    drawn_lengths: tuple[int, ...] = (2048, 4096, 8192)
    optimizers: tuple[str, ...] = ("adamw",)

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """The modules that are adapted."""
        return LORA_TARGETS if self.lora_rank else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One configuration to predict and to train."""

    number: int
    family: str
    micro_batch_size: int
    seq_length: int
    num_microbatches: int
    recompute: str  # none or full
    optimizer: str

    @property
    def name(self) -> str:
        """How files name it: ``train-07``."""
        return f"train-{self.number:02d}"

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def families(*, tiny: bool) -> tuple[Family, ...]:
    """A dense model, one with experts, and one whose adapters alone are trained."""
    if tiny:
        return _tiny_families()
    experts = find_model("deepseek-moe-16b")
    return (
        Family(
            name="dense",
            model=find_model("tinyllama-1.1b"),
            seq_length=4096,
            micro_batch_sizes=(1, 2, 4),
            draws=8,
            optimizers=("adamw", "adamw", "muon"),
        ),
        Family(
            name="experts",
            model=replace(experts, name="deepseek-moe-16b-4-layers", num_layers=4),
            seq_length=4096,
            micro_batch_sizes=(1, 2, 4),
            draws=6,
        ),
        Family(
            name="lora",
            model=find_model("llama-3.1-8b"),
            seq_length=4096,
            micro_batch_sizes=(1, 2, 4),
            draws=6,
            lora_rank=16,
        ),
    )


def _tiny_families() -> tuple[Family, ...]:
    """Models that a CPU trains in milliseconds, for the rehearsal."""
    dense = ModelSpec(
        name="tiny",
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=128,
        num_attention_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=512,
    )
    experts = MoeSpec(
        num_experts=8, top_k=2, ffn_hidden_size=32, num_shared_experts=1, shared_ffn_hidden_size=32
    )
    small = Family(
        name="dense",
        model=dense,
        seq_length=64,
        micro_batch_sizes=(1, 2),
        draws=4,
        drawn_micro_batches=(1, 2, 3),
        drawn_lengths=(32, 64, 128),
        optimizers=("adamw", "adamw", "muon"),
    )
    return (
        small,
        replace(
            small,
            name="experts",
            model=replace(dense, name="tiny-experts", moe=experts),
            draws=2,
            optimizers=("adamw",),
        ),
        replace(small, name="lora", lora_rank=4, draws=2, optimizers=("adamw",)),
    )


def drawn(kinds: Sequence[Family], memory_bytes: float) -> tuple[Draw, ...]:
    """The configurations that the seed draws, each once; what would not fit is drawn again."""
    dice, found = random.Random(SEED), list[Draw]()  # noqa: S311 - a committed draw, not a secret
    for family in kinds:
        mine: set[tuple[object, ...]] = set()
        while len(mine) < family.draws:
            sizes = (
                dice.choice(family.drawn_micro_batches),
                dice.choice(family.drawn_lengths),
                dice.choice((1, 2, 4, 8)),
                dice.choice(("none", "full")),
                dice.choice(family.optimizers),
            )
            micro_batch, seq_length, count, recompute, optimizer = sizes
            one = Draw(
                number=len(found) + 1,
                family=family.name,
                micro_batch_size=micro_batch,
                seq_length=seq_length,
                num_microbatches=count,
                recompute=recompute,
                optimizer=optimizer,
            )
            if sizes not in mine and kept_bytes(family, one) <= ROOM * memory_bytes:
                mine.add(sizes)
                found.append(one)
    return tuple(found)


def kept_bytes(family: Family, draw: Draw) -> float:
    """Bytes of states, activations and logits, by the formula of the draw."""
    model, tokens = family.model, draw.micro_batch_size * draw.seq_length
    layers = 1 if draw.recompute == "full" else model.num_layers
    routed = 1 + (model.moe.top_k if model.moe else 0)
    each = _FROZEN_BYTES if family.lora_rank else _STATE_BYTES
    kept = _KEPT_BYTES * layers * routed**0.5 + 2.0 * model.num_layers
    logits = tokens * model.vocab_size * _LOGIT_BYTES
    return float(each * model.num_parameters() + tokens * model.hidden_size * kept + logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is predicted of one draw before it is trained."""

    origin: str  # profile: with the layers timed here; catalog: without
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_bytes: float  # as torch's allocator counts it: without the context and fragmentation
    out_of_memory_probability: float


def one_gpu(gpu: str) -> ClusterSpec:
    """Return a cluster of one GPU of the catalog."""
    group = replace(usual_group(find_gpu(gpu), 1), gpus_per_node=1, island_gpus=1)
    return ClusterSpec(name="one-gpu", groups=(group,))


def problem_of(family: Family, draw: Draw, gpu: str) -> Problem:
    """The draw as a question to the cost model: one GPU, experts with equal loads."""
    whole = Workload(
        global_batch_size=draw.micro_batch_size * draw.num_microbatches,
        seq_length=draw.seq_length,
        optimizer=draw.optimizer,
        framework_options={**KERNELS, **(OF_EXPERTS if family.model.moe else {})},
    )
    return Problem(
        model=family.model,
        cluster=one_gpu(gpu),
        workload=replace(whole, lora_rank=family.lora_rank, lora_targets=family.lora_targets)
        if family.lora_rank
        else whole,
        launcher="none",
    )


def profile_of(problem: Problem, measured: MeasuredProfile | None) -> Profile:
    """The catalog's profile of one GPU, with what was timed where something was."""
    profile = default_profile(problem.cluster, FRAMEWORK)
    profile = replace(
        profile,
        constants=replace(profile.constants, fixed_s=0.0),
        framework=replace(profile.framework, own_gradient_bytes=0.0),
    )
    return profile if measured is None else with_measured(problem, profile, measured)


def forecast(problem: Problem, profile: Profile, draw: Draw, origin: str) -> Forecast:
    """Predict one draw under one profile."""
    layers = problem.model.num_layers
    full = draw.recompute == "full"
    configuration = Configuration(
        micro_batch_size=draw.micro_batch_size,
        num_microbatches=draw.num_microbatches,
        stage_layers=(layers,),
        recompute_granularity="full" if full else "none",
        recompute_layers=layers if full else 0,
        zero_stage=0,
    )
    found = predict(problem, profile, configuration)
    held = found.stages[0].memory_bytes
    allocated = {name: size for name, size in held.items() if name not in ("context", "reserve")}
    return Forecast(
        origin=origin,
        step_time_s=found.step_time_s,
        step_time_low_s=found.step_time_low_s,
        step_time_high_s=found.step_time_high_s,
        peak_memory_bytes=float(sum(allocated.values())),
        out_of_memory_probability=found.out_of_memory_probability,
    )
