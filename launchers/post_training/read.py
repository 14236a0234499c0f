"""Reads recipes of NeMo-RL, verl, slime and TRL: the roles that they fix, as a part of a question.

A NeMo-RL recipe is a YAML whose ``defaults`` names another; of one that is missing its base's own values
count (``BASE``, NeMo-RL 0.7.0 examples/configs/grpo_math_1B.yaml). A verl recipe is a script with Hydra
overrides over verl 0.7.0's trainer/config, one of slime a script with arguments (slime/utils/arguments.py).
TRL's are read by ``read_trl``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from itertools import pairwise
from typing import Any

from meshwright.launchers.post_training import read_trl as trl
from meshwright.launchers.post_training.recipe import (
    A_MODEL,
    Other,
    Recipe,
    Values,
    adapters_part,
    counted,
    finite,
    mapping_of,
    model_of,
    refused,
    script_in,
    ways_of,
)
from meshwright.launchers.reading.commands import commands_of
from meshwright.profiles.adapters import ALL_LINEAR
from meshwright.profiles.library import find_model
from meshwright.shell.values import UNKNOWN
from meshwright.solver.post_training.engines import ENGINES

BASE: Values = {
    "grpo": {
        "num_prompts_per_step": 32, "num_generations_per_prompt": 16, "async_grpo": {"enabled": False}
    },
    "loss_fn": {"reference_policy_kl_penalty": 0.01},
    "policy": {
        "train_global_batch_size": 512, "max_total_sequence_length": 512,
        "dtensor_cfg": {"enabled": True, "tensor_parallel_size": 1, "context_parallel_size": 1},
        "megatron_cfg": {"enabled": False},
        "generation": {
            "backend": "vllm", "colocated": {"enabled": True},
            "vllm_cfg": {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.6, "precision": "bfloat16"},
        },
    },
    "cluster": {"gpus_per_node": 1, "num_nodes": 1},
}  # fmt: skip
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MOST_BASES = 8
SGLANG_SHARE = 0.6  # NeMo-RL 0.7.0 examples/configs/grpo_math_1B_sglang.yaml mem_fraction_static
# Overrides that verl's configuration has where a script states none.
_VERL: Values = {
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "2",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "0.5",
    "actor_rollout_ref.rollout.n": "1",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "256",
    "actor_rollout_ref.actor.use_kl_loss": "False",
    "actor_rollout_ref.actor.strategy": "fsdp",
    "data.train_batch_size": "1024",
    "data.max_prompt_length": "512",
    "data.max_response_length": "512",
    "trainer.nnodes": "1",
    "trainer.n_gpus_per_node": "8",
    "async_training.staleness_threshold": "0.1",
    "async_training.trigger_parameter_sync_step": "4",
}
_ESTIMATOR = "algorithm.adv_estimator"
_PROGRAMS = ("main_ppo", "fully_async_main")


def read_recipe(
    name: str, text: str, other: Other = lambda _name: None, stated: Values | None = None
) -> Recipe:
    """Return what a recipe fixes, with values that are ``stated`` over its own by the recipe's names.

    Raises:
        InvalidProblemError: it is no GRPO recipe that is priced; the field, its value and the reason.
    """
    over = dict(stated or {})
    found = trl.read(name, text, other, over)
    if found is not None:
        return found
    if name.endswith((".yaml", ".yml")):
        return _nemo_rl(_merged(text, other, over))
    words = {key: str(value) for key, value in over.items()}
    slime = _slime_arguments(name, text)
    if slime is None:
        return _verl(_overrides(name, text) | words)
    return _slime(slime | {f"--{key}": value for key, value in words.items()})


def is_recipe(name: str, text: str) -> bool:
    """Return whether a file is a recipe of one of the launchers, whether it is priced or not."""
    if trl.is_recipe(name, text):
        return True
    if name.endswith((".yaml", ".yml")):
        values = mapping_of(text)
        return "grpo" in values or {"policy", "defaults"} <= {*values}
    if name.endswith(".py"):
        return False
    every = commands_of(script_in(name, text))
    words = [word.text for one in every for word in (*one.before, *one.words)]
    started = any(program in word for program in _PROGRAMS for word in words)
    return started or _slime_arguments(name, text) is not None


# --------------------------------------------------------------------------------------------------
# NeMo-RL.


def _merged(text: str, other: Other, over: Values) -> dict[str, Any]:
    """Return a recipe over the files that its ``defaults`` name, references resolved."""
    layers, folder = [dict(mapping_of(text))], ""
    while (base := layers[-1].pop("defaults", None)) is not None and len(layers) <= _MOST_BASES:
        listed = base if isinstance(base, list) else [base]
        if len(listed) != 1 or not isinstance(listed[0], str):
            raise refused("/defaults", "does not name one file: not read", "the name of a YAML")
        where = listed[0]
        path = where if where.startswith("/") else folder + where
        found = other(path)
        if found is None:
            break
        folder = path.rpartition("/")[0] + "/" if "/" in path else folder
        layers.append(dict(mapping_of(found)))
    whole: dict[str, Any] = _over(dict(BASE), {})
    for layer in reversed(layers):
        whole = _over(whole, layer)
    for path, value in over.items():
        *above, last = path.split(".")
        whole = _over(whole, reduce(lambda found, part: {part: found}, reversed(above), {last: value}))
    resolved: dict[str, Any] = _resolved(whole, whole)
    return resolved


def _over(base: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for name, value in values.items():
        earlier = found.get(name)
        replaces = isinstance(value, Mapping) and value.get("_override_")
        whole = isinstance(value, Mapping) and isinstance(earlier, Mapping) and not replaces
        found[name] = _over(dict(earlier or {}), value) if whole else value
    return found


def _resolved(value: Any, whole: Mapping[str, Any], depth: int = 0) -> Any:  # noqa: ANN401 - YAML
    if isinstance(value, Mapping):
        return {name: _resolved(one, whole, depth) for name, one in value.items()}
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None or depth > _MOST_BASES:
        return value
    return _resolved(_at(whole, match[1]), whole, depth + 1)


def _at(values: Any, path: str, default: Any = None) -> Any:  # noqa: ANN401 - YAML
    for name in path.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return default
        values = values[name]
    return default if values is None else values


def _number_at(values: Mapping[str, Any], path: str, default: float | None = None) -> float:
    return finite(_at(values, path, default), f"/{path.replace('.', '/')}", usual=_at(BASE, path, default))


def _whole_at(values: Mapping[str, Any], path: str, default: int | None = None, *, least: int = 1) -> int:
    usual = _at(BASE, path, default)
    return counted(_at(values, path, default), f"/{path.replace('.', '/')}", least, usual=usual)


def _nemo_rl(values: Mapping[str, Any]) -> Recipe:
    _require_grpo(values)
    policy, generation = values["policy"], values["policy"]["generation"]
    is_megatron = bool(_at(policy, "megatron_cfg.enabled"))
    nodes, each = _whole_at(values, "cluster.num_nodes"), _whole_at(values, "cluster.gpus_per_node")
    colocated = bool(_at(generation, "colocated.enabled", default=True))
    runs_ahead = bool(_at(values, "grpo.async_grpo.enabled"))
    rollout_nodes = _whole_at(values, "policy.generation.colocated.resources.num_nodes", 0, least=0)
    prompts, responses = (_whole_at(values, f"grpo.{name}") for name in _COUNTS)
    age = _whole_at(values, "grpo.async_grpo.max_trajectory_age_steps", 1)
    reward = _nemo_reward(values)
    model = model_of(str(policy.get("model_name")), "/policy/model_name")
    return Recipe(
        launcher="nemo-rl", model=model,
        nodes=nodes, gpus_per_node=each,
        longest_tokens=_whole_at(values, "policy.max_total_sequence_length"),
        parts={
            "algorithm": {
                "prompts": prompts, "responses": responses,
                "updates": max(
                    prompts * responses // _whole_at(values, "policy.train_global_batch_size"), 1
                ),
                "reference": bool(_at(values, "loss_fn.reference_policy_kl_penalty")),
            },
            "rollout": _nemo_engine(values, str(generation["backend"])),
            "training": {
                "trainer": "megatron" if is_megatron else "fsdp",
                "nodes": max(nodes - rollout_nodes * (not colocated) - reward.get("nodes", 0), 1),
                "pin": _nemo_sizes(values, is_megatron=is_megatron),
            },
            "asynchrony": ways_of(colocated=colocated, steps=age if runs_ahead else 0),
            **_nemo_adapters(values, model, is_megatron=is_megatron),
            **({"reward": reward} if reward else {}),
        },
        notes=(_DRAWN_AGAIN,) if _at(values, "grpo.use_dynamic_sampling") else (),
    )  # fmt: skip


_DRAWN_AGAIN = "the recipe draws prompts anew with answers all right or all wrong; here each counts once"


def _nemo_engine(values: Mapping[str, Any], backend: str) -> dict[str, Any]:
    if backend == "sglang":
        at = "policy.generation.sglang_cfg"
        for name in ("pp_size", "dp_size", "ep_size"):
            size = _whole_at(values, f"{at}.{name}", 1)
            if size != 1:
                where = f"/{at.replace('.', '/')}/{name}"
                raise refused(where, f"{size}: only tensor parallelism is priced in an engine", "1")
        share = _number_at(values, f"{at}.mem_fraction_static", SGLANG_SHARE)
        return {"engine": "sglang", "tp": _whole_at(values, f"{at}.tp_size", 1), "memory_share": share}
    at = "policy.generation.vllm_cfg"
    return {
        "engine": "vllm",
        "tp": _whole_at(values, f"{at}.tensor_parallel_size"),
        "memory_share": _number_at(values, f"{at}.gpu_memory_utilization"),
        "precision": "fp8" if _at(values, f"{at}.precision") == "fp8" else "bf16",
    }


def _nemo_reward(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reward model with its nodes; empty: another environment scores the answers."""
    if _at(values, "data.default.env_name") != "reward_model":
        return {}
    at = "env.reward_model"
    return {
        "model": str(_at(values, f"{at}.model_name", "")),
        "nodes": _whole_at(values, f"{at}.resources.num_nodes", 1),
        "tp": _whole_at(values, f"{at}.dtensor_cfg.tensor_parallel_size", 1),
    }


