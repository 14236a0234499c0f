"""Weak scaling with shared weights, next to the published figure: ``make bench ARGS=weight-shards``.

Megatron-LM's guide to GTP (d98e8a64 ``docs/api-guide/core/generalized_tensor_parallel.md``, section 1.7):
a hybrid of about 280B parameters, GB200 NVL72, 64 ranks share dense weights, 64 split the experts and 2 of
them share each, one sequence a micro-batch, MXFP8, gradients scattered in bf16: at least 93 % of the
efficiency on 128 GPUs out to 3,072, and 137 to 104 GB a GPU. That hybrid is not public: Qwen3 235B-A22B
stands in for it, with 4,096 tokens, one micro-batch, and 64 GPUs of each domain. Nothing is fitted on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, SearchOptions, Workload

GPUS = (128, 256, 512, 1024, 2048, 3072)
PUBLISHED = 0.93  # of the efficiency on the fewest
DOMAIN = 64  # GPUs that share dense weights, and split the experts


@dataclass(frozen=True, slots=True)
class Scaled:
    """One number of GPUs."""

    gpus: int
    step_time_s: float
    peak_gib: float


def scaled(gpus: int) -> Scaled:
    """Predict the stand-in on so many GPUs."""
    model, cluster = find_model("qwen3-235b-a22b"), find_cluster("gb200-nvl72")
    (group,) = cluster.groups
    nodes = replace(group, num_nodes=gpus // group.gpus_per_node, island_gpus=DOMAIN)
    problem = Problem(
        model=model,
        cluster=replace(cluster, groups=(nodes,)),
        workload=Workload(
            global_batch_size=gpus, seq_length=4096, precision="fp8",
            framework_options={
                "precision_recipe": "mxfp8", "low_precision_weights": True, "gradient_dtype": "bf16",
                "moe_dispatcher": "hybridep",
            },
        ),
        launcher="megatron-lm",
        options=SearchOptions(allow=("weight_shards",)),
    )  # fmt: skip
    config = Configuration(
        data_parallel_size=gpus, expert_parallel_size=DOMAIN, weight_shard_size=DOMAIN,
        expert_weight_shard_size=2, zero_stage=1, zero_shard_size=gpus // DOMAIN,
        stage_layers=(model.num_layers,),
    )  # fmt: skip
    found = predict(problem, default_profile(problem.cluster, problem.launcher), config)
    return Scaled(gpus, found.step_time_s, found.peak_memory_bytes / GIB)


def main() -> None:
    """Print step time, efficiency and memory by the number of GPUs."""
    found = [scaled(gpus) for gpus in GPUS]
    rows = [
        [
            f"{one.gpus:,}", f"{one.step_time_s:.2f} s",
            f"{found[0].step_time_s / one.step_time_s:.1%}", f"{one.peak_gib:.0f} GiB",
        ]
        for one in found
    ]  # fmt: skip
    print("\n".join(table(["GPUs", "step", "efficiency", "memory of a GPU"], rows)))
    print(f"published: at least {PUBLISHED:.0%} on {GPUS[-1]:,} GPUs")


if __name__ == "__main__":
    main()
