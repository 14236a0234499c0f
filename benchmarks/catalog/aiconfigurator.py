"""Distils the measured operators of ``aiconfigurator-core`` (NVIDIA, Apache-2.0) into our own tables.

    python -m benchmarks.catalog.aiconfigurator --wheel WHEEL --out profiles/catalog/operators

The wheel is needed only to make the tables again; nothing of it is used at run time. A tenth of the
points of every table is held out of its fit and gives the error figures in the table's header.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.catalog import aiconfigurator_rows as source
from benchmarks.catalog.aiconfigurator_rows import Wheel
from benchmarks.catalog.table_file import written_tables
from benchmarks.catalog.table_fit import Job, distil
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.operators.tables import ANY, COLLECTIVES, OperatorTable, Roof

# What the smallest measured calls take, about: it only has to keep the table flat there.
_FIXED_S = {"gemm": 2.5e-6, "attention_forward": 5e-6, "grouped_mlp": 10e-6, "memory_bound": 1.5e-6}
_COLLECTIVE_FIXED_S = 8e-6


_GEMM_NOTES = {
    "bf16": ": PyTorch's linear (cuBLASLt), the median of the runs",
    "fp8": ", one scale a tensor; the time of scaling and casting the input is taken off; points where "
    "that is over 60 % of the whole (small n) are left out, so the table is a guess there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the measured libraries a GPU's tables are taken from.

    GEMM in bf16: every library calls PyTorch's linear, that is cuBLASLt, as training does; the
    median of the three runs is free of the throttling that single runs show (the A100 has one run
    that covers the sizes). In fp8: TensorRT-LLM's torch flow, cuBLASLt with one scale a tensor, as
    Transformer Engine calls it; on the RTX PRO 6000 vLLM's CUTLASS kernels, only because a table
    reproduces them better (held-out median 3 % against 5 %; level within 3 % for large products).
    Attention: FlashAttention 2 / 3 on Ampere, Ada and Hopper, TensorRT-LLM's kernels on Blackwell.
    Experts: CUTLASS grouped GEMMs under an even load (the A100 has a slightly uneven one only).
    Casts: TensorRT-LLM's, measured with warm caches. Collectives: the newest NCCL.
    """

    gpu: str
    bf16: tuple[str, ...] = ("trtllm/1.3.0rc20", "sglang/0.5.14", "vllm/0.24.0")
    fp8: tuple[str, ...] = ("trtllm/1.3.0rc20",)
    attention: str = "vllm/0.24.0"
    kernels: tuple[str, ...] = ("vllm_flash_attn_fa2", "vllm_flash_attn_fa3")
    experts: str = "trtllm/1.3.0rc20"
    expert_kernel: str = "moe_torch_flow_cutlass"
    expert_load: str = "balanced"
    max_ep: int = 16
    cast: str = "trtllm/1.3.0rc20"
    nccl: str = "2.29.2"
    memory_bytes_per_s: float = 0.0  # where the wheel's figure is another card's


def _blackwell(gpu: str) -> Selection:
    return Selection(gpu=gpu, attention="sglang/0.5.14", kernels=("trtllm_mha",))


SELECTIONS: Mapping[str, Selection] = {
    "a100_sxm": Selection(
        gpu="a100-sxm-80gb",
        bf16=("sglang/0.5.10",),
        fp8=(),
        attention="sglang/0.5.10",
        kernels=("flash_attention",),
        experts="trtllm/1.0.0",
        expert_kernel="moe_torch_flow",
        expert_load="power_law_1.01",
        max_ep=1,
        cast="",
        nccl="2.27.3",
    ),
    "h100_sxm": Selection(gpu="h100-sxm-80gb"),
    "h200_sxm": Selection(gpu="h200-sxm-141gb"),
    "b200_sxm": _blackwell("b200-sxm-180gb"),
    "gb200": _blackwell("gb200"),
    "b300_sxm": _blackwell("b300"),
    "gb300": _blackwell("gb300"),
    "l40s": Selection(gpu="l40s", nccl="2.27.3"),
    "rtx_pro_6000_server": Selection(
        gpu="rtx-pro-6000-server", fp8=("vllm/0.24.0",), memory_bytes_per_s=1597e9
    ),
}


