"""Constants and call arguments of a Python module, read from its syntax tree; it is never run."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from meshwright.launchers.reading.base import Source, refused
from meshwright.launchers.reading.documents import MAX_BRACKETS, LocatedValue, is_deep
from meshwright.profiles.documents import shown

MAX_MODULE = 200_000  # characters
_MAX_VALUES = 20_000


def tree_of(name: str, text: str) -> ast.Module:
    """Return the syntax tree of a module.

    Raises:
        InvalidProblemError: the module is too long, too deep, or not Python, with the line.
    """
    called = shown(name)
    if len(text) > MAX_MODULE:
        raise refused(f"{called}: the file is too big", allowed=f"{MAX_MODULE} characters")
    if is_deep(text):
        raise refused(f"{called}: more than {MAX_BRACKETS} brackets are open at a time")
    if not text.strip():
        raise refused(f"{called}: the file is empty")
    try:
        return ast.parse(text)
    except SyntaxError as fault:
        raise refused(f"{called}: not Python: {shown(fault.msg)} (line {fault.lineno})") from None
    except (ValueError, RecursionError, MemoryError):
        raise refused(f"{called}: not Python that can be read") from None


def constants_of(name: str, text: str) -> dict[str, object]:
    """Return the module-level ``NAME = literal`` assignments of a module.

    Raises:
        InvalidProblemError: the module cannot be read.
    """
    return {key: found.value for key, found in constants(tree_of(name, text)).items()}


def constants(tree: ast.Module) -> dict[str, LocatedValue]:
    """Return the constants of a tree with their lines, without values that are not literals."""
    found: dict[str, LocatedValue] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            value = literal(node.value, found)
            if isinstance(target, ast.Name) and value is not NOTHING:
                found[target.id] = LocatedValue(value, node.lineno)
    return found


class _Nothing:
    """The absence of a literal."""

    def __str__(self) -> str:
        return "an expression, which is not run,"


NOTHING = _Nothing()


def literal(node: ast.expr, names: Mapping[str, LocatedValue]) -> object:
    """Return the value of a literal, a constant's name, a list or a dictionary; else ``NOTHING``."""
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id].value
    try:
        return _literal(node)
    except ValueError:
        return NOTHING


def _literal(node: ast.expr) -> object:
    """Evaluate like ``ast.literal_eval``, without complex numbers, sets and bytes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _literal(node.left), _literal(node.right)
        if isinstance(left, int) and isinstance(right, int):
            return left * right
    if isinstance(node, ast.List | ast.Tuple) and len(node.elts) <= _MAX_VALUES:
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict) and len(node.keys) <= _MAX_VALUES:
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_literal(key)): _literal(value) for key, value in pairs if key is not None}
    raise ValueError


def arguments_of(tree: ast.AST, callee: str, names: Mapping[str, LocatedValue]) -> dict[str, LocatedValue]:
    """Return keyword arguments of the first call of ``callee`` (its last name), or ``NOTHING``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) == callee:
            return {
                one.arg: LocatedValue(literal(one.value, names), one.value.lineno)
                for one in node.keywords
                if one.arg is not None
            }
    return {}


def calls(tree: ast.AST, callee: str) -> bool:
    """Return whether a call uses that last name."""
    return any(isinstance(node, ast.Call) and called_name(node) == callee for node in ast.walk(tree))


