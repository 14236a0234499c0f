"""Exporter of verl: a script with its Hydra overrides.

Names: verl 0.7.0 (f9c855f), verl/trainer/config/ppo_trainer.yaml and ppo_megatron_trainer.yaml,
recipe/fully_async_policy/config. Its mini-batches count prompts.
"""

from __future__ import annotations

from math import ceil

from meshwright.launchers.post_training.target import (
    RoleTarget,
    Values,
    head_of,
    hub_id,
    role_target,
    warnings_of,
)
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.adapters import class_targets, names_every
from meshwright.profiles.errors import FieldError, RefusedExportError
from meshwright.profiles.model import ModelSpec
from meshwright.solver.post_training.engines import COLOCATED_SHARE, MEMORY_SHARES
from meshwright.solver.post_training.problem import PostTraining, RolePlan

START_FILE = "run.sh"
PRODUCT = "verl 0.7.0"
_PROMPT_TIMES, _PROMPT_STEP = 2.0, 128  # of the mean prompt: room for the longest; tokens
_START = """\
#!/usr/bin/env bash
@HEAD@# Run it in verl's checkout, on the head node of a Ray cluster of @NODES@ nodes.
set -euo pipefail
: "${TRAIN_FILES:?the training data, a parquet file}" "${VAL_FILES:?the validation data}"
exec python3 -m @MODULE@ @CONFIG@ \\
@OVERRIDES@
    data.train_files="${TRAIN_FILES}" data.val_files="${VAL_FILES}" "$@"
"""


def export(asked: PostTraining, plan: RolePlan) -> ExportBundle:
    """Return the script that starts verl.

    Raises:
        RefusedExportError: it cannot express the plan.
    """
    target = role_target(asked, plan)
    _require_whole_prompts(target)
    head = head_of(target, PRODUCT)
    module, config = entry_of(target)
    nodes = target.training_nodes[0] + (0 if target.is_colocated else target.rollout_nodes[0])
    nodes += target.reward_nodes[0]
    lines = "\n".join(f"    {name}={_shown(value)} \\" for name, value in overrides_of(target).items())
    text = _START.replace("@HEAD@", head).replace("@NODES@", str(nodes)).replace("@MODULE@", module)
    text = text.replace("@CONFIG@", config).replace("@OVERRIDES@", lines)
    return ExportBundle(files={START_FILE: text}, warnings=[*_warnings(target), *warnings_of(target)])


def _require_whole_prompts(target: RoleTarget) -> None:
    asked = target.asked
    if asked.prompts % asked.updates:
        near = max(one for one in range(1, asked.updates) if asked.prompts % one == 0)
        fault = FieldError(
            pointer="/algorithm/updates",
            message=f"{asked.updates} updates don't divide {asked.prompts} prompts, which it counts",
            allowed="a divisor of algorithm.prompts, or launcher: nemo-rl",
            nearest=str(near),
        )
        raise RefusedExportError([fault])


def _warnings(target: RoleTarget) -> list[str]:
    prompt = prompt_tokens(target)
    found = [f"data.max_prompt_length is {prompt}: twice the mean that you stated. Answers get the rest"]
    if target.plan.steps_off > 1:
        found.append("verl recommends a staleness_threshold below 1 (docs/advance/fully_async.md)")
    return found


def entry_of(target: RoleTarget) -> tuple[str, str]:
    """Return verl's module, and the arguments that name its configuration."""
    back_end = "ppo_megatron_trainer" if target.asked.trainer == "megatron" else "ppo_trainer"
    if target.is_colocated:
        return "verl.trainer.main_ppo", f"--config-name={back_end}"
    name = f"--config-path=config --config-name=fully_async_{back_end}"
    return "recipe.fully_async_policy.fully_async_main", name