def jobs(wheel: Wheel, system: str) -> Iterator[Job]:
    """The tables of one GPU system, each with its measured points.

    Raises:
        ProfileError: the wheel lacks a table of the selection.
    """
    chosen, facts = SELECTIONS[system], wheel.system(system)
    device = Device(
        flops={
            "bf16": float(facts["gpu"]["bfloat16_tc_flops"]),
            "fp8": float(facts["gpu"].get("fp8_tc_flops", 0)),
        },
        memory_bytes_per_s=chosen.memory_bytes_per_s or float(facts["gpu"]["mem_bw"]),
        link_bytes_per_s=float(facts["node"]["intra_node_bw"]),
    )
    for precision, versions in (("bf16", chosen.bf16), ("fp8", chosen.fp8)):
        if versions:
            yield _gemm_job(wheel, system, precision, device)
            yield _experts_job(wheel, system, precision, device)
    yield Job(
        operator="attention_forward",
        precision="bf16",
        library=f"{chosen.attention} {' '.join(chosen.kernels)}",
        roof=device.roof("attention_forward", "bf16"),
        points=source.attention_points(wheel, system, chosen.attention, chosen.kernels),
    )
    if chosen.cast:
        yield Job(
            operator="memory_bound",
            precision=ANY,
            library=f"{chosen.cast} cast of bf16 to fp8, 3 bytes an element; what fits the L2 is warm",
            roof=device.roof("memory_bound", ANY),
            points=source.cast_points(wheel, system, chosen.cast),
        )
    yield from (_collective_job(wheel, system, name, device) for name in COLLECTIVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the wheel says about a GPU."""

    flops: Mapping[str, float]  # dense peak by precision
    memory_bytes_per_s: float
    link_bytes_per_s: float

    def roof(self, operator: str, precision: str) -> Roof:
        """The limits of an operator that works in the GPU's memory."""
        return Roof(
            flops=self.flops.get(precision, 0.0),
            bytes_per_s=self.memory_bytes_per_s,
            fixed_s=_FIXED_S[operator],
            element_bytes=1.0 if precision == "fp8" else 2.0,
        )


def _gemm_job(wheel: Wheel, system: str, precision: str, device: Device) -> Job:
    versions = SELECTIONS[system].fp8 if precision == "fp8" else SELECTIONS[system].bf16
    return Job(
        operator="gemm",
        precision=precision,
        library=", ".join(versions) + _GEMM_NOTES[precision],
        roof=device.roof("gemm", precision),
        points=source.gemm_points(wheel, system, precision, versions),
    )


def _experts_job(wheel: Wheel, system: str, precision: str, device: Device) -> Job:
    chosen = SELECTIONS[system]
    points = source.grouped_points(
        wheel,
        system,
        precision,
        chosen.experts,
        kernel=chosen.expert_kernel,
        load=chosen.expert_load,
        max_ep=chosen.max_ep,
    )
    return Job(
        operator="grouped_mlp",
        precision=precision,
        library=f"{chosen.experts} {chosen.expert_kernel}, {chosen.expert_load}, ep <= {chosen.max_ep}",
        roof=device.roof("grouped_mlp", precision),
        points=points,
    )


def _collective_job(wheel: Wheel, system: str, collective: str, device: Device) -> Job:
    version = SELECTIONS[system].nccl
    return Job(
        operator=collective,
        precision=ANY,
        library=f"nccl/{version} in half; sizes converted from elements to bytes; held out: int8",
        roof=Roof(
            flops=0.0,
            bytes_per_s=device.link_bytes_per_s,
            fixed_s=_COLLECTIVE_FIXED_S,
            element_bytes=1.0,
        ),
        points=source.collective_points(wheel, system, version, collective, "half"),
        unseen=source.collective_points(wheel, system, version, collective, "int8"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the operator tables of every GPU system, and print how accurate they are."""
    parser = argparse.ArgumentParser(prog="benchmarks.catalog.aiconfigurator", description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True, help="aiconfigurator_core-*.whl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--system", choices=sorted(SELECTIONS), action="append", help="default: all")
    chosen = parser.parse_args(arguments)
    try:
        wheel = Wheel(chosen.wheel)
        chosen.out.mkdir(parents=True, exist_ok=True)
        for system in chosen.system or SELECTIONS:
            tables = [distil(job) for job in jobs(wheel, system)]
            gpu = SELECTIONS[system].gpu
            text = written_tables(gpu, _header(wheel, system), tables)
            (chosen.out / f"{gpu}.json").write_text(text, encoding="utf-8")
            sys.stdout.write(_report(gpu, tables, len(text)))
    except ProfileError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _header(wheel: Wheel, system: str) -> dict[str, str]:
    return {
        "package": f"aiconfigurator-core {wheel.version}, systems/{system}",
        "licence": "Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES",
        "distilled": datetime.now(tz=UTC).date().isoformat(),
        "changes": "fitted to a coarse grid; of the source's rows only the held-out samples are kept",
        "judged": "libraries, smoothness and filters were chosen on another split of the same points",
        "choice": " ".join((Selection.__doc__ or "").split()),
    }


def _report(gpu: str, tables: Sequence[OperatorTable], size: int) -> str:
    lines = [
        f"{gpu:20} {table.operator:18} {table.precision:5} held out {table.held_out.count:5}"
        f"  median {table.held_out.median:6.1%}  p90 {table.held_out.p90:6.1%}"
        for table in tables
    ]
    return "\n".join([*lines, f"{gpu:20} {size / 1e3:.0f} kB"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
