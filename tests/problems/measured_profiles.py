"""Measured profiles for tests: made by hand, no device needed."""

from meshwright.profiles.measured.profile import (
    Machine,
    MeasuredProfile,
    Measurement,
    Session,
    Skipped,
    Subject,
    Timing,
)
from meshwright.profiles.model import ModelSpec

TINY = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=64,
    ffn_hidden_size=128,
    num_attention_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=512,
)
SUBJECT = Subject(model=TINY, seq_length=32, dtype="bf16", expert_parallel_size=1, quick=True)
MACHINE = Machine(
    kind="cuda",
    device="NVIDIA H100 80GB HBM3",
    memory_bytes=85_017_493_504,
    host_cpu="AMD EPYC 9654",
    torch="2.13.0",
    cuda="12.8",
    driver="570.86.15",
)
SESSION = Session(
    started_at="2026-01-02T03:04:05+00:00",
    command="meshwright profile --model tiny",
    meshwright="0.1.0",
    device_state="pstate P0, clocks.sm 1980 MHz",
)


def measurement(operator: str, kind: str, median_s: float, **shape: int) -> Measurement:
    """A steady measurement of a GEMM."""
    timing = Timing(median_s=median_s, p10_s=median_s, p90_s=median_s, repeats=5, host_s=1e-5)
    return Measurement(
        task=f"gemm/{operator}", group="gemm", operator=operator, kind=kind, shape=shape, timing=timing
    )


def measured_profile(*measurements: Measurement) -> MeasuredProfile:
    """A profile of the tiny model on an H100, with one task skipped."""
    return MeasuredProfile(
        subject=SUBJECT,
        machine=MACHINE,
        sessions=(SESSION,),
        completed=tuple(sorted({one.task for one in measurements})),
        skipped=(Skipped(task="layer/dense_layer/tp1/mbs8", reason="not enough memory"),),
        measurements=measurements,
    )
