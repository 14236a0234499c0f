"""The JSON schema of a question on post-training: one table of its fields for the API and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.service.post_training.request import (
    BASES,
    DEFAULT_TIME_LIMIT_S,
    LAUNCHERS,
    MAX_CONSTRAINTS,
    MAX_MEASURED,
    MAX_PROMPTS,
    MAX_RANK,
    MAX_RESPONSES,
    MAX_STEPS_OFF,
    MAX_TIME_LIMIT_S,
    MAX_TOKENS,
    MAX_UPDATES,
    ROLE_PARTS,
    TRAINERS,
)
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.solver.post_training.engines import ENGINES
from meshwright.solver.post_training.problem import ALGORITHMS, MODES, PARTS

Schema = Mapping[str, Any]


def _object(properties: Schema, *required: str, text: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object", "additionalProperties": False, "properties": dict(properties)
    }  # fmt: skip
    return (
        found | ({"required": list(required)} if required else {}) | ({"description": text} if text else {})
    )


def _count(most: int, text: str, *, least: int = 1, default: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most, "description": text}
    return found | ({} if default is None else {"default": default})


def _number(most: float, text: str, *, least: float = 1.0) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most, "description": text}


def _words(words: tuple[str, ...], text: str, *, default: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"enum": list(words), "description": text}
    return found | ({"default": words[0]} if default else {})


_ALGORITHM = _object(
    {
        "name": _words(ALGORITHMS, "the algorithm; ppo trains a critic of the policy's size"),
        "prompts": _count(MAX_PROMPTS, "prompts of a step"),
        "responses": _count(MAX_RESPONSES, "answers to each prompt"),
        "updates": _count(MAX_UPDATES, "mini-batches that a step updates the policy in", default=1),
        "reference": {
            "type": "boolean", "default": True, "description": "whether a reference model scores them"
        },
        "reference_precision": _words(
            ("bf16", "fp32"), "of its weights where training's GPUs keep them; default bf16, trl: fp32",
            default=False,
        ),
    },
    "prompts", "responses",
)  # fmt: skip
_LENGTHS = _object(
    {
        "prompt": {**_number(MAX_TOKENS, "mean tokens of a prompt"), "default": 200},
        "mean": _number(MAX_TOKENS, "mean tokens of a prompt with its answer", least=2.0),
        "max": _count(MAX_TOKENS, "tokens of the longest prompt with its answer", least=3),
        "percentiles": {
            "type": "object",
            "patternProperties": {r"^p\d{1,3}(\.\d{1,6})?$": _number(MAX_TOKENS, "tokens")},
            "additionalProperties": False,
            "description": "tokens of a prompt with its answer, up to p100, instead of mean and max",
        },
    },
    text="lengths in tokens; a prompt and its answer together",
)  # fmt: skip
_ROLLOUT = _object(
    {
        "engine": _words(ENGINES, "the inference engine"),
        "precision": _words(("bf16", "fp8"), "of its weights"),
        "tp": _count(1024, "pins the GPUs of an engine"),
        "memory_share": _number(0.98, "pins the share of a GPU's memory that an engine takes", least=0.1),
        "nodes": _count(10**6, "pins the most nodes that engines are on"),
        "sleep": {
            "type": "boolean", "default": True,
            "description": "whether engines give their memory back while training runs on their GPUs",
        },
    }
)  # fmt: skip
_ADAPTERS = _object(
    {
        "rank": _count(MAX_RANK, "rank of LoRA adapters"),
        "targets": {
            "type": "array", "items": {"type": "string"},
            "description": "layers with adapters, as workload.lora_targets of a problem; default every "
            "linear layer, trl: q_proj and v_proj",
        },
        "base_precision": _words(BASES, "of the frozen weights"),
    },
    "rank",
    text="adapters of a frozen policy, whose reference is the policy without them; none: all weights train",
)  # fmt: skip
_TRAINING = _object(
    {
        "trainer": _words(TRAINERS, "back end of the policy; default megatron, trl: fsdp", default=False),
        "nodes": _count(10**6, "pins the nodes of training"),
        "group": {"type": "string", "description": "pins the node group of training, by its GPU's name"},
        "pin": {"type": "object", "description": "pins sizes of training, as search.pin of a problem"},
    }
)
_REWARD = _object(
    {
        "model": {"description": "scores the answers: a name, or a model as in a problem; none: code does"},
        "nodes": _count(10**6, "pins the nodes that the reward model has to itself"),
        "tp": _count(1024, "pins the GPUs of one copy of the reward model"),
        "seconds": {
            **_number(MAX_TIME_LIMIT_S * 24, "of a step, of rewards by code", least=0.0), "default": 0
        },
    }
)  # fmt: skip
_ASYNCHRONY = _object(
    {
        "max_steps_off": _count(MAX_STEPS_OFF, "steps that generation may run ahead", least=0, default=1),
        "mode": _words(MODES, "pins how roles share the GPUs", default=False),
        "steps_off": _count(MAX_STEPS_OFF, "pins the steps that generation runs ahead", least=0),
    }
)
_SEARCH = _object(
    {
        "top_k": _count(20, "placements that are ranked", default=3),
        "time_limit_s": {
            **_number(MAX_TIME_LIMIT_S, "of all searches together"), "default": DEFAULT_TIME_LIMIT_S
        },
        "constraints": {
            "type": "array", "maxItems": MAX_CONSTRAINTS, "items": {"type": "string"},
            "description": "on roles (rollout.num_nodes <= 2) or training's layout (training.tp <= 4), "
            "in the language of search.constraints of a problem",
        },
    }
)  # fmt: skip
_MEASURED = _object(
    {
        "parts": _object({name: _number(MAX_TIME_LIMIT_S * 24, "seconds", least=1e-3) for name in PARTS}),
        **{
            name: {"type": "object", "description": "of the measured step, where it was otherwise"}
            for name in ROLE_PARTS
        },
    },
    "parts",
    text="parts of a step as the trainer printed them; generate counts refit where that isn't stated",
)
POST_TRAINING_SCHEMA = _object(
    {
        "kind": {"const": POST_TRAINING},
        "name": {"type": "string", "maxLength": 200},
        "model": {"description": "a name, or a model as in a problem"},
        "cluster": {"description": "a name, or a cluster as in a problem; node groups may differ"},
        "algorithm": _ALGORITHM,
        "lengths": _LENGTHS,
        "rollout": _ROLLOUT,
        "training": _TRAINING,
        "adapters": _ADAPTERS,
        "reward": _REWARD,
        "asynchrony": _ASYNCHRONY,
        "launcher": _words(LAUNCHERS, "what the files are for"),
        "search": _SEARCH,
        "measured": {"type": "array", "maxItems": MAX_MEASURED, "items": _MEASURED},
    },
    "kind", "model", "cluster", "algorithm", "lengths",
    text="places the roles of a step of reinforcement learning (docs/howto/post-training.md)",
)  # fmt: skip
