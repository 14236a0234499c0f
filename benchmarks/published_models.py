"""Compare published figures with our predictions: ``make bench ARGS=published-models``. None is fitted.

- Qwen3.5/3.6-VL 35B-A3B on 16 H100: 135.6 TFLOP/s per GPU (Megatron-Bridge PR 5852). The layout is that
  of its recipe (067f987d ``recipes/qwen_vl/h100/qwen35_vl.py``): stages of 16 and 24 layers, eight-way
  expert parallelism, HybridEP, graphs of attention and router, batches of 512 sequences of 4,096 tokens.
  Its images vary and are not stated, and its router is not balanced; we price no images and the usual
  imbalance.
- Nemotron 3 Nano next to Qwen3-30B-A3B in NeMo AutoModel on B200: two thirds of its tokens per second
  (issue 1187). FSDP2 with expert parallelism is priced as torchtitan's; four GPUs and all-to-alls, eight
  and DeepEP, all layers recomputed, four sequences a micro-batch, as in
  ``qwen3_moe_30b_te_deepep.yaml``.
- Dynamic over fixed context parallelism: up to 1.48 times as fast (Megatron-LM's README), which does not
  state model, lengths or GPUs. We price Llama 3.1 8B on 8 H100 with documents of 2,000 (half) to 131,072
  tokens instead.

Weak scaling of shared weights has a benchmark of its own, ``make bench ARGS=weight-shards``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

_CONFIGS = Path(__file__).parents[1] / "tests" / "unit" / "profiles" / "fixtures" / "real-configs.json"


@dataclass(frozen=True, slots=True)
class Check:
    """A published figure, how far ours may be from it, and ours."""

    name: str
    published: float
    within: float
    ours: float

    @property
    def error(self) -> float:
        """Return how far ours is above the published one."""
        return self.ours / self.published - 1


def _model(name: str) -> ModelSpec:
    configs = {one["name"]: one["config"] for one in json.loads(_CONFIGS.read_text("utf-8"))}
    return model_from_config(configs[name], name=name)


def _predicted(problem: Problem, config: Configuration) -> Prediction:
    return predict(problem, default_profile(problem.cluster, problem.launcher), config)


def qwen_3_5() -> Check:
    """Predict the TFLOP/s of Megatron-Bridge's recipe."""
    workload = Workload(
        global_batch_size=512, seq_length=4096,
        framework_options={"moe_dispatcher": "hybridep", "cuda_graph": "attn+moe_router+moe_preprocess"},
    )  # fmt: skip
    config = Configuration(
        pipeline_parallel_size=2, data_parallel_size=8, expert_parallel_size=8, num_microbatches=64,
        stage_layers=(16, 24), zero_stage=1, zero_shard_size=8, recompute_granularity="selective",
    )  # fmt: skip
    problem = Problem(
        model=_model("qwen3.5-35b-a3b-text"), cluster=find_cluster("dgx-h100", num_nodes=2),
        workload=workload, launcher="megatron-bridge",
    )  # fmt: skip
    rate = _predicted(problem, config).tokens_per_s_per_gpu
    ours = rate * problem.model_flops_per_token / 1e12
    return Check("Qwen3.5-VL 35B-A3B, 16 H100: TFLOP/s per GPU", 135.61, 0.2, ours)


def _tokens_per_s(model: ModelSpec, gpus: int, options: Mapping[str, str]) -> float:
    cluster = find_cluster("dgx-b200", num_nodes=1)
    (group,) = cluster.groups
    problem = Problem(
        model=model,
        cluster=replace(cluster, groups=(replace(group, gpus_per_node=gpus),)),
        workload=Workload(global_batch_size=512, seq_length=4096, framework_options=options),
        launcher="torchtitan",
    )
    config = Configuration(
        data_parallel_size=gpus, expert_parallel_size=gpus, num_microbatches=512 // gpus // 4,
        micro_batch_size=4, stage_layers=(model.num_layers,), zero_stage=2, zero_shard_size=gpus,
        recompute_granularity="full", recompute_layers=model.num_layers,
    )  # fmt: skip
    return _predicted(problem, config).tokens_per_s_per_gpu


def nemotron_3_nano() -> Check:
    """Predict the tokens per second of Nemotron 3 Nano in those of Qwen3-30B-A3B."""
    hybrid = _tokens_per_s(_model("nemotron-3-nano-30b-a3b"), 4, {"moe_dispatcher": "alltoall"})
    plain = _tokens_per_s(find_model("qwen3-30b-a3b"), 8, {"moe_dispatcher": "deepep"})
    return Check("Nemotron 3 Nano / Qwen3-30B-A3B, B200: tokens/s per GPU", 2 / 3, 0.2, hybrid / plain)


def dynamic_context_parallelism() -> Check:
    """Predict how much faster a context size for each document is."""
    cluster = find_cluster("dgx-h100", num_nodes=1)
    lengths = SequenceLengths(percentiles=((0.0, 500), (50.0, 2000), (90.0, 16_000), (100.0, 131_072)))
    workload = Workload(global_batch_size=16, seq_length=131_072, lengths=lengths)
    config = Configuration(
        context_parallel_size=8, num_microbatches=16, zero_stage=1, zero_shard_size=8,
        recompute_granularity="full", recompute_layers=32, stage_layers=(32,),
    )  # fmt: skip
    fixed = Problem(
        model=find_model("llama-3.1-8b"), cluster=cluster, workload=workload, launcher="megatron-lm"
    )
    options = {"dynamic_context_parallel": True}
    dynamic = replace(fixed, workload=replace(workload, framework_options=options))
    times = [_predicted(one, config).step_time_s for one in (fixed, dynamic)]
    return Check("dynamic / fixed context parallelism: speed", 1.48, 0.15, times[0] / times[1])


CHECKS = (qwen_3_5, nemotron_3_nano, dynamic_context_parallelism)


def main() -> None:
    """Print each published figure, ours, the error and the error that was aimed at."""
    found = [check() for check in CHECKS]
    rows = [
        [one.name, f"{one.published:.3g}", f"{one.ours:.3g}", f"{one.error:+.0%}", f"{one.within:.0%}"]
        for one in found
    ]
    print("\n".join(table(["figure", "published", "ours", "error", "aim"], rows)))


if __name__ == "__main__":
    main()