def _nemo_adapters(values: Mapping[str, Any], model: str, *, is_megatron: bool) -> dict[str, Any]:
    """Return the part of adapters; empty: every weight is trained. FSDP holds all weights in fp32."""
    at = "policy.megatron_cfg.peft" if is_megatron else "policy.dtensor_cfg.lora_cfg"
    if not _at(values, f"{at}.enabled"):
        return {}
    every = not is_megatron and bool(_at(values, f"{at}.match_all_linear", default=True))
    given: Values = {
        "lora_r": _whole_at(values, f"{at}.dim", 8),
        "lora_target_modules": None if every else _at(values, f"{at}.target_modules"),
        "exclude_modules": _at(values, f"{at}.exclude_modules") or None,
    }
    base = "bf16" if is_megatron else "fp32"
    return {"adapters": adapters_part(given, model, base, ALL_LINEAR, fused=is_megatron)}


_COUNTS = ("num_prompts_per_step", "num_generations_per_prompt")


def _require_grpo(values: Mapping[str, Any]) -> None:
    """Refuse what is another algorithm, or not priced.

    Raises:
        InvalidProblemError: the field, its value and the reason.
    """
    for other in ("dpo", "sft", "rm", "ppo", "distillation", "off_policy_distillation"):
        if other in values:
            reason = "is another algorithm than GRPO, which alone is priced"
            raise refused(f"/{other}", reason, "a recipe of GRPO")
    policy = values["policy"]
    if _at(policy, "model_name") is None:
        reason = "is not stated: the file is no recipe of GRPO"
        raise refused("/policy/model_name", reason, usual=A_MODEL)
    backend = _at(policy, "generation.backend")
    if backend not in ENGINES:
        words = ", ".join(ENGINES)
        raise refused("/policy/generation/backend", f"{backend} is not priced yet", words)
    for path, reason in _NOT_PRICED.items():
        if _at(values, path):
            raise refused("/" + path.replace(".", "/"), reason, usual=False)
    for path in ("vllm_cfg.expert_parallel_size", "vllm_cfg.pipeline_parallel_size"):
        size = _at(policy, f"generation.{path}", 1)
        if size != 1:
            where = f"/policy/generation/{path.replace('.', '/')}"
            raise refused(where, f"{size}: only tensor parallelism is priced in an engine", "1")


