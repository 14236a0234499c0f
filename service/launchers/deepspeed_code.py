"""What DeepSpeed takes in code: a Python module of values, each with the call that it belongs to.

Calls: DeepSpeed 0.19.8, runtime/pipe/module.py (PipelineModule), runtime/pipe/topology.py (ranks: pipe
outermost, then data, model fastest), moe/layer.py (MoE), runtime/activation_checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.launchers.target import Target

CODE_FILE = "deepspeed_plan.py"


def code_file(head: str, target: Target) -> str:
    """Constants, grouped by the call that takes them; importing the module has no effect."""
    lines = ['"""Values of the plan that DeepSpeed takes in code."""', ""]
    for comment, name, value in _values(target):
        lines += [f"# {comment}", f"{name} = {value!r}"]
    return head + "\n".join([*lines, ""])


def _values(target: Target) -> Iterator[tuple[str, str, object]]:
    config, model, workload = target.config, target.model, target.workload
    yield "The world size that the JSON was written for.", "WORLD_SIZE", config.num_gpus
    yield "Tokens of each sequence.", "SEQ_LENGTH", workload.seq_length
    yield (
        "The model's shape; check yours against it.",
        "MODEL",
        {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.ffn_hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "vocab_size": model.vocab_size,
        },
    )
    yield (
        "PipeModelDataParallelTopology(**TOPOLOGY), where there are stages or tensor ranks.",
        "TOPOLOGY",
        {
            "num_pp": config.pipeline_parallel_size,
            "num_mp": config.tensor_parallel_size,
            "num_dp": config.data_parallel_size,
        },
    )
    yield from _recompute(target)
    yield from _stages(target)
    yield from _experts(target)


def _stages(target: Target) -> Iterator[tuple[str, str, object]]:
    config = target.config
    if config.pipeline_parallel_size > 1:
        yield "Layers of each stage that the next values lead to.", "STAGE_LAYERS", config.stage_layers
        yield (
            "PipelineModule(layers, **PIPELINE); name the class of your transformer layers.",
            "PIPELINE",
            {
                "num_stages": config.pipeline_parallel_size,
                "partition_method": "type:TransformerLayer",
                "activation_checkpoint_interval": int(config.recompute_granularity == "full"),
            },
        )
        yield "engine.train_batch() runs this many micro-batches.", "MICRO_BATCHES", config.num_microbatches


def _experts(target: Target) -> Iterator[tuple[str, str, object]]:
    config, model = target.config, target.model
    if model.moe:
        yield (
            "deepspeed.moe.layer.MoE(hidden_size, expert, **EXPERTS), and how wide an expert is.",
            "EXPERTS",
            {
                "num_experts": model.moe.num_experts,
                "ep_size": config.expert_parallel_size,
                "k": model.moe.top_k,
            },
        )
        yield "Hidden width of one expert.", "EXPERT_FFN_HIDDEN_SIZE", model.moe.ffn_hidden_size


def _recompute(target: Target) -> Iterator[tuple[str, str, object]]:
    every = target.config.recompute_granularity == "full"
    yield (
        "Whether every transformer layer is recomputed (model.gradient_checkpointing_enable()).",
        "RECOMPUTE_EVERY_LAYER",
        every,
    )
