"""The layout that a row of measured runs describes, as a configuration.

What a source leaves open is filled in as its software would: see each function.
"""

from __future__ import annotations

from profiles.library import find_gpu
from profiles.model import ModelSpec
from solver.columns import OFFLOAD, RECOMPUTE, SCHEDULES
from solver.plan import Configuration
from solver.run_cells import Cells
from solver.run_shapes import RefusedRunError, needed
from solver.splits import even_split, nanotron_split

_USUAL_ZERO = {
    "megatron-core": 1,
    "nemo": 1,
    "megatron-core-ci": 1,
    "fsdp": 3,
    "fsdp1": 3,
    "maxtext": 3,
    "deepspeed": 3,
}
_LEAST_STATE_BYTES = 4.0  # of one weight: itself and its gradient in 2 bytes each
MAX_EMPTY_CHUNKS = 8  # chunks without a layer: the ends may hold only embedding or head


def _expert_tensor_parallel_size(cells: Cells, model: ModelSpec, tp: int, ep: int) -> int:
    """1, as recipes have it, unless weights and gradients of the experts could not fit: then tp.

    Megatron-LM's own default is tp (arguments.py, expert_tensor_parallel_size).
    """
    if model.moe is None or tp == 1:
        return 1
    weights = model.moe.num_experts / ep * model.expert_parameters() * model.layer_kinds().count("moe")
    per_rank = weights / (cells.count("pipeline_parallel_size") or 1)
    limit = find_gpu(cells.text("gpu") or "").memory_bytes
    return tp if per_rank * _LEAST_STATE_BYTES > limit else 1


def _refuse_unknown_software(cells: Cells) -> None:
    """Refuse what changes memory or time in ways this version does not model."""
    if (cells.text("offload") or "none") not in OFFLOAD:
        raise RefusedRunError(f"offload = {(cells.text('offload') or '')[:40]} is not modelled")
    if cells.text("precision") == "fp32":
        raise RefusedRunError("precision = fp32 is not modelled")


def _stage_layers(
    cells: Cells, model: ModelSpec, framework: str, *, tp: int, pp: int, vpp: int
) -> tuple[int, ...]:
    """Layers of each chunk: as printed, else as the framework splits them, else even."""
    layers, printed = model.num_layers, cells.text("layers_per_stage")
    if printed is None:
        return nanotron_split(model, pp, tp)[0] if framework == "nanotron" else even_split(layers, pp * vpp)
    stages = [int(part) for part in printed.split("-") if part.isdigit()]
    if len(stages) == pp * vpp and sum(stages) == layers:
        return tuple(stages)
    if len(stages) != pp or sum(stages) != layers:
        raise RefusedRunError(f"layers_per_stage does not split {layers} layers over {pp} stages")
    per_chunk = [even_split(stage, vpp) for stage in stages]
    return tuple(per_chunk[chunk % pp][chunk // pp] for chunk in range(pp * vpp))


def _recompute_of(cells: Cells, stage_layers: tuple[int, ...]) -> tuple[str, int]:
    """Granularity, and how many layers of a chunk recompute; all of the model: every one."""
    stated = cells.text("recompute") or "none"
    if stated not in RECOMPUTE:
        raise RefusedRunError(f"recompute = {stated[:40]} is not modelled")
    if stated == "full":
        return "full", sum(stage_layers)
    if stated == "selective" and cells.text("recompute_modules") == "layer":
        return "full", max(max(stage_layers) // 2, 1)  # every other layer (torchtitan)
    return stated, 0


def _schedule_of(cells: Cells, pp: int, vpp: int) -> str:
    """The schedule; where it is not printed, the usual one of the layout."""
    stated = cells.text("pipeline_schedule")
    if stated == "afab":
        return "gpipe"
    if stated is None or pp == 1:
        return "none" if pp == 1 else ("interleaved_1f1b" if vpp > 1 else "1f1b")
    if stated not in SCHEDULES:
        raise RefusedRunError(f"pipeline_schedule = {stated[:40]} is not modelled")
    return stated


def configuration_of(cells: Cells, model: ModelSpec, framework: str) -> Configuration:
    """The layout.

    Raises:
        RefusedRunError: the sizes do not multiply to the run's GPUs or batch, or a part is unknown.
    """
    _refuse_unknown_software(cells)
    tp, pp = needed(cells, "tensor_parallel_size"), needed(cells, "pipeline_parallel_size")
    cp, vpp = cells.count("context_parallel_size") or 1, cells.count("virtual_pipeline_size") or 1
    dp = cells.count("data_parallel_size") or max(needed(cells, "num_gpus") // (tp * pp * cp), 1)
    if tp * pp * cp * dp != needed(cells, "num_gpus"):
        raise RefusedRunError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not num_gpus")
    vpp, ep = vpp if pp > 1 else 1, cells.count("expert_parallel_size") or 1
    mbs, gbs = needed(cells, "micro_batch_size"), needed(cells, "global_batch_size")
    if gbs % (mbs * dp):
        raise RefusedRunError(f"global batch {gbs} is no multiple of micro-batch {mbs} x dp {dp}")
    if pp * vpp > model.num_layers + MAX_EMPTY_CHUNKS:
        raise RefusedRunError(f"{pp} x {vpp} chunks for {model.num_layers} layers")
    zero = cells.count("zero_stage")
    zero = _USUAL_ZERO.get(framework, 0) if zero is None else min(zero, 3)
    stage_layers = _stage_layers(cells, model, framework, tp=tp, pp=pp, vpp=vpp)
    granularity, recompute_layers = _recompute_of(cells, stage_layers)
    return Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=bool(cells.flag("sequence_parallel")) and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
        expert_tensor_parallel_size=_expert_tensor_parallel_size(cells, model, tp, ep),
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=(cells.count("zero_shard_size") or dp * cp) if zero else 1,
        micro_batch_size=mbs,
        num_microbatches=gbs // (mbs * dp),
        pipeline_schedule=_schedule_of(cells, pp, vpp),
        recompute_granularity=granularity,
        recompute_layers=recompute_layers,
        offload=cells.text("offload") or "none",
        stage_layers=stage_layers,
    )