_NOT_PRICED = {
    "policy.megatron_cfg.fp8_cfg.enabled": "an update in 8 bits is not priced yet",
    "policy.draft.enabled": "speculative decoding is not priced yet",
    "policy.generation.vllm_kwargs.speculative_config": "speculative decoding is not priced yet",
    "env.should_use_nemo_gym": "time of agents and tools is not priced: it is yours",
    "env.nemo_gym": "time of agents and tools is not priced: it is yours",
    "on_policy_distillation": "teacher models are not priced yet",
    "async_rl": "the single controller is not priced yet",
}


def _nemo_sizes(values: Mapping[str, Any], *, is_megatron: bool) -> dict[str, Any]:
    names = {"tp": "tensor", "cp": "context"}
    if is_megatron:
        names = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
    at = f"policy.{'megatron' if is_megatron else 'dtensor'}_cfg"
    return {short: _whole_at(values, f"{at}.{name}_parallel_size", 1) for short, name in names.items()}


# --------------------------------------------------------------------------------------------------
# verl.


def _verl(given: Values) -> Recipe:
    values = {**_VERL, **given}
    _require_priced(values)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    is_megatron = _text(values, f"{actor}.strategy") == "megatron" or any(
        one.startswith(f"{actor}.megatron.") for one in given
    )
    apart = "rollout.nnodes" in given or values["program"] == "fully_async_main"
    nodes, each = _whole(values, "trainer.nnodes"), _whole(values, "trainer.n_gpus_per_node")
    mini, updates = _whole(values, f"{actor}.ppo_mini_batch_size"), 1
    if apart:
        updates = _whole(values, "async_training.trigger_parameter_sync_step")
        prompts, steps = mini * updates, -(-_number(values, "async_training.staleness_threshold") // 1)
    else:
        prompts, steps = _whole(values, "data.train_batch_size"), 0
        updates = max(prompts // mini, 1)
    longest = _whole(values, "data.max_prompt_length") + _whole(values, "data.max_response_length")
    rollout_nodes = _whole({"rollout.nnodes": "1", **values}, "rollout.nnodes") if apart else 0
    reward = _verl_reward(values)
    model = model_of(_path(values, "actor_rollout_ref.model.path"), "/actor_rollout_ref.model.path")
    _require_critic_like(values, model)
    return Recipe(
        launcher="verl", nodes=nodes + rollout_nodes + reward.get("nodes", 0), gpus_per_node=each,
        longest_tokens=longest,
        model=model,
        parts={
            "algorithm": {
                **({"name": "ppo"} if "gae" in values.get(_ESTIMATOR, "gae") else {}),
                "prompts": prompts, "responses": _whole(values, f"{rollout}.n"), "updates": updates,
                "reference": _text(values, f"{actor}.use_kl_loss").lower() == "true",
            },
            "rollout": {
                "engine": _text(values, f"{rollout}.name"),
                "tp": _whole(values, f"{rollout}.tensor_model_parallel_size"),
                "memory_share": _number(values, f"{rollout}.gpu_memory_utilization"),
            },
            "training": {
                "trainer": "megatron" if is_megatron else "fsdp", "nodes": nodes,
                "pin": _verl_sizes(values, is_megatron=is_megatron),
            },
            "asynchrony": ways_of(colocated=not apart, steps=int(steps)),
            **_verl_adapters(values, model),
            **({"reward": reward} if reward else {}),
        },
    )  # fmt: skip


def _require_critic_like(values: Values, model: str) -> None:
    """Refuse a critic of another size than the policy.

    Raises:
        InvalidProblemError: with its path.
    """
    at = "critic.model.path"
    if "gae" not in values.get(_ESTIMATOR, "gae") or at not in values:
        return
    sizes = [find_model(one).num_parameters() for one in (model, model_of(_path(values, at), f"/{at}"))]
    if sizes[0] != sizes[1]:
        raise refused(f"/{at}", "a critic of another size than the policy is not priced yet", model)


def _verl_reward(values: Values) -> dict[str, Any]:
    """Return the reward model; with nodes, if it has a pool of its own."""
    if str(values.get("reward_model.enable", "")).lower() != "true":
        return {}
    at = "reward_model.rollout.tensor_model_parallel_size"
    found: dict[str, Any] = {"model": str(values.get("reward_model.model.path", ""))}
    found["tp"] = _whole({at: "2", **values}, at)
    if str(values.get("reward_model.enable_resource_pool", "")).lower() == "true":
        found["nodes"] = _whole(values, "reward_model.nnodes")
    return found


def _overrides(name: str, text: str) -> dict[str, str]:
    """Return the overrides of the command that starts verl, and ``program``.

    Raises:
        InvalidProblemError: no command of the script starts GRPO of verl.
    """
    script = script_in(name, text)
    for command in commands_of(script):
        words = [word.text for word in (*command.before, *command.words)]
        program = next(
            (one for one in _PROGRAMS for word in [*words, command.program] if one in word), None
        )
        if program is None:
            continue
        pairs = (word.lstrip("+~").partition("=") for word in words if "=" in word)
        return {"program": program, **{key.strip(): value for key, _, value in pairs}}
    raise refused(
        "", "no command starts verl.trainer.main_ppo, its fully_async_main, slime's train.py, or trl grpo"
    )


def _require_priced(values: Values) -> None:
    estimator = _text({_ESTIMATOR: "gae", **values}, _ESTIMATOR)
    if estimator not in ("grpo", "gae"):
        raise refused("/algorithm.adv_estimator", f"{estimator} is not priced yet", "grpo, gae")
    engine = _text(values, "actor_rollout_ref.rollout.name")
    if engine not in ENGINES:
        words = ", ".join(ENGINES)
        raise refused("/actor_rollout_ref.rollout.name", f"{engine} is not priced yet", words)
    if "npu" in str(values.get("trainer.device", "")):
        raise refused("/trainer.device", "npu: engines on NPUs are not priced", "cuda")
    for name in ("actor_rollout_ref.model.lora.rank", "critic.model.lora_rank", "critic.model.lora.rank"):
        rank = str(values.get(name, "0"))
        if rank not in {"0", ""}:
            words = "adapters of a critic" if name.startswith("critic") else "adapters under Megatron"
            raise refused(f"/{name}", f"{rank}: {words} are not priced yet", "0")


def _verl_adapters(values: Values, model: str) -> dict[str, Any]:
    """Return the part of adapters; empty: all weights are trained. They are fp32 by default."""
    at, actor = "actor_rollout_ref.model", "actor_rollout_ref.actor"
    rank = _whole({f"{at}.lora_rank": "0", **values}, f"{at}.lora_rank", least=0)
    if not rank:
        return {}
    layers = _text({f"{at}.target_modules": "all-linear", **values}, f"{at}.target_modules")
    dtype = f"{actor}.fsdp_config.model_dtype"
    base = "bf16" if _text({dtype: "fp32", **values}, dtype) in ("bf16", "bfloat16") else "fp32"
    excluded = str(values.get(f"{at}.exclude_modules", "null"))
    given: Values = {
        "lora_r": rank,
        "lora_target_modules": layers.strip("[]").replace("'", "").split(",") if "[" in layers else layers,
        "exclude_modules": None if excluded == "null" else excluded,
    }
    return {"adapters": adapters_part(given, model, base, ALL_LINEAR)}


def _verl_sizes(values: Values, *, is_megatron: bool) -> dict[str, Any]:
    actor = "actor_rollout_ref.actor"
    if not is_megatron:
        name = f"{actor}.ulysses_sequence_parallel_size"
        return {"cp": _whole({name: "1", **values}, name)}
    names = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
    found = {}
    for short, name in names.items():
        at = f"{actor}.megatron.{name}_parallel_size"
        found[short] = _whole({at: "1", **values}, at)
    return found


# --------------------------------------------------------------------------------------------------
# slime.

_SLIME = ("train.py", "train_async.py")
# Arguments that slime has where a script states none (0.3.1 utils/arguments.py; sglang's share is its own).
_OF_SLIME: Values = {
    "--actor-num-nodes": "1", "--actor-num-gpus-per-node": "8", "--rollout-num-gpus-per-engine": "1",
    "--n-samples-per-prompt": "1", "--advantage-estimator": "grpo", "--sglang-mem-fraction-static": "0.85",
    "--rollout-max-prompt-len": "1024", "--kl-coef": "0",
}  # fmt: skip


def _slime_arguments(name: str, text: str) -> dict[str, str] | None:
    """Return the arguments of the command that starts slime, and ``program``; None: there is none."""
    for command in commands_of(script_in(name, text)):
        words = [word.text for word in (*command.before, *command.words)]
        program = next((one for one in [command.program, *words] if one.endswith(_SLIME)), None)
        if program is None:
            continue
        found = {"program": program.rpartition("/")[2]}
        for word, following in pairwise([*words, "--"]):
            name, equals, value = word.partition("=")
            if name.startswith("--"):
                found[name] = value if equals else "true" if following.startswith("--") else following
        if "--rollout-batch-size" in found:
            return found
    return None


_SLIME_NOT_PRICED = {
    "--loss-type": "is another algorithm than GRPO and PPO, which are priced",
    "--debug-train-only": "nothing is generated",
    "--use-opd": "teacher models are not priced yet",
    "--fp8-format": "an update in 8 bits is not priced yet",
    "--custom-generate-function-path": "time of agents and tools is not priced: it is yours",
    "--sglang-speculative-algorithm": "speculative decoding is not priced yet",
    "--sglang-enable-dp-attention": "only tensor parallelism is priced in an engine",
    "--sglang-ep-size": "only tensor parallelism is priced in an engine",
}
_POLICY_LOSS = "policy_loss"  # of --loss-type


def _slime(given: Values) -> Recipe:
    values = {**_OF_SLIME, **given}
    for argument, reason in _SLIME_NOT_PRICED.items():
        if given.get(argument, _POLICY_LOSS) not in (_POLICY_LOSS, "1"):
            raise refused(f"/{argument}", f"{given[argument]}: {reason}", usual=1)
    estimator = _text(values, "--advantage-estimator")
    if estimator not in ("grpo", "ppo"):
        raise refused("/--advantage-estimator", f"{estimator} is not priced yet", "grpo, ppo")
    nodes, each = _whole(values, "--actor-num-nodes"), _whole(values, "--actor-num-gpus-per-node")
    prompts, responses = _whole(values, "--rollout-batch-size"), _whole(values, "--n-samples-per-prompt")
    answers, runs_ahead = prompts * responses, values["program"] == "train_async.py"
    updates = answers // _whole({"--global-batch-size": str(answers), **values}, "--global-batch-size")
    if "--num-steps-per-rollout" in given:
        updates = _whole(values, "--num-steps-per-rollout")
    colocated = "--colocate" in given
    own = 0 if colocated else -(-_whole(values, "--rollout-num-gpus") // each)
    critic = _whole(values, "--critic-num-nodes") if "--critic-num-nodes" in given else 0
    longest = (
        _whole(values, "--rollout-max-context-len")
        if "--rollout-max-context-len" in given
        else _whole(values, "--rollout-max-prompt-len") + _whole(values, "--rollout-max-response-len")
    )
    sizes = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context", "ep": "expert-model"}
    return Recipe(
        launcher="slime", nodes=nodes + own + critic, gpus_per_node=each,
        longest_tokens=longest,
        model=model_of(_path(values, "--hf-checkpoint"), "/--hf-checkpoint"),
        parts={
            "algorithm": {
                **({"name": "ppo"} if estimator == "ppo" else {}),
                "prompts": prompts, "responses": responses, "updates": max(updates, 1),
                # slime/ray/placement_group.py:178
                "reference": "--use-kl-loss" in given or _number(values, "--kl-coef") != 0.0,
            },
            "rollout": {
                "engine": "sglang", "tp": _whole(values, "--rollout-num-gpus-per-engine"),
                "memory_share": _number(values, "--sglang-mem-fraction-static"),
            },
            "training": {
                "trainer": "megatron", "nodes": nodes,
                "pin": {
                    short: _whole({name: "1", **values}, name)
                    for short, name in ((one, f"--{two}-parallel-size") for one, two in sizes.items())
                },
            },
            "asynchrony": ways_of(colocated=colocated, steps=int(runs_ahead)),
        },
    )  # fmt: skip


def _text(values: Values, name: str, usual: object = None) -> str:
    value = str(values.get(name, "")).strip("'\"")
    if not value or UNKNOWN in value:
        reason = "is not stated, or depends on the shell that runs the script"
        raise refused(f"/{name}", reason, usual=_VERL.get(name, _OF_SLIME.get(name, usual)))
    return value


def _path(values: Values, name: str) -> str:
    """Return a path; of one below a folder that only the shell knows, its last part."""
    tail = str(values.get(name, "")).strip("'\"").rstrip("/").rpartition("/")[2]
    return tail if tail and UNKNOWN not in tail and UNKNOWN in str(values[name]) else _text(values, name)


def _number(values: Values, name: str) -> float:
    return finite(_text(values, name), f"/{name}", usual=_VERL.get(name, _OF_SLIME.get(name)))


def _whole(values: Values, name: str, least: int = 1) -> int:
    usual = 1024 if "-len" in name else max(least, 1)  # an example of a length, for the tip
    return counted(_text(values, name, usual), f"/{name}", least, usual=usual)