def called_name(call: ast.Call) -> str:
    """Return ``c`` of ``a.b.c(…)``, and ``B.Config`` of ``B.Config(…)``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        before = function.value
        if function.attr == "Config" and isinstance(before, ast.Name):
            return f"{before.id}.Config"
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


# --------------------------------------------------------------------------------------------------
# The values of torchtitan 0.3's Python configuration, under their names in 0.2's TOML.


FLOAT8 = "quantize.linear.float8"  # its name in 0.2
_SECTIONS = {
    "TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile",
    "Float8LinearConverter.Config": FLOAT8,
}  # fmt: skip
_MODEL_ARGUMENTS = "TransformerModelArgs"  # of 0.2's flavors
RECOMPUTE = {"FullAC.Config": "full", "SelectiveAC.Config": "selective"}
# Names of the model's shape in this package's own modules.
_SHAPE = {
    "NUM_LAYERS": "n_layers", "HIDDEN_SIZE": "dim", "FFN_HIDDEN_SIZE": "ffn_hidden_size",
    "NUM_HEADS": "n_heads", "NUM_KV_HEADS": "n_kv_heads", "VOCAB_SIZE": "vocab_size",
    "HEAD_DIM": "head_dim",
    "MAX_SEQ_LEN": "max_seq_len", "ROTARY_BASE": "rope_theta", "NORM_EPSILON": "norm_eps",
    "ROTARY_SCALING_FACTOR": "scaling_factor", "ROTARY_SCALING": "scaling",
    "ROTARY_ORIGINAL_LENGTH": "original_seq_len", "SOFTMAX_MSCALE": "mscale",
    "NUM_MTP_LAYERS": "num_mtp_layers",
    **{
        name: name.lower()
        for name in (
            "NUM_EXPERTS", "TOP_K", "EXPERT_HIDDEN_SIZE", "SHARED_HIDDEN_SIZE", "DENSE_LAYERS",
            "ROUTER_SCORE", "ROUTER_NORMALIZED", "ROUTER_GROUPS", "ROUTER_TOP_GROUPS",
            "ROUTER_SCALING", "ROUTER_BIAS", "Q_LORA_RANK", "KV_LORA_RANK",
            "QK_NOPE_HEAD_DIM", "QK_ROPE_HEAD_DIM", "V_HEAD_DIM",
        )
    },
}  # fmt: skip
_REGISTERED = {"MODEL_FAMILY": "model.name", "MODEL_FLAVOR": "model.flavor"}  # of torchtitan's own models
_SWITCHES = ("qk_norm", "enable_weight_tying")  # arguments that are given only if they are on
_USUAL_FACTOR = 8.0  # of 0.2, models/llama3/model/args.py RoPEScalingArgs: the default scaling
SHAPE = "shape."


def looks_like_module(source: Source) -> bool:
    """Return whether a Python file configures torchtitan."""
    return source.suffix == ".py" and "ParallelismConfig" in source.text and "torchtitan" in source.text


def module_values(source: Source, config: str = "") -> dict[str, LocatedValue]:
    """Return the arguments of the configuration's parts, by ``section.name``.

    ``config``: the function that makes it, if a module has several (``--config llama3_8b``).

    Raises:
        InvalidProblemError: the module is not Python, or has no configuration or several.
    """
    tree = tree_of(source.name, source.text)
    makers = makers_of(tree)
    names = constants(tree)
    if config not in makers and (config or len(makers) > 1):
        said = f'"{shown(config)}" is none of them' if config else "none is named"
        listed = [name for name in sorted(makers) if not name.startswith("_")][:_LISTED]
        raise refused(
            f"{shown(source.name)}: {len(makers)} configurations are in it, {said}",
            allowed=f"a script next to it with --config of {', '.join(listed)}",
        )
    several = len(makers) > 1
    found = _made(makers, config, names, 0) if several else _values(tree, names)
    if not several and not any(name.startswith("parallelism.") for name in found):
        raise refused(f"{source.name[:64]}: no ParallelismConfig(…) with values is in it")
    found |= {SHAPE + name: names[key] for key, name in _SHAPE.items() if key in names}
    found |= {name: names[key] for key, name in _REGISTERED.items() if key in names}
    given = {one.arg: one for one in ast.walk(tree) if isinstance(one, ast.keyword)}
    return found | {
        SHAPE + name: LocatedValue(True, given[name].value.lineno) for name in _SWITCHES if name in given
    }


_LISTED = 12
_DEEPEST = 6  # of configurations based on others


def makers_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return a registry's functions that make a configuration: ``def llama3_8b() -> Trainer.Config``."""
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.returns is not None
    ]
    return {
        node.name: node
        for node in functions
        if ast.unparse(node.returns or node).endswith("Trainer.Config")
    }


