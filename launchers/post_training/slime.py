"""Exporter of slime: a script with its arguments, Megatron's among them.

Names: slime 0.3.1 (a6272da), slime/utils/arguments.py and scripts/run-qwen3-30B-A3B.sh. A critic has GPUs
of its own up to slime 0.2.4 (bd217a6, slime/ray/placement_group.py:101), with the policy's layout; later it
shares the policy's. Model and layout are Megatron-LM's arguments, by its own table.
"""

from __future__ import annotations

from math import ceil
from shlex import quote

from meshwright.launchers.megatron_lm.flags import sections
from meshwright.launchers.post_training.target import RoleTarget, Values, head_of, role_target, warnings_of
from meshwright.launchers.post_training.verl import prompt_tokens
from meshwright.launchers.target import ExportBundle, Target
from meshwright.solver.post_training.problem import PostTraining, RolePlan, SideRole

START_FILE = "run.sh"
PRODUCT, WITH_CRITIC = "slime 0.3.1", "slime 0.2.4"
# slime sets the rest: batches, the distributed optimizer, precision
_SECTIONS = ("Parallel", "Pipeline", "Experts", "Activation", "Model", "Mixture", "Multi-head")
_LEFT_OUT = ("--mtp-num-layers", "--max-position-embeddings")
_START = """\
#!/usr/bin/env bash
@HEAD@# Run it in slime's checkout, on the head node of a Ray cluster of @NODES@ nodes.
set -euo pipefail
: "${HF_CHECKPOINT:?the model's folder}" "${REF_LOAD:?the same, by tools/convert_hf_to_torch_dist.py}"
: "${PROMPT_DATA:?the training data}" "${NUM_ROLLOUT:?the number of steps}"
exec python3 @PROGRAM@ \\
@ARGUMENTS@
    --hf-checkpoint "${HF_CHECKPOINT}" --ref-load "${REF_LOAD}" \\
    --prompt-data "${PROMPT_DATA}" --num-rollout "${NUM_ROLLOUT}" "$@"
"""


def export(asked: PostTraining, plan: RolePlan) -> ExportBundle:
    """Return the script that starts slime.

    Raises:
        RefusedExportError: it cannot express the plan.
    """
    target = role_target(asked, plan)
    nodes = target.training_nodes[0] + (0 if target.is_colocated else target.rollout_nodes[0])
    nodes += 0 if plan.critic is None else plan.critic.nodes
    lines = "\n".join(f"    {line} \\" for line in _lines(target))
    text = _START.replace("@HEAD@", head_of(target, product_of(asked))).replace("@NODES@", str(nodes))
    text = text.replace("@PROGRAM@", "train_async.py" if plan.mode == "async" else "train.py")
    text = text.replace("@ARGUMENTS@", lines)
    return ExportBundle(files={START_FILE: text}, warnings=[*_warnings(target), *warnings_of(target)])


def product_of(asked: PostTraining) -> str:
    """Return the release that the files are for."""
    return WITH_CRITIC if asked.has_critic else PRODUCT


def _warnings(target: RoleTarget) -> list[str]:
    room = prompt_tokens(target)
    found = [f"--rollout-max-prompt-len is {room}: twice the mean that you stated. Answers get the rest"]
    if target.asked.has_critic:
        found.append(
            f"{PRODUCT} ignores --critic-num-nodes and shares the policy's GPUs: use {WITH_CRITIC}"
        )
    if target.asked.precision == "fp8":
        found.append("HF_CHECKPOINT must have fp8 weights: the engines load it as it is")
    return found


def _lines(target: RoleTarget) -> list[str]:
    own = [_line(name, value) for name, value in arguments_of(target).items() if value is not False]
    return own + [
        " ".join([flag.name, *map(quote, flag.values)])
        for section in sections(_megatron(target))
        if section.title.startswith(_SECTIONS)
        for flag in section.flags
        if flag.name not in _LEFT_OUT
    ]


def _line(name: str, value: object) -> str:
    return f"--{name}" if value is True else f"--{name} {value}"


def _megatron(target: RoleTarget) -> Target:
    """Return the layout of training as an exporter of Megatron-LM's arguments reads it."""
    return Target(plan=target.plan.training.plan, problem=target.asked.training)


def arguments_of(target: RoleTarget) -> Values:
    """Return slime's own arguments; False: left out."""
    asked, config, engine, plan = target.asked, target.config, target.engine, target.plan
    (nodes, each), prompt = target.training_nodes, prompt_tokens(target)
    return {
        "actor-num-nodes": nodes,
        "actor-num-gpus-per-node": each,
        "num-gpus-per-node": target.rollout_nodes[1],
        "colocate": target.is_colocated,
        "rollout-num-gpus": engine.gpus,
        "rollout-num-gpus-per-engine": engine.tensor_parallel_size,
        "sglang-mem-fraction-static": engine.memory_share,
        "sglang-max-running-requests": target.most_running,
        "rollout-batch-size": asked.prompts,
        "n-samples-per-prompt": asked.responses,
        "num-steps-per-rollout": asked.updates,
        "rollout-max-prompt-len": prompt,
        "rollout-max-response-len": asked.lengths.longest - prompt,
        "rollout-max-context-len": asked.lengths.longest,
        "use-dynamic-batch-size": True,
        "max-tokens-per-gpu": ceil(target.pass_tokens / config.context_parallel_size),
        "advantage-estimator": "ppo" if asked.has_critic else "grpo",
        "use-kl-loss": asked.reference,
        **({} if plan.critic is None else _critic(plan.critic)),
    }


def _critic(role: SideRole) -> Values:
    return {"critic-num-nodes": role.nodes, "critic-num-gpus-per-node": role.gpus // role.nodes}
