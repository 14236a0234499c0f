"""Models, clusters and plans that the tests of the launchers share."""

from __future__ import annotations

from dataclasses import replace

from meshwright.launchers.target import Target
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec, RotaryScaling
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Plan, Prediction, StagePrediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem, Workload

NVLINK = LinkSpec(kind="nvswitch", bytes_per_s=450e9, latency_s=2e-6)
INFINIBAND = LinkSpec(kind="infiniband", bytes_per_s=50e9, latency_s=5e-6)
H100 = GpuSpec(
    slug="h100-sxm-80gb",
    display_name="H100 SXM 80 GB",
    memory_bytes=79 * GIB,
    hbm_bytes_per_s=3.35e12,
    peak_flops={"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12},
    architecture="hopper",
    intra_node=NVLINK,
    inter_node=INFINIBAND,
)
B200 = replace(H100, slug="b200", display_name="B200", architecture="blackwell")
A100 = replace(
    H100,
    slug="a100",
    display_name="A100",
    architecture="ampere",
    peak_flops={"bf16": 312e12, "fp16": 312e12},
)
V100 = replace(H100, slug="v100", display_name="V100", architecture="volta", peak_flops={"fp16": 125e12})

LLAMA_70B = ModelSpec(
    name="llama-3.1-70b", display_name="Llama 3.1 70B", num_layers=80, hidden_size=8192,
    ffn_hidden_size=28672, num_attention_heads=64, num_kv_heads=8, head_dim=128, vocab_size=128256,
    max_position_embeddings=131072, rotary_base=500_000, norm_epsilon=1e-5,
    rotary_scaling=RotaryScaling(kind="llama3", factor=8.0, original_max_position_embeddings=8192),
)  # fmt: skip
LLAMA_3_70B = replace(
    LLAMA_70B, name="llama-3-70b", display_name="Llama 3 70B", max_position_embeddings=8192,
    rotary_scaling=None,
)  # fmt: skip
LLAMA_405B = replace(
    LLAMA_70B, name="llama-3.1-405b", display_name="Llama 3.1 405B", num_layers=126, hidden_size=16384,
    ffn_hidden_size=53248, num_attention_heads=128,
)  # fmt: skip
GPT3_175B = ModelSpec(
    name="gpt-3-175b", display_name="GPT-3 175B", num_layers=96, hidden_size=12288, ffn_hidden_size=49152,
    num_attention_heads=96, num_kv_heads=96, head_dim=128, vocab_size=51200, gated_mlp=False,
    tied_embeddings=True, learned_position_embeddings=True, max_position_embeddings=2048,
    normalization="layernorm", qkv_bias=True, attention_output_bias=True, mlp_bias=True,
)  # fmt: skip
MIXTRAL = ModelSpec(
    name="mixtral-8x7b", display_name="Mixtral 8x7B", num_layers=32, hidden_size=4096,
    ffn_hidden_size=14336, num_attention_heads=32, num_kv_heads=8, head_dim=128, vocab_size=32000,
    moe=MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=14336),
)  # fmt: skip
DEEPSEEK_V3 = ModelSpec(
    name="deepseek-v3", display_name="DeepSeek-V3", num_layers=61, hidden_size=7168, ffn_hidden_size=18432,
    num_attention_heads=128, num_kv_heads=128, head_dim=192, vocab_size=129280,
    moe=MoeSpec(
        num_experts=256, top_k=8, ffn_hidden_size=2048, num_shared_experts=1, shared_ffn_hidden_size=2048,
        num_dense_layers=3, router_score="sigmoid", selection_bias=True, router_groups=8,
        router_top_groups=4, router_scaling=2.5, balance_coefficient=0.0001, balanced_by_sequence=True,
    ),
    rotary_scaling=RotaryScaling(
        kind="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0
    ),
    mla=MlaSpec(
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    num_mtp_layers=1,
)  # fmt: skip


STAGE = StagePrediction(
    stage=0, layers=20, memory_bytes={"weights": 50 * GIB}, peak_memory_bytes=50 * GIB, compute_s=1.0
)


def cluster(num_nodes: int, *, gpu: GpuSpec = H100, gpus_per_node: int = 8) -> ClusterSpec:
    """A cluster of equal nodes."""
    group = NodeGroup(
        gpu=gpu,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        island_gpus=gpus_per_node,
        intra_node=NVLINK,
        inter_node=INFINIBAND,
    )
    return ClusterSpec(name="test", groups=(group,))


def plan(config: Configuration) -> Plan:
    """A plan with round numbers for its prediction."""
    prediction = Prediction(
        step_time_s=32.8, step_time_low_s=31.5, step_time_high_s=34.1, tokens_per_s_per_gpu=999.0, mfu=0.46,
        hfu=0.46, peak_flops_per_gpu=989e12, bubble_fraction=0.05, peak_memory_bytes=50 * GIB,
        memory_limit_bytes=79 * GIB, heaviest_stage=0, out_of_memory_probability=0.001,
        time_breakdown_s={"compute": 32.8},
        stages=(STAGE,),
    )  # fmt: skip
    return Plan(plan_id="0123456789ab", rank=1, config=config, prediction=prediction, objective_s=32.0)


def target(
    model: ModelSpec,
    config: Configuration,
    *,
    gpu: GpuSpec = H100,
    gpus_per_node: int = 8,
    num_nodes: int | None = None,
    workload: Workload | None = None,
    seq_length: int = 8192,
) -> Target:
    """A plan of ``config``, by default on just enough nodes and with the batch that it conserves."""
    nodes = num_nodes or -(-config.num_gpus // gpus_per_node)
    conserved = Workload(global_batch_size=config.global_batch_size, seq_length=seq_length)
    problem = Problem(
        model=model,
        cluster=cluster(nodes, gpu=gpu, gpus_per_node=gpus_per_node),
        workload=workload or conserved,
    )
    return Target(plan=plan(config), problem=problem)


LLAMA_70B_EVEN = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=5,
    data_parallel_size=4, zero_stage=1, zero_shard_size=4, micro_batch_size=1, num_microbatches=128,
    pipeline_schedule="interleaved_1f1b", stage_layers=(4,) * 20,
)  # fmt: skip
LLAMA_405B_UNEVEN = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=16, data_parallel_size=8,
    zero_stage=1, zero_shard_size=8, micro_batch_size=1, num_microbatches=64, pipeline_schedule="1f1b",
    recompute_granularity="selective", stage_layers=(7, *(8,) * 14, 7),
)  # fmt: skip
LLAMA_405B_STANDALONE = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=16, virtual_pipeline_size=8,
    data_parallel_size=8, zero_stage=1, zero_shard_size=8, micro_batch_size=1, num_microbatches=64,
    pipeline_schedule="interleaved_1f1b", stage_layers=(0, *(1,) * 126, 0),
)  # fmt: skip
GPT3_BLOCK = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=8, virtual_pipeline_size=3,
    data_parallel_size=2, micro_batch_size=1, num_microbatches=32, pipeline_schedule="interleaved_1f1b",
    recompute_granularity="full", recompute_layers=2, stage_layers=(4,) * 24,
)  # fmt: skip
DEEPSEEK_EXPERTS = Configuration(
    pipeline_parallel_size=8, virtual_pipeline_size=2, data_parallel_size=64, expert_parallel_size=64,
    zero_stage=1, zero_shard_size=64, micro_batch_size=1, num_microbatches=64,
    pipeline_schedule="interleaved_1f1b", recompute_granularity="full", recompute_layers=61,
    stage_layers=(3, *(4,) * 14, 2),
)  # fmt: skip
DEEPSEEK_STANDALONE = replace(DEEPSEEK_EXPERTS, pipeline_parallel_size=16, stage_layers=(1, *(2,) * 30, 0))
MIXTRAL_EXPERTS = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=8,
    expert_parallel_size=8, zero_stage=1, zero_shard_size=8, micro_batch_size=2, num_microbatches=16,
    pipeline_schedule="1f1b", stage_layers=(16, 16),
)  # fmt: skip
LLAMA_70B_FSDP = Configuration(
    data_parallel_size=64, zero_stage=3, zero_shard_size=64, micro_batch_size=1, num_microbatches=2,
    recompute_granularity="full", recompute_layers=80, stage_layers=(80,),
)  # fmt: skip
LLAMA_70B_NEAR_STAGES = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=5,
    data_parallel_size=8, zero_stage=1, zero_shard_size=8, micro_batch_size=1, num_microbatches=64,
    pipeline_schedule="interleaved_1f1b", rank_order="tp-cp-pp-dp", stage_layers=(4,) * 20,
)  # fmt: skip
LLAMA_70B_OFFLOADED = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=2, zero_stage=1, zero_shard_size=2,
    num_microbatches=16, recompute_granularity="full", recompute_layers=80, offload="optimizer",
    stage_layers=(80,),
)  # fmt: skip

