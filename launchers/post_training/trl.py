"""Exporter of TRL: accelerate's file, a YAML of GRPOConfig's and ModelConfig's fields, and vLLM's server.

Names: TRL 1.16.0, trainer/grpo_config.py, trainer/model_config.py, scripts/grpo.py and
scripts/vllm_serve.py, whose command for ``vllm serve`` the server's script states.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from meshwright.launchers.accelerate.export import (
    CONFIG_FILE,
    accelerate_file,
    attention,
    optimizer,
    recomputes_in_script,
)
from meshwright.launchers.post_training.target import RoleTarget, Values, head_of, role_target, warnings_of
from meshwright.launchers.post_training.verl import prompt_tokens
from meshwright.launchers.target import ExportBundle, Target
from meshwright.launchers.trl.export import TrlFiles
from meshwright.solver.post_training.problem import PostTraining, RolePlan
from meshwright.solver.post_training.training import training_problem

TRAINER_FILE, START_FILE, SERVER_FILE = "trl_grpo.yaml", "run.sh", "serve.sh"
PRODUCT = "TRL 1.16.0"
_LOADS_S = 1800.0  # that training waits for a server which loads weights; TRL's default is 240
_KL = 0.001  # of the reference model: DeepSeek-R1's, which GRPOConfig's help names
_START = """\
#!/usr/bin/env bash
@HEAD@# Run it on @NODES@@BEFORE@.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${MODEL:?the model: a folder or a name of the hub}" "${DATASET:?the data set, with a column prompt}"
: "${REWARD_FUNCS:?reward functions: accuracy_reward, or module.function of yours}"
: "${OUTPUT_DIR:?where checkpoints go}" "${LR:?the learning rate}"@SERVER@
export NODE_RANK="${NODE_RANK:-0}"
export MASTER_ADDR="${MASTER_ADDR:-localhost}" MASTER_PORT="${MASTER_PORT:-29500}"
@GPUS@# shellcheck disable=SC2086 # several reward functions
exec accelerate launch --config_file "${here}/@CONFIG@" \\
    --machine_rank "${NODE_RANK}" --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" \\
    -m trl.scripts.grpo --config "${here}/@TRAINER@" \\
    --model_name_or_path "${MODEL}" --dataset_name "${DATASET}" --reward_funcs ${REWARD_FUNCS} \\
    --output_dir "${OUTPUT_DIR}" --learning_rate "${LR}"@URL@ "$@"
"""
_SERVE = """\
#!/usr/bin/env bash
@HEAD@# Run it on the node that generates, before training.
set -euo pipefail
: "${MODEL:?the model: a folder or a name of the hub}"
@GPUS@export VLLM_SERVER_DEV_MODE=1 # for new weights
exec vllm serve "${MODEL}" \\
    --host 0.0.0.0 --port "${PORT:-8000}" \\
@ARGUMENTS@
    --weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1 "$@"
"""
_ADDRESS = """
: "${VLLM_URL:?the server that serve.sh starts, for example http://NODE:8000}\""""


def export(asked: PostTraining, plan: RolePlan) -> ExportBundle:
    """Return TRL's and accelerate's files, and the scripts that start training and the engines.

    Raises:
        RefusedExportError: it cannot express the plan.
    """
    target = role_target(asked, plan)
    head, (nodes, each) = head_of(target, PRODUCT), target.training_nodes
    where = "the node of training" if nodes == 1 else f"each of the {nodes} nodes of training"
    before, server, url = "", "", ""
    if not target.is_colocated:
        before, server = f", once {SERVER_FILE} serves", _ADDRESS
        url = ' \\\n    --vllm_server_base_url "${VLLM_URL}"'
    text = _START.replace("@HEAD@", head).replace("@NODES@", where).replace("@BEFORE@", before)
    text = text.replace("@SERVER@", server).replace("@URL@", url).replace("@GPUS@", _gpus(target, 0, each))
    text = text.replace("@CONFIG@", CONFIG_FILE).replace("@TRAINER@", TRAINER_FILE)
    training = _of_training(target)
    files = {
        CONFIG_FILE: accelerate_file(head, training, compiles=training.facts.elementwise_fused),
        TRAINER_FILE: head + yaml.safe_dump(values_of(target, training), sort_keys=True),
        START_FILE: text,
        **({} if target.is_colocated else {SERVER_FILE: _served(target, head)}),
    }
    room = prompt_tokens(target)
    prompts = f"TRL has no limit on prompts: leave out those above {room} tokens. Answers get the rest"
    return ExportBundle(files=files, warnings=[prompts, *_merging(target), *warnings_of(target)])