def _made(
    makers: Mapping[str, ast.FunctionDef], config: str, names: Mapping[str, LocatedValue], depth: int
) -> dict[str, LocatedValue]:
    """Return the values that a registry's function makes: its base, its calls, its later assignments."""
    node = makers[config]
    found: dict[str, LocatedValue] = {}
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and called_name(call) in makers and depth < _DEEPEST:
            found |= _made(makers, called_name(call), names, depth + 1)
    found |= _values(node, names)
    for one in ast.walk(node):
        if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Attribute):
            continue
        place = ast.unparse(one.targets[0]).partition(".")[2]  # config.training.seq_len
        if place == "activation_checkpoint":
            found["activation_checkpoint.mode"] = mode_of(one.value)
        elif "." in place and place.partition(".")[0] in _SECTIONS.values():
            found[place] = LocatedValue(literal(one.value, names), one.lineno)
    return found


def _values(tree: ast.AST, names: Mapping[str, LocatedValue]) -> dict[str, LocatedValue]:
    found: dict[str, LocatedValue] = {}
    for callee, section in _SECTIONS.items():
        arguments = arguments_of(tree, callee, names)
        if section == FLOAT8 and calls(tree, callee):
            found["model.converters"] = LocatedValue([FLOAT8], 0)
            arguments.setdefault("recipe_name", LocatedValue("rowwise", 0))  # 0.3's default
        found |= {f"{section}.{name}": value for name, value in arguments.items()}
    others: list[str] = []
    for call in ast.walk(tree):
        name = called_name(call) if isinstance(call, ast.Call) else ""
        if name.endswith("Converter.Config") and name not in _SECTIONS:
            others.append(name.removesuffix(".Config"))
    if others:
        before = found.get("model.converters")
        found["model.converters"] = LocatedValue([*([FLOAT8] if before else []), *others], 0)
    flavor = arguments_of(tree, "model_registry", names) or {}
    flavor = flavor if "flavor" in flavor else _registered_flavor(tree)
    if "flavor" in flavor and flavor["flavor"].value is not NOTHING:
        found["model.flavor"] = flavor["flavor"]
    recompute = _recompute(tree)
    return found | ({"activation_checkpoint.mode": recompute} if recompute else {})


def flavor_values(name: str, text: str) -> dict[str, LocatedValue]:
    """Return the shape in a module of 0.2's flavors.

    Raises:
        InvalidProblemError: the module is not Python.
    """
    tree = tree_of(name, text)
    names = constants(tree)
    found = arguments_of(tree, _MODEL_ARGUMENTS, names)
    scaling = arguments_of(tree, "RoPEScalingArgs", names).get(
        "scaling_factor", LocatedValue(_USUAL_FACTOR, 0)
    )
    return {SHAPE + key: one for key, one in (found | {"scaling_factor": scaling}).items()}


def _registered_flavor(tree: ast.AST) -> dict[str, LocatedValue]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) == "model_registry" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return {"flavor": LocatedValue(first.value, first.lineno)}
    return {}


def _recompute(tree: ast.AST) -> LocatedValue | None:
    """Return the value of ``activation_checkpoint=``: a class, None, or ``RECOMPUTATION["full"]()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            return mode_of(node.value)
    return None


def mode_of(value: ast.expr) -> LocatedValue:
    """Return what is recomputed; ``NOTHING`` for an expression that is not read."""
    mode: object = NOTHING
    if isinstance(value, ast.Constant) and value.value is None:
        mode = "none"
    elif isinstance(value, ast.Call):
        chosen = value.func.slice if isinstance(value.func, ast.Subscript) else None
        stated = next((one.value for one in value.keywords if one.arg == "mode"), None)  # before 0.3
        named = chosen or stated
        if isinstance(named, ast.Constant):
            mode = str(named.value)[:64]
        elif named is None:
            mode = RECOMPUTE.get(called_name(value), NOTHING)
    return LocatedValue(mode, value.lineno)