MIXTRAL_OVERLAPPED = replace(
    MIXTRAL_EXPERTS, virtual_pipeline_size=4, pipeline_schedule="interleaved_1f1b", stage_layers=(4,) * 8
)
MIXTRAL_SHARDED = replace(
    MIXTRAL_EXPERTS, expert_parallel_size=4, weight_shard_size=4, expert_weight_shard_size=2,
    zero_shard_size=2,
)  # fmt: skip
CASES = {
    "llama-3.1-70b-interleaved": target(LLAMA_70B, LLAMA_70B_EVEN),
    "llama-3.1-405b-uneven": target(LLAMA_405B, LLAMA_405B_UNEVEN),
    "llama-3.1-405b-standalone": target(LLAMA_405B, LLAMA_405B_STANDALONE),
    "gpt-3-175b-block-recompute": target(GPT3_175B, GPT3_BLOCK, gpu=A100, seq_length=2048),
    "deepseek-v3-experts": target(DEEPSEEK_V3, DEEPSEEK_EXPERTS, seq_length=4096),
    "deepseek-v3-standalone": target(DEEPSEEK_V3, DEEPSEEK_STANDALONE, seq_length=4096),
    "mixtral-8x7b-experts": target(MIXTRAL, MIXTRAL_EXPERTS, seq_length=4096),
    "mixtral-8x7b-weight-shards": target(MIXTRAL, MIXTRAL_SHARDED, seq_length=4096),
    "mixtral-8x7b-overlapped": target(
        MIXTRAL,
        MIXTRAL_OVERLAPPED,
        workload=Workload(
            global_batch_size=256, seq_length=4096, framework_options={"overlap_experts": True}
        ),
    ),
    "llama-3.1-70b-fsdp": target(LLAMA_70B, LLAMA_70B_FSDP),
    "llama-3.1-70b-offloaded": target(LLAMA_70B, LLAMA_70B_OFFLOADED),
    "llama-3.1-70b-near-stages": target(LLAMA_70B, LLAMA_70B_NEAR_STAGES),
}
