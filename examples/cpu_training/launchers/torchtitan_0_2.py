"""A plan's module for torchtitan 0.3, as the TOML and the flavor of llama3 that 0.2 reads.

0.3 trains on GPUs alone; 0.2 can be made to train on a CPU. The module is read, not run: it imports 0.3.
"""

from __future__ import annotations

import ast
import json
from itertools import takewhile
from typing import Any

TOML_FILE = "torchtitan_0_2.toml"
FLAVOR_MODULE = "torchtitan_0_2_model"
FLAVOR_FILE = f"{FLAVOR_MODULE}.py"
_FLAVOR = '''"""The model of the plan as a flavor of torchtitan 0.2 (experimental.custom_import)."""

from torchtitan.models.llama3 import TransformerModelArgs, llama3_args
from torchtitan.models.llama3.model.args import RoPEScalingArgs

llama3_args["{flavor}"] = TransformerModelArgs(
{arguments}
    rope_scaling_args=RoPEScalingArgs(scaling_factor={factor}),  # 1.0: no scaling
)
'''


def older_files(module: str) -> dict[str, str]:
    """Return 0.2's files by name.

    Raises:
        ValueError: 0.2's llama3 cannot be the model: it is of another family, its heads do not fill the
            hidden size, its output head is the embedding, or it multiplies in 8 bits.
    """
    tree = ast.parse(module)
    shape, flavor = _constants(tree), _arguments(tree, "ModelSpec")["flavor"]
    fills = shape.get("HEAD_DIM", 0) * shape["NUM_HEADS"] == shape["HIDDEN_SIZE"]
    is_llama = "Llama3Model.Config" in module and fills
    if not is_llama or "enable_weight_tying" in module or "converter.build()" in module:
        raise ValueError("torchtitan 0.2's llama3 cannot be this model")
    head = "".join(takewhile(lambda line: line.startswith("#"), module.splitlines(keepends=True)))
    return {
        TOML_FILE: head + _toml(_sections(tree, flavor)),
        FLAVOR_FILE: head + _flavor_text(shape, flavor),
    }


def _sections(tree: ast.Module, flavor: str) -> dict[str, dict[str, Any]]:
    """Return the TOML's sections: names are those of 0.3, but for the output head's."""
    training, parallelism = _arguments(tree, "TrainingConfig"), _arguments(tree, "ParallelismConfig")
    compiled, recompute = _arguments(tree, "CompileConfig"), _recompute(tree)
    del training["disable_cuda_graphs"], parallelism["enable_sequence_parallel"]  # 0.2 lacks them
    if stages := parallelism.get("module_fqns_per_model_part"):
        stages[-1] = [{"lm_head": "output"}.get(name, name) for name in stages[-1]]
    if "enable_async_tensor_parallel" in compiled:
        parallelism["enable_async_tensor_parallel"] = compiled.pop("enable_async_tensor_parallel")
    return {
        "job": {"description": f"Meshwright plan {flavor.removeprefix('meshwright-')}"},
        "model": {"name": "llama3", "flavor": flavor},
        "experimental": {"custom_import": FLAVOR_MODULE},
        "optimizer": {"name": "AdamW", "lr": 0.0003},
        "training": training | {"dtype": "float32"},
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": recompute, "selective_ac_option": "op"},
        "compile": compiled,
    }


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    lines = []
    for title, values in sections.items():
        lines.append(f"\n[{title}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _flavor_text(shape: dict[str, Any], flavor: str) -> str:
    """Return the module that registers the flavor.

    0.2's MLP is ``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)`` wide
    (models/llama3/model/model.py FeedForward): with ``multiple_of`` the wanted width and a multiplier that
    stays below it, exactly the wanted width.
    """
    plain = int(2 * 4 * shape["HIDDEN_SIZE"] / 3)
    arguments = {
        "dim": shape["HIDDEN_SIZE"],
        "n_layers": shape["NUM_LAYERS"],
        "n_heads": shape["NUM_HEADS"],
        "n_kv_heads": shape["NUM_KV_HEADS"],
        "vocab_size": shape["VOCAB_SIZE"],
        "multiple_of": shape["FFN_HIDDEN_SIZE"],
        "ffn_dim_multiplier": round(min(1.0, shape["FFN_HIDDEN_SIZE"] / plain) * 0.999, 6),
        "norm_eps": shape["NORM_EPSILON"],
        "rope_theta": shape["ROTARY_BASE"],
        "max_seq_len": shape["MAX_SEQ_LEN"],
    }
    lines = "\n".join(f"    {name}={value!r}," for name, value in arguments.items())
    return _FLAVOR.format(flavor=flavor, arguments=lines, factor=shape["ROTARY_SCALING_FACTOR"])


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return the module's numbers and words, by name."""
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def _arguments(tree: ast.Module, callee: str) -> dict[str, Any]:
    """Return the written-out arguments of the call of a name."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    call = next(call for call in calls if isinstance(call.func, ast.Name) and call.func.id == callee)
    return {
        str(argument.arg): ast.literal_eval(argument.value)
        for argument in call.keywords
        if isinstance(argument.value, ast.Constant | ast.List)
    }


def _recompute(tree: ast.Module) -> str:
    """Return the word of ``activation_checkpoint=RECOMPUTATION["full"]()``."""
    words = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    made = next(word.value for word in words if word.arg == "activation_checkpoint")
    return str(ast.literal_eval(made.func.slice))  # type: ignore[attr-defined]
