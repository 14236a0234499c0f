"""Timed layers by hand."""

from meshwright.profiles.measured.layers import LayerTime, MeasuredLayers
from tests.unit.solver.cost.pricing import GPT


def timed(tp: int, micro_batch: int, forward_s: float, backward_s: float, part: str = "dense") -> LayerTime:
    return LayerTime(
        part=part,  # type: ignore[arg-type]
        tensor_parallel_size=tp,
        micro_batch_size=micro_batch,
        forward_s=forward_s,
        backward_s=backward_s,
    )


def timed_layers(*times: LayerTime, **changes: object) -> MeasuredLayers:
    facts = {"model": GPT, "seq_length": 2048, "expert_parallel_size": 1, "with_collectives": False}
    return MeasuredLayers(**(facts | changes), times=times)  # type: ignore[arg-type]
