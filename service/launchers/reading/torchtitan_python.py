"""The values of torchtitan 0.3's Python configuration, under the names that 0.2's TOML has for them."""

from __future__ import annotations

import ast

from service.launchers.reading.base import Source, refused
from service.launchers.reading.documents import Found
from service.launchers.reading.python_values import (
    NOTHING,
    arguments_of,
    called_name,
    constants,
    tree_of,
)

_SECTIONS = {"TrainingConfig": "training", "ParallelismConfig": "parallelism"}
_MODEL_ARGUMENTS = "TransformerModelArgs"  # of 0.2's flavors
_RECOMPUTE = {"FullAC.Config": "full", "SelectiveAC.Config": "selective"}
# Names that this package's own modules give the model's shape.
_SHAPE = {
    "NUM_LAYERS": "n_layers", "HIDDEN_SIZE": "dim", "FFN_HIDDEN_SIZE": "ffn_hidden_size",
    "NUM_HEADS": "n_heads", "NUM_KV_HEADS": "n_kv_heads", "VOCAB_SIZE": "vocab_size",
    "MAX_SEQ_LEN": "max_seq_len", "ROTARY_BASE": "rope_theta", "NORM_EPSILON": "norm_eps",
    "ROTARY_SCALING_FACTOR": "scaling_factor",
}  # fmt: skip
_USUAL_FACTOR = 8.0  # of 0.2, models/llama3/model/args.py RoPEScalingArgs: it scales where nothing is said
SHAPE = "shape."


def looks_like_module(source: Source) -> bool:
    """Whether a Python file configures torchtitan."""
    return source.suffix == ".py" and "ParallelismConfig" in source.text and "torchtitan" in source.text


def module_values(source: Source) -> dict[str, Found]:
    """Arguments of the configuration's parts, by ``section.name``.

    Raises:
        InvalidProblemError: the module is no Python, or has no configuration in it.
    """
    tree = tree_of(source.name, source.text)
    names = constants(tree)
    found: dict[str, Found] = {}
    for callee, section in _SECTIONS.items():
        arguments = arguments_of(tree, callee, names)
        found |= {f"{section}.{name}": value for name, value in arguments.items()}
    if not any(name.startswith("parallelism.") for name in found):
        raise refused(f"{source.name[:64]}: no ParallelismConfig(…) with values is in it")
    found |= {SHAPE + name: names[key] for key, name in _SHAPE.items() if key in names}
    flavor = arguments_of(tree, "model_registry", names) or _first_argument(tree, "model_registry")
    if "flavor" in flavor and flavor["flavor"].value is not NOTHING:
        found["model.flavor"] = flavor["flavor"]
    recompute = _recompute(tree)
    return found | ({"activation_checkpoint.mode": recompute} if recompute else {})


def flavor_values(name: str, text: str) -> dict[str, Found]:
    """The shape in a module of 0.2's flavors.

    Raises:
        InvalidProblemError: the module is no Python.
    """
    tree = tree_of(name, text)
    names = constants(tree)
    found = arguments_of(tree, _MODEL_ARGUMENTS, names)
    scaling = arguments_of(tree, "RoPEScalingArgs", names).get("scaling_factor", Found(_USUAL_FACTOR, 0))
    return {SHAPE + key: one for key, one in (found | {"scaling_factor": scaling}).items()}


def _first_argument(tree: ast.Module, callee: str) -> dict[str, Found]:
    """``model_registry("8B")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) == callee and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return {"flavor": Found(first.value, first.lineno)}
    return {}


def _recompute(tree: ast.Module) -> Found | None:
    """The value of ``activation_checkpoint=``: a class of it, None, or ``RECOMPUTATION["full"]()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            return _mode(node.value)
    return None


def _mode(value: ast.expr) -> Found | None:
    """One value of it."""
    if isinstance(value, ast.Constant) and value.value is None:
        return Found("none", value.lineno)
    if not isinstance(value, ast.Call):
        return None
    if isinstance(value.func, ast.Subscript) and isinstance(value.func.slice, ast.Constant):
        return Found(str(value.func.slice.value)[:64], value.lineno)
    mode = _RECOMPUTE.get(called_name(value))
    return Found(mode, value.lineno) if mode else None
