"""Compare published figures with our predictions: ``make bench ARGS=published-models``. None is fitted.

- Qwen3.5/3.6-VL 35B-A3B on 16 H100 (Megatron-Bridge 067f987d, the model verification card of
  qwen3.6-35b-a3b): 135.61 TFLOP/s per GPU with images of DataComp, and 185.15 with fixed shapes and a
  router that is forced to balance. The recipe (``recipes/qwen_vl/h100/qwen35_vl.py``) has stages of 16 and
  24 layers (17 and 23 in the other run), eight-way expert parallelism, HybridEP, graphs of attention and
  router, and batches of 512 sequences, each padded to 4,096 tokens. An image has at most 200,704 pixels,
  which are 196 tokens; prompt and caption are taken to be 54, so 94 % of all tokens are padding, which the
  router sends to experts and the TFLOP/s count.
- Nemotron 3 Nano over Qwen3-30B-A3B in NeMo AutoModel: 16,789 over 12,040 tokens per second on 8 H100 in
  its performance summary (36044ad3), with DeepEP, forced balance, all layers recomputed and four sequences
  a micro-batch. Issue 1187 compares 8,000 tokens per second on 4 B200, without DeepEP, with 12,000 on GPUs
  that it does not name; the summary has them for H100. We price Qwen3 on both.
- Dynamic over fixed context parallelism: up to 1.48 times as fast (Megatron-LM's README), which does not
  state model, lengths or GPUs. We price Llama 2 13B on 64 H100, eight ranks a sequence of 131,072 tokens.
  The example of Megatron-LM's dev branch (d48bd6be ``examples/dynamic_context_parallel``) is stated: 1.41
  times on 8 GPUs, of a type that is not.

Weak scaling of shared weights has a benchmark of its own, ``make bench ARGS=weight-shards``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import Batching, SequenceLengths
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


def _config(name: str) -> Mapping[str, Any]:
    configs = {one["name"]: one["config"] for one in json.loads(_CONFIGS.read_text("utf-8"))}
    found: Mapping[str, Any] = configs[name]
    return found


def _model(name: str) -> ModelSpec:
    return model_from_config(_config(name), name=name)


def _predicted(problem: Problem, config: Configuration) -> Prediction:
    return predict(problem, default_profile(problem.cluster, problem.launcher), config)


_TOWER = {
    "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3,
    "intermediate_size": 4304, "model_type": "qwen3_5_moe", "num_heads": 16,
    "num_position_embeddings": 2304, "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip


def _qwen_3_5_vl(stage_layers: tuple[int, int], *, padded: bool) -> float:
    """Return the TFLOP/s of Megatron-Bridge's recipe, all tokens of its sequences counted."""
    text = _config("qwen3.5-35b-a3b-text")
    config = {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": _TOWER}
    options: dict[str, str | bool] = {
        "moe_dispatcher": "hybridep", "cuda_graph": "attn+moe_router+moe_preprocess",
    }  # fmt: skip
    workload = Workload(
        global_batch_size=512, seq_length=4096, images_per_sample=1.0, image_tokens=_all_of(196),
        framework_options=options if padded else {**options, "moe_force_balance": True},
    )  # fmt: skip
    layout = Configuration(
        pipeline_parallel_size=2, data_parallel_size=8, expert_parallel_size=8, num_microbatches=64,
        stage_layers=stage_layers, zero_stage=1, zero_shard_size=8, recompute_granularity="selective",
    )  # fmt: skip
    whole = Problem(
        model=model_from_config(config, name="qwen3.5-vl-35b-a3b"), launcher="megatron-bridge",
        cluster=find_cluster("dgx-h100", num_nodes=2), workload=workload,
    )  # fmt: skip
    lengths = _all_of(250, "padding") if padded else None
    step_s = _predicted(replace(whole, workload=replace(workload, lengths=lengths)), layout).step_time_s
    return 512 * 4096 * whole.model_flops_per_token / step_s / 16 / 1e12


def qwen_3_5() -> Iterator[Check]:
    """Predict the TFLOP/s of Megatron-Bridge's recipe, with real images and with a forced balance."""
    name = "Qwen3.5-VL 35B-A3B, 16 H100: TFLOP/s per GPU"
    yield Check(f"{name}, padded sequences", 135.61, 0.2, _qwen_3_5_vl((16, 24), padded=True))
    yield Check(f"{name}, forced balance", 185.15, 0.2, _qwen_3_5_vl((17, 23), padded=False))


def _micro_batch_s(model: ModelSpec, cluster: str, gpus: int, options: Mapping[str, str | bool]) -> float:
    """Return the seconds of four sequences on each GPU under NeMo AutoModel."""
    nodes = find_cluster(cluster, num_nodes=1)
    (group,) = nodes.groups
    problem = Problem(
        model=model,
        cluster=replace(nodes, groups=(replace(group, gpus_per_node=gpus),)),
        workload=Workload(global_batch_size=512, seq_length=4096, framework_options=options),
        launcher="torchtitan",  # FSDP2 with expert parallelism, too
    )
    config = Configuration(
        data_parallel_size=gpus, expert_parallel_size=gpus, num_microbatches=512 // gpus // 4,
        micro_batch_size=4, stage_layers=(model.num_layers,), zero_stage=2, zero_shard_size=gpus,
        recompute_granularity="full", recompute_layers=model.num_layers,
    )  # fmt: skip
    profile = default_profile(problem.cluster, problem.launcher)
    stack = replace(profile, framework=framework_facts("automodel"))
    return predict(problem, stack, config).step_time_s / config.num_microbatches


def _looped_experts_s(model: ModelSpec, gpus: int) -> float:
    """Return what AutoModel's loop over experts moves beyond grouped experts, without launches.

    In the backward pass of each of its experts a rank writes zeros as large as all gathered tokens and as
    all of its experts' weights, fills in a part and adds the whole to a gradient: eight bytes an element
    (ba91bfb7 ``components/moe/layers.py GroupedExperts.forward``: ``x.gather``, ``local_proj[expert_id]``).
    Outputs are multiplied by weights in fp32 and rounded: 6 + 6 bytes an element of a routed token, twice
    as all is recomputed, and in the backward pass 6 + 6 and, for the weights' gradient, 6 + 8.
    """
    layers = model.layer_pattern.count("E")
    if (moe := model.moe) is None:
        return 0.0
    tokens = gpus * 4 * 4096 * model.hidden_size
    weights = moe.num_experts / gpus * 2 * model.hidden_size * moe.ffn_hidden_size
    cluster = find_cluster("dgx-b200", num_nodes=1)
    (group,) = cluster.groups
    rate = group.gpu.hbm_bytes_per_s * default_profile(cluster, "torchtitan").constants.hbm
    products = (2 * 12 + 26) * tokens * moe.top_k / gpus
    return layers * (moe.num_experts / gpus * 8.0 * (tokens + weights) + products) / rate


def nemotron_3_nano() -> Iterator[Check]:
    """Predict the tokens per second of Nemotron 3 Nano in those of Qwen3-30B-A3B."""
    hybrid, plain = _model("nemotron-3-nano-30b-a3b"), find_model("qwen3-30b-a3b")
    forced: dict[str, str | bool] = {"moe_dispatcher": "deepep", "moe_force_balance": True}
    qwen_s = _micro_batch_s(plain, "dgx-h100", 8, forced)
    same = qwen_s / _micro_batch_s(hybrid, "dgx-h100", 8, forced)
    name = "Nemotron 3 Nano over Qwen3-30B-A3B: tokens/s per GPU"
    yield Check(f"{name}, 8 H100 each", 16_789 / 12_040, 0.2, same)
    b200_s = _micro_batch_s(hybrid, "dgx-b200", 4, {"moe_dispatcher": "allgather"})
    looped = b200_s + _looped_experts_s(hybrid, 4)
    natural_s = _micro_batch_s(plain, "dgx-b200", 8, {"moe_dispatcher": "deepep"})
    yield Check(f"{name}, 4 B200 and a loop over experts against 8 B200", 2 / 3, 0.2, natural_s / looped)
    yield Check(f"{name}, the same against 8 H100", 2 / 3, 0.2, qwen_s / looped)


def _all_of(tokens: int, batching: Batching = "packing") -> SequenceLengths:
    return SequenceLengths(histogram=((tokens, 1.0),), batching=batching)


def _lognormal(mean: float, longest: int) -> SequenceLengths:
    """Return 200 equally likely lengths of the example's distribution: sigma 1.5, at least 128 tokens."""
    spread, shares = 1.5, [(at + 0.5) / 200 for at in range(200)]
    middle = math.log(mean) - spread**2 / 2
    drawn = [round(math.exp(middle + spread * NormalDist().inv_cdf(share))) for share in shares]
    counts = Counter(min(max(tokens, 128), longest) for tokens in drawn)
    return SequenceLengths(histogram=tuple((tokens, n / 200) for tokens, n in sorted(counts.items())))


def _dynamic(problem: Problem, config: Configuration) -> float:
    """Return how much faster packed passes of documents on as many ranks as they need are."""
    options = {"dynamic_context_parallel": True, "dynamic_context_packing": True}
    dynamic = replace(problem, workload=replace(problem.workload, framework_options=options))
    fixed_s, dynamic_s = (_predicted(one, config).step_time_s for one in (problem, dynamic))
    return fixed_s / dynamic_s


def dynamic_context_parallelism() -> Iterator[Check]:
    """Predict how much faster a context size for each document is."""
    workload = Workload(global_batch_size=64, seq_length=131_072, lengths=_lognormal(4096, 131_072))
    config = Configuration(
        context_parallel_size=8, data_parallel_size=8, num_microbatches=8, zero_stage=1, zero_shard_size=64,
        recompute_granularity="full", recompute_layers=40, stage_layers=(40,),
    )  # fmt: skip
    llama, nodes = find_model("llama-2-13b"), find_cluster("dgx-h100", num_nodes=8)
    long = _dynamic(Problem(model=llama, cluster=nodes, workload=workload, launcher="megatron-lm"), config)
    yield Check("dynamic over fixed context parallelism, Llama 2 13B", 1.48, 0.15, long)
    small = replace(
        find_model("gpt2"), name="example", num_layers=12, hidden_size=2048, ffn_hidden_size=8192,
        num_attention_heads=16, num_kv_heads=16, head_dim=128, vocab_size=131_072,
    )  # fmt: skip
    workload = Workload(global_batch_size=2, seq_length=8192, lengths=_lognormal(1024, 8192))
    config = Configuration(
        context_parallel_size=4, data_parallel_size=2, num_microbatches=1, zero_stage=1, zero_shard_size=8,
        stage_layers=(12,),
    )  # fmt: skip
    node = find_cluster("dgx-h100", num_nodes=1)
    short = _dynamic(Problem(model=small, cluster=node, workload=workload, launcher="megatron-lm"), config)
    yield Check("dynamic over fixed context parallelism, the example", 1.41, 0.15, short)


CHECKS = (qwen_3_5, nemotron_3_nano, dynamic_context_parallelism)


def main() -> None:
    """Print each published figure, ours, the error and the error that was aimed at."""
    found = [one for checks in CHECKS for one in checks()]
    rows = [
        [one.name, f"{one.published:.3g}", f"{one.ours:.3g}", f"{one.error:+.0%}", f"{one.within:.0%}"]
        for one in found
    ]
    print("\n".join(table(["figure", "published", "ours", "error", "aim"], rows)))


if __name__ == "__main__":
    main()
