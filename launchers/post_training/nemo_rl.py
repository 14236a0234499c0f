"""Exporter of NeMo-RL: a YAML over its ``examples/configs/grpo_math_1B.yaml``.

Names: NeMo-RL 0.7.0 (81aa43d), nemo_rl/algorithms/grpo.py MasterConfig, nemo_rl/models/policy/__init__.py
PolicyConfig, nemo_rl/models/generation/vllm/config.py.
"""

from __future__ import annotations

from meshwright.launchers.post_training.target import (
    RoleTarget,
    Values,
    head_of,
    hub_id,
    role_target,
    warnings_of,
    yaml_text,
)
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.adapters import FUSED_TARGETS, class_targets, names_every
from meshwright.profiles.errors import FieldError, RefusedExportError
from meshwright.solver.post_training.problem import PostTraining, RolePlan, SideRole

CONFIG_FILE, START_FILE = "nemo_rl_grpo.yaml", "run.sh"
PRODUCT = "NeMo-RL 0.7.0"
BASE = "/opt/nemo-rl/examples/configs/grpo_math_1B.yaml"  # where its container has it
SGLANG_BASE = "/opt/nemo-rl/examples/configs/grpo_math_1B_sglang.yaml"  # over the same
REWARD_BASE = "/opt/nemo-rl/examples/configs/grpo_rm_1B.yaml"  # over the same, with a reward model
# What SGLANG_BASE states and REWARD_BASE does not.
_SGLANG: Values = {
    "model_path": "${policy.model_name}", "dtype": "${policy.precision}", "allow_auto_truncate": True,
    "dp_size": 1, "pp_size": 1, "ep_size": 1, "random_seed": 42, "skip_server_warmup": True,
    "disable_piecewise_cuda_graph": True, "disable_cuda_graph": False,
    "sglang_router_config": {"use_external_router": False},
}  # fmt: skip
_SGLANG_SERVER: Values = {
    "needs_offload": True, "cpu_weight_backup": True, "pause_generation_mode": "retract"
}  # fmt: skip
_START = """\
#!/usr/bin/env bash
@HEAD@# Run it in NeMo-RL's checkout, on the head node of a Ray cluster of @NODES@ nodes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec uv run python examples/run_grpo.py --config "${here}/nemo_rl_grpo.yaml" "$@"
"""


def export(asked: PostTraining, plan: RolePlan) -> ExportBundle:
    """Return NeMo-RL's YAML and the script that starts it.

    Raises:
        RefusedExportError: it cannot express the plan.
    """
    target = role_target(asked, plan)
    _require_equal_nodes(target)
    head = head_of(target, PRODUCT)
    values = values_of(target)
    nodes = str(_cluster(target)["num_nodes"])
    return ExportBundle(
        files={
            CONFIG_FILE: yaml_text(head, values),
            START_FILE: _START.replace("@HEAD@", head).replace("@NODES@", nodes),
        },
        warnings=[
            f"defaults is where NeMo-RL's container has its base file; elsewhere change it ({BASE})",
            *warnings_of(target),
        ],
    )


def _require_equal_nodes(target: RoleTarget) -> None:
    """Refuse roles on nodes with unlike numbers of GPUs.

    Raises:
        RefusedExportError: cluster.gpus_per_node is one number (nemo_rl/algorithms/grpo.py setup).
    """
    if target.asked.training.cluster.num_nodes == 1:
        return
    train = target.training_nodes[1]
    others = {} if target.is_colocated else {"generation": target.rollout_nodes[1]}
    others |= {} if target.reward is None else {"the reward model": target.reward_nodes[1]}
    for role, each in others.items():
        if each == train:
            continue
        fault = FieldError(
            pointer="/cluster",
            message=f"training has nodes of {train} GPUs and {role} of {each}, but "
            "cluster.gpus_per_node is one number",
            allowed="node groups with equal numbers of GPUs, or launcher: verl",
            nearest="launcher: verl",
        )
        raise RefusedExportError([fault])


def _base(target: RoleTarget) -> str:
    if target.reward is not None:
        return REWARD_BASE
    return SGLANG_BASE if target.asked.engine == "sglang" else BASE


def values_of(target: RoleTarget) -> Values:
    """Return the fields that the plan sets, over NeMo-RL's base file."""
    asked = target.asked
    return {
        "defaults": _base(target),
        "grpo": {
            "num_prompts_per_step": asked.prompts,
            "num_generations_per_prompt": asked.responses,
            **({} if asked.reference else {"skip_reference_policy_logprobs_calculation": True}),
            "async_grpo": _asynchronous(target),
        },
        "loss_fn": _loss(target),
        "policy": _policy(target),
        "data": {
            "max_input_seq_length": asked.lengths.longest,
            **({} if target.reward is None else {"default": {"env_name": "reward_model"}}),
        },
        **({} if target.reward is None else {"env": {"reward_model": _reward(target, target.reward)}}),
        "cluster": _cluster(target),
    }


def _reward(target: RoleTarget, role: SideRole) -> Values:
    """Return the reward model with nodes of its own (nemo_rl/environments/reward_model_environment.py)."""
    nodes, each = target.reward_nodes
    return {
        "model_name": hub_id(target.asked.reward_model or target.asked.model),
        "batch_size": 1,
        "max_model_len": target.asked.lengths.longest,
        "resources": {"num_nodes": nodes, "gpus_per_node": each},
        "dtensor_cfg": {"tensor_parallel_size": role.tensor_parallel_size},
    }


def _asynchronous(target: RoleTarget) -> Values:
    runs_ahead = target.plan.mode == "async"
    found: Values = {"enabled": runs_ahead}
    if runs_ahead:
        # without updates in flight a larger age gives nothing (grpo.py async_grpo_train)
        found |= {"max_trajectory_age_steps": target.plan.steps_off, "in_flight_weight_updates": True}
    return found