def prompt_tokens(target: RoleTarget) -> int:
    """Return the room for prompts: twice their mean, of whole blocks."""
    lengths = target.asked.lengths
    room = ceil(_PROMPT_TIMES * lengths.prompt / _PROMPT_STEP) * _PROMPT_STEP
    return min(room, lengths.longest // 2)


def overrides_of(target: RoleTarget) -> Values:
    """Return the overrides that the plan sets."""
    asked, config, engine = target.asked, target.config, target.engine
    prompt = prompt_tokens(target)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    found: Values = {
        "algorithm.adv_estimator": "gae" if asked.has_critic else "grpo",
        "data.max_prompt_length": prompt,
        "data.max_response_length": asked.lengths.longest - prompt,
        "actor_rollout_ref.model.path": target.model_name,
        "actor_rollout_ref.model.use_remove_padding": True,
        f"{actor}.strategy": "megatron" if asked.trainer == "megatron" else "fsdp2",
        "critic.strategy": "megatron" if asked.trainer == "megatron" else "fsdp2",
        f"{actor}.ppo_mini_batch_size": asked.prompts // asked.updates,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": ceil(target.pass_tokens / config.context_parallel_size),
        f"{actor}.use_kl_loss": asked.reference,
        **(_megatron(target) if asked.trainer == "megatron" else _fsdp(target)),
        f"{rollout}.name": asked.engine,
        f"{rollout}.mode": "async",
        f"{rollout}.n": asked.responses,
        f"{rollout}.tensor_model_parallel_size": engine.tensor_parallel_size,
        f"{rollout}.gpu_memory_utilization": engine.memory_share,
        f"{rollout}.max_num_seqs": target.most_running,
        f"{rollout}.max_model_len": asked.lengths.longest,
    }
    if asked.adapts:
        found |= _adapters(target)
    if asked.has_critic:
        found |= _critic(target, found)
    if asked.reward_model is not None:
        found |= _reward(target, asked.reward_model)
    if asked.precision == "fp8":
        found[f"{rollout}.quantization"] = "fp8"
    return found | (_together(target) if target.is_colocated else _apart(target))


def _adapters(target: RoleTarget) -> Values:
    """Return peft's adapters, and engines that load the frozen weights once (docs/advance/ppo_lora.rst)."""
    work, model = target.asked.training.workload, "actor_rollout_ref.model"
    words = class_targets(target.asked.training.model, work.lora_targets)
    layers = "all-linear" if names_every(work.lora_targets) else f"[{','.join(words)}]"
    types = {"bf16": "bf16", "fp32": "fp32"}
    return {
        f"{model}.lora_rank": work.lora_rank,
        f"{model}.lora_alpha": 2 * work.lora_rank,
        f"{model}.target_modules": layers,
        "actor_rollout_ref.actor.fsdp_config.model_dtype": types[work.base_precision],
        "actor_rollout_ref.rollout.load_format": "safetensors",
        "actor_rollout_ref.rollout.layered_summon": True,
    }


def _is_offloaded(target: RoleTarget) -> bool:
    """Return whether states are on the host in between: engines or a critic take their place."""
    return target.is_colocated or target.asked.has_critic


def _critic(target: RoleTarget, actor: Values) -> Values:
    """Return the critic with the layout of the policy (verl trainer/config/critic)."""
    own = "actor_rollout_ref.actor."
    back_end = {
        name.replace(own, "critic.").replace("critic.fsdp_config", "critic.model.fsdp_config"): value
        for name, value in actor.items()
        if name.lstrip("+").startswith((f"{own}megatron.", f"{own}fsdp_config.", f"{own}ulysses"))
    }
    return {
        "critic.model.path": target.model_name,
        "critic.ppo_mini_batch_size": actor[f"{own}ppo_mini_batch_size"],
        "critic.use_dynamic_bsz": True,
        "critic.ppo_max_token_len_per_gpu": actor[f"{own}ppo_max_token_len_per_gpu"],
        **back_end,
        **(
            {}
            if target.asked.trainer == "megatron"
            else {
                "critic.model.enable_gradient_checkpointing": target.config.recompute_granularity == "full",
                "critic.model.use_remove_padding": True,
            }
        ),
    }


def _reward(target: RoleTarget, model: ModelSpec) -> Values:
    """Return the reward model: on a pool of its own, else in turn on the global one.

    Names: trainer/config/reward_model/dp_reward_loop.yaml.
    """
    asked, role, prompt = target.asked, target.plan.reward, prompt_tokens(target)
    own = target.reward is not None
    nodes, each = target.reward_nodes
    return {
        "reward_model.enable": True,
        "reward_model.model.path": hub_id(model),
        "reward_model.rollout.name": asked.engine,
        "reward_model.rollout.tensor_model_parallel_size": 1 if role is None else role.tensor_parallel_size,
        "reward_model.rollout.gpu_memory_utilization": max(MEMORY_SHARES) if own else COLOCATED_SHARE,
        "reward_model.rollout.prompt_length": prompt,
        "reward_model.rollout.response_length": asked.lengths.longest - prompt,
        "reward_model.rollout.max_model_len": asked.lengths.longest,
        "reward_model.enable_resource_pool": own,
        **({"reward_model.nnodes": nodes, "reward_model.n_gpus_per_node": each} if own else {}),
    }


def _megatron(target: RoleTarget) -> Values:
    config = target.config
    at = "actor_rollout_ref.actor.megatron"
    offloaded = _is_offloaded(target)
    found: Values = {
        f"{at}.tensor_model_parallel_size": config.tensor_parallel_size,
        f"{at}.sequence_parallel": config.sequence_parallel and config.tensor_parallel_size > 1,
        f"{at}.pipeline_model_parallel_size": config.pipeline_parallel_size,
        f"{at}.context_parallel_size": config.context_parallel_size,
        f"{at}.expert_model_parallel_size": config.expert_parallel_size,
        f"{at}.expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        f"{at}.param_offload": offloaded,
        f"{at}.grad_offload": offloaded,
        f"{at}.optimizer_offload": offloaded,
    }
    layers, stages = config.stage_layers, config.pipeline_parallel_size
    more = f"++{at}.override_transformer_config"
    if stages > 1 and set(layers) != {target.asked.model.num_layers // stages}:
        found[f"{more}.num_layers_in_first_pipeline_stage"] = layers[0]
        found[f"{more}.num_layers_in_last_pipeline_stage"] = layers[-1]
    if config.recompute_granularity != "none":
        found[f"{more}.recompute_granularity"] = config.recompute_granularity
    if config.recompute_granularity == "full":
        found |= {f"{more}.recompute_method": "uniform", f"{more}.recompute_num_layers": 1}
    return found


def _fsdp(target: RoleTarget) -> Values:
    config, offloaded = target.config, _is_offloaded(target)
    at = "actor_rollout_ref.actor.fsdp_config"
    return {
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": config.context_parallel_size,
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size": config.context_parallel_size,
        f"{at}.fsdp_size": -1,
        f"{at}.param_offload": offloaded,
        f"{at}.optimizer_offload": offloaded,
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.recompute_granularity == "full",
    }


def _together(target: RoleTarget) -> Values:
    nodes, each = target.training_nodes
    return {
        "data.train_batch_size": target.asked.prompts,
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": each,
    }


def _apart(target: RoleTarget) -> Values:
    """Return the roles on GPUs of their own; a staleness of 0 takes turns (docs/advance/fully_async.md)."""
    (nodes, each), (rollout_nodes, rollout_each) = target.training_nodes, target.rollout_nodes
    return {
        "actor_rollout_ref.hybrid_engine": False,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "data.train_batch_size": 0,
        "data.gen_batch_size": 1,
        "data.return_raw_chat": True,
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": each,
        "rollout.nnodes": rollout_nodes,
        "rollout.n_gpus_per_node": rollout_each,
        "rollout.n": target.asked.responses,
        "async_training.staleness_threshold": target.plan.steps_off,
        "async_training.trigger_parameter_sync_step": target.asked.updates,
        "async_training.require_batches": 1,
        "async_training.partial_rollout": target.plan.steps_off > 0,
    }


def _shown(value: object) -> str:
    return str(value)