def _merging(target: RoleTarget) -> Iterator[str]:
    """Yield what TRL leaves open of adapters on shards (generation/vllm_generation.py:446)."""
    if target.asked.adapts and target.config.zero_stage:
        yield (
            "TRL's source asks whether adapters of shards merge for the engine: try one step, "
            "or keep the policy whole with training: {pin: {zero_stage: 0}}"
        )


def _of_training(target: RoleTarget) -> Target:
    """Return the layout of training on its nodes as an exporter of accelerate's file reads it."""
    role, (nodes, each) = target.plan.training, target.training_nodes
    return Target(plan=role.plan, problem=training_problem(target.asked, role.group, nodes, each))


def _gpus(target: RoleTarget, first: int, number: int) -> str:
    """Return a line that names a role's GPUs, where both roles share a node."""
    if not target.shares_a_node:
        return ""
    return f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(first, first + number)))}\n"


def _loads_wide(target: RoleTarget) -> bool:
    """Return whether policy and reference are loaded in fp32; FSDP2 casts the shards of a policy up."""
    asked = target.asked
    return asked.adapts or asked.reference_precision == "fp32" or target.config.data_parallel_size == 1


def values_of(target: RoleTarget, training: Target) -> Values:
    """Return the fields of GRPOConfig and ModelConfig that the plan sets."""
    asked, config, engine = target.asked, target.config, target.engine
    accumulated = target.update_answers // (config.micro_batch_size * config.data_parallel_size)
    found: Values = {
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * asked.updates,
        "num_generations": asked.responses,
        "num_iterations": 1,
        "max_completion_length": asked.lengths.longest - prompt_tokens(target),
        "beta": _KL if asked.reference else 0.0,
        "bf16": True,
        "dtype": "float32" if _loads_wide(target) else "bfloat16",
        "gradient_checkpointing": recomputes_in_script(training),
        "attn_implementation": attention(training),
        "optim": optimizer(training),
        "logging_steps": 1,
        "use_vllm": True,
        "vllm_mode": "colocate" if target.is_colocated else "server",
    }
    if asked.adapts:
        found |= TrlFiles().adapters(training)
    if target.is_colocated:
        found |= {
            "vllm_enable_sleep_mode": asked.sleeps,
            "vllm_gpu_memory_utilization": engine.memory_share,
            "vllm_max_model_length": asked.lengths.longest,
            "vllm_tensor_parallel_size": engine.tensor_parallel_size,
        }
    else:
        found["vllm_server_timeout"] = _LOADS_S
    return found


def _served(target: RoleTarget, head: str) -> str:
    engine, (_, each) = target.engine, target.training_nodes
    arguments = {
        "tensor-parallel-size": engine.tensor_parallel_size,
        "data-parallel-size": engine.engines,
        "gpu-memory-utilization": engine.memory_share,
        "max-model-len": target.asked.lengths.longest,
        "max-num-seqs": target.most_running,
        "dtype": "bfloat16",
    }
    lines = "\n".join(f"    --{name} {value} \\" for name, value in arguments.items())
    text = _SERVE.replace("@HEAD@", head).replace("@ARGUMENTS@", lines)
    return text.replace("@GPUS@", _gpus(target, each, engine.gpus))
