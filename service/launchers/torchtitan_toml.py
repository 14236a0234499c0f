"""torchtitan 0.2: its TOML, and the module that registers the model's shape as a flavor of llama3.

Keys: torchtitan 0.2.2, config/job_config.py; shape: models/llama3/model/args.py. Its MLP width is
``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)`` (model/model.py FeedForward): with
``multiple_of`` the wanted width and a multiplier that stays below it, exactly the wanted width.
"""

from __future__ import annotations

import json

from service.launchers.target import Target
from service.launchers.torchtitan_values import (
    Values,
    compiled_parts,
    flavor,
    norm_epsilon,
    parallelism_values,
    rotary_factor,
    training_values,
)

TOML_FILE = "torchtitan_0_2.toml"
FLAVOR_MODULE = "torchtitan_0_2_model"
FLAVOR_FILE = f"{FLAVOR_MODULE}.py"

_FLAVOR = '''\
"""The model of the plan as a flavor of torchtitan 0.2's llama3 (experimental.custom_import)."""

from torchtitan.models.llama3 import TransformerModelArgs, llama3_args
from torchtitan.models.llama3.model.args import RoPEScalingArgs

llama3_args["@FLAVOR@"] = TransformerModelArgs(
@ARGUMENTS@
    rope_scaling_args=RoPEScalingArgs(scaling_factor=@FACTOR@),  # 1.0: no scaling
)
'''


def toml_file(head: str, target: Target) -> str:
    """The configuration; dataset, tokenizer and learning rate are a dry start's."""
    recompute = target.config.recompute_granularity
    sections: dict[str, Values] = {
        "job": {"description": f"Meshwright plan {target.plan.plan_id}"},
        "model": {"name": "llama3", "flavor": flavor(target)},
        "experimental": {"custom_import": FLAVOR_MODULE},
        "optimizer": {"name": "AdamW", "lr": 0.0003},
        "training": training_values(target) | {"dtype": "float32", "dataset": "c4_test"},
        "parallelism": parallelism_values(target, "output"),
        "activation_checkpoint": {"mode": recompute, "selective_ac_option": "op"},
        "compile": {"enable": True, "components": compiled_parts(target)},
    }
    lines = []
    for title, values in sections.items():
        lines.append(f"\n[{title}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return head + "\n".join(lines) + "\n"


def flavor_file(head: str, target: Target) -> str:
    """The module that makes the flavor known."""
    model = target.model
    plain = int(2 * 4 * model.hidden_size / 3)
    arguments = {
        "dim": model.hidden_size,
        "n_layers": model.num_layers,
        "n_heads": model.num_attention_heads,
        "n_kv_heads": model.num_kv_heads,
        "vocab_size": model.vocab_size,
        "multiple_of": model.ffn_hidden_size,
        "ffn_dim_multiplier": round(min(1.0, model.ffn_hidden_size / plain) * 0.999, 6),
        "norm_eps": norm_epsilon(target),
        "rope_theta": float(model.rotary_base or 10_000),
        "max_seq_len": max(target.workload.seq_length, model.max_position_embeddings or 0),
    }
    lines = "\n".join(f"    {name}={value!r}," for name, value in arguments.items())
    text = _FLAVOR.replace("@FLAVOR@", flavor(target)).replace("@ARGUMENTS@", lines)
    return head + text.replace("@FACTOR@", repr(rotary_factor(target)))