def _loss(target: RoleTarget) -> Values:
    found: Values = {}
    if target.plan.mode == "async":  # required there: "for good convergence due to off-policy samples"
        found["use_importance_sampling_correction"] = True
    if not target.asked.reference:
        found["reference_policy_kl_penalty"] = 0
    return found


def _policy(target: RoleTarget) -> Values:
    asked, config = target.asked, target.config
    rings = 2 * config.context_parallel_size if config.context_parallel_size > 1 else 1
    found: Values = {
        "model_name": target.model_name,
        "train_global_batch_size": target.update_answers,
        "train_micro_batch_size": config.micro_batch_size,
        "logprob_batch_size": config.micro_batch_size,
        "max_total_sequence_length": asked.lengths.longest,
        "precision": "bfloat16",
        "make_sequence_length_divisible_by": config.tensor_parallel_size * rings,
        "dynamic_batching": {"enabled": False},
        "sequence_packing": {"enabled": True},
    }
    if asked.trainer == "megatron":
        # optimizer and scheduler of the base file are those of FSDP (grpo_math_8B_megatron.yaml)
        found |= {"dtensor_cfg": {"enabled": False}, "optimizer": None, "scheduler": None}
        found["megatron_cfg"] = _megatron(target)
    else:
        found["megatron_cfg"] = {"enabled": False}
        found["dtensor_cfg"] = {
            "enabled": True,
            "tensor_parallel_size": config.tensor_parallel_size,
            "context_parallel_size": config.context_parallel_size,
            "sequence_parallel": config.sequence_parallel and config.tensor_parallel_size > 1,
            "activation_checkpointing": config.recompute_granularity == "full",
            "cpu_offload": False,
            **({"lora_cfg": _adapters(target, "match_all_linear")} if asked.adapts else {}),
        }
    found["generation"] = _generation(target)
    return found


def _adapters(target: RoleTarget, switch: str = "") -> Values:
    """Return LoRA of a back end: every linear layer by a switch, or by no names (docs/guides/lora.md)."""
    work = target.asked.training.workload
    every = names_every(work.lora_targets) or work.lora_targets == FUSED_TARGETS
    words = class_targets(target.asked.training.model, work.lora_targets)
    return {
        "enabled": True, "dim": work.lora_rank, "alpha": 2 * work.lora_rank,
        "target_modules": [] if every else list(words), **({switch: every} if switch else {}),
    }  # fmt: skip


def _megatron(target: RoleTarget) -> Values:
    config, layers = target.config, target.config.stage_layers
    stages = config.pipeline_parallel_size
    even = target.asked.model.num_layers // stages
    found: Values = {
        "enabled": True,
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel and config.tensor_parallel_size > 1,
        "pipeline_model_parallel_size": stages,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        "activation_checkpointing": config.recompute_granularity != "none",
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
    }
    if stages > 1 and set(layers) != {even}:
        found["num_layers_in_first_pipeline_stage"] = layers[0]
        found["num_layers_in_last_pipeline_stage"] = layers[-1]
    if config.recompute_granularity != "none":
        found["recompute_granularity"] = config.recompute_granularity
    if target.asked.adapts:
        found["peft"] = _adapters(target)
    return found


def _generation(target: RoleTarget) -> Values:
    engine, longest = target.engine, target.asked.lengths.longest
    colocated: Values = {"enabled": target.is_colocated}
    if not target.is_colocated:
        nodes, each = target.rollout_nodes
        colocated["resources"] = {
            "gpus_per_node": each,
            "num_nodes": None if target.shares_a_node else nodes,  # grpo.py: null where there is one node
        }
    if target.asked.engine == "sglang":
        return {
            "backend": "sglang",
            "max_new_tokens": longest,
            "colocated": colocated,
            "sglang_cfg": _sglang(target),
        }
    return {
        "backend": "vllm",
        "max_new_tokens": longest,
        "colocated": colocated,
        "vllm_cfg": {
            "async_engine": target.plan.mode == "async",
            "precision": "fp8" if target.asked.precision == "fp8" else "bfloat16",
            "tensor_parallel_size": engine.tensor_parallel_size,
            "gpu_memory_utilization": engine.memory_share,
            "max_model_len": longest,
        },
        "vllm_kwargs": {"max_num_seqs": target.most_running},
    }


def _sglang(target: RoleTarget) -> Values:
    """Return the engines on all GPUs of training (nemo_rl/models/generation/sglang/config.py)."""
    engine = target.engine
    return {
        **({} if target.reward is None else _SGLANG),
        "context_length": target.asked.lengths.longest,
        "tp_size": engine.tensor_parallel_size,
        "mem_fraction_static": engine.memory_share,
        "max_running_requests": target.most_running,
        "sglang_server_config": {
            **({} if target.reward is None else _SGLANG_SERVER),
            "num_gpus": target.plan.training.gpus,
            "num_gpus_per_engine": engine.tensor_parallel_size,
            "sglang_server_concurrency": target.most_running,
        },
    }


def _cluster(target: RoleTarget) -> Values:
    """Return nodes and their GPUs: both roles' together."""
    (nodes, each), (reward_nodes, reward_each) = target.training_nodes, target.reward_nodes
    if target.asked.training.cluster.num_nodes == 1:
        rollout = target.rollout_nodes[1] if target.shares_a_node else 0
        return {"num_nodes": 1, "gpus_per_node": each + rollout + reward_each}
    if not target.is_colocated:
        nodes += target.rollout_nodes[0]
    nodes += reward_nodes
    return {"num_nodes": nodes, "gpus_per_node": each}
