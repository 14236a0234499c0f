"""What every launcher leaves open, whatever its files say."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.capabilities import model_facts
from service.launchers.target import Target


def common_warnings(target: Target) -> Iterator[str]:
    """Mixed clusters, context rings over the network, and options that no file carries."""
    config, near = target.config, target.near_gpus
    ranks = config.tensor_parallel_size * config.context_parallel_size
    if config.context_parallel_size > 1 and near % ranks and config.num_gpus > near:
        yield f"tp * cp = {ranks} ranks cross the network: {near} GPUs are near each other"
    if not target.problem.cluster.is_homogeneous:
        yield "node ranks must follow the order of the cluster's groups; Slurm sorts its hosts by name"
    if target.problem.options.batch_ramp:
        yield "the batch ramp is not written: the files start with the largest batch"
    options = target.workload.framework_options
    if options:
        names = ", ".join(sorted(options))[:200]
        yield f"the prediction assumes the request's framework options ({names}); no file here sets them"
    if target.workload.precision == "bf16" and "bf16" not in target.gpu.peak_flops:
        yield f"{target.gpu.display_name} has no bf16 units; fp16 is what it runs fast"


def model_is_in_the_script(target: Target) -> str:
    """What a plan was made for, where the launcher's files name no model: its size and its facts."""
    model = target.model
    experts = f", {model.moe.num_experts} experts" if model.moe else ""
    facts = "".join(f"; {fact}" for fact in sorted(model_facts(model)))
    return (
        f"load the model that was planned, of {model.num_parameters()} parameters: "
        f"{model.num_layers} layers, hidden {model.hidden_size}, MLP {model.ffn_hidden_size}, "
        f"{model.num_attention_heads} heads, {model.num_kv_heads} key/value heads, "
        f"vocabulary {model.vocab_size}{experts}{facts}"
    )
