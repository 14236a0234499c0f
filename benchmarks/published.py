"""Gains that launchers publish next to ours: ``make bench ARGS=published``.

Each row prices what its source describes; nothing is fitted on them. Where a source leaves a figure open,
the row's note states what is taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure."""

    what: str
    published: float
    ours: float

    def cells(self) -> list[str]:
        """Return the row of a table."""
        off = self.ours / self.published - 1.0
        return [self.what, f"{self.published:.2f}", f"{self.ours:.2f}", f"{off:+.0%}"]


# --------------------------------------------------------------------------------------------------
# ZeRO++ (arXiv:2306.10209): DeepSpeed's blog of June 2023, figures 6 and 7 (deepspeedai/DeepSpeed edaa7221,
# blogs/zeropp/assets/images/eval1.png, eval2.png): TFLOP/s a GPU of ZeRO-3 and of ZeRO++ on 24 nodes of 16
# V100 32 GB. The shape of the 18B model is the tutorial's (docs/_tutorials/zeropp.md), which recomputes
# every layer; the others' are not stated, and taken as deeper ones of as many parameters.

ZERO_PLUS_PLUS: Options = {
    "secondary_shard_size": 16, "quantized_gathers": True, "quantized_reductions": True,
}  # fmt: skip
_SHAPES = {"18B": (40, 6144), "49B": (60, 8192), "91B": (72, 10240), "138B": (76, 12288)}
# by InfiniBand links of 100 Gbit/s a node, and thousands of tokens a GPU: ZeRO-3, ZeRO++
_PUBLISHED = {
    (1, 1): {"18B": (14, 31), "49B": (11, 22), "91B": (11, 22), "138B": (11, 22)},
    (1, 2): {"18B": (26, 46), "49B": (20, 38), "91B": (20, 38), "138B": (20, 38)},
    (4, 1): {"18B": (25, 35), "49B": (23, 36), "91B": (23, 36), "138B": (23, 36)},
    (4, 2): {"18B": (40, 53), "49B": (36, 51), "91B": (36, 51), "138B": (36, 50)},
}
_NODES, _GPUS = 24, 16


def _gpt(layers: int, hidden: int) -> ModelSpec:
    return replace(
        find_model("gpt-3-175b"), name=f"GPT {layers} x {hidden}", num_layers=layers,
        hidden_size=hidden, num_attention_heads=32, num_kv_heads=32, head_dim=hidden // 32,
        ffn_hidden_size=4 * hidden,
    )  # fmt: skip


def _dgx_2(links: int) -> ClusterSpec:
    gpu = find_gpu("v100-sxm-32gb")
    network = replace(gpu.inter_node, bytes_per_s=links * 12.5e9 / _GPUS)
    group = NodeGroup(
        gpu=gpu, num_nodes=_NODES, gpus_per_node=_GPUS, island_gpus=_GPUS,
        intra_node=LinkSpec(kind="nvswitch", bytes_per_s=150e9, latency_s=3.4e-6), inter_node=network,
    )  # fmt: skip
    return ClusterSpec(name="DGX-2", groups=(group,))


def tflops(model: ModelSpec, cluster: ClusterSpec, tokens: int, options: Options) -> float:
    """Return teraflops a second of a GPU under ZeRO-3, recomputation counted as these figures count it."""
    gpus = cluster.num_gpus
    workload = Workload(
        global_batch_size=gpus * tokens // 512, seq_length=512, precision="fp16", framework_options=options
    )
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="deepspeed")
    config = Configuration(
        data_parallel_size=gpus, zero_stage=3, zero_shard_size=gpus, micro_batch_size=tokens // 512,
        recompute_granularity="full", recompute_layers=model.num_layers, stage_layers=(model.num_layers,),
    )  # fmt: skip
    found = predict(problem, default_profile(cluster, "deepspeed"), config)
    return found.hfu * found.peak_flops_per_gpu / 1e12


def zero_plus_plus() -> Iterator[Row]:
    """Return gains of ZeRO++ over ZeRO-3 by bandwidth, tokens and model."""
    for (links, thousands), by_model in _PUBLISHED.items():
        for name, (before, after) in by_model.items():
            model, cluster = _gpt(*_SHAPES[name]), _dgx_2(links)
            own = [tflops(model, cluster, 1024 * thousands, options) for options in ({}, ZERO_PLUS_PLUS)]
            words = f"{name}, {links} x 100 Gbit/s, {thousands}K tokens"
            yield Row(f"{words}: ZeRO-3, TFLOP/s", before, own[0])
            yield Row(f"{words}: gain of ZeRO++", after / before, own[1] / own[0])


SECTIONS: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "zero++": ("ZeRO++ on 384 V100 (DeepSpeed's blog, figures 6 and 7)", zero_plus_plus),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, help="one of the sections")
    only = parser.parse_args(arguments).only
    for name, (title, rows) in SECTIONS.items():
        if only in (None, name):
            print(f"**{title}**\n")
            print("\n".join(table(["", "published", "ours", "off by"], [row.cells() for row in rows()])))


if __name__ == "__main__":
    main()
