"""Writes what Megatron-Bridge's recipes set, by name, as its sources say it; none of them is run.

    python -m benchmarks.catalog.bridge_recipes OLDER/recipes [NEWER/recipes …]

takes folders ``megatron/bridge/recipes`` of one or more versions; the first that has a recipe counts.
A recipe is a function that fills a ``ConfigContainer`` with plain assignments: those are followed through
the functions that it calls and the arguments that it gives them. ``?`` is what is computed otherwise.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.launchers.megatron_core.read import flag_of

CATALOG = Path(__file__).parents[2] / "profiles" / "catalog" / "recipes" / "megatron_bridge.json"
SOURCE = "NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/recipes, Apache-2.0"
UNKNOWN = "?"
FLEX_BACKENDS = ("deepep", "hybridep")
_DEEPEST = 12
_READ = ("model", "train", "ddp", "comm_overlap")
_NO_FACTS = re.compile(
    r"cuda_graph|cross_entropy|transformer_impl|seq_length|rotary_|rope_|moe_permute_fusion|grouped_gemm"
)
_LONG = re.compile(r"_\d+gpu_|^(build|default|flux|wan)_")  # other names, and helpers
# What nearly all recipes set; a recipe lists the others, null where it sets none.
USUAL: Mapping[str, Any] = {
    "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True,
    "ddp.use_distributed_optimizer": True, "mixed_precision": "bf16_mixed",
}  # fmt: skip
_PEFT, _SCHEME = "peft", "scheme"
_ADAPTERS = ("default_peft_config", "LoRA", "DoRA", "VLMLoRA")
_BY_NAME = re.compile(r"isinstance\(peft_scheme, str\) and")  # as by default, and by --mode
Values = dict[str, Any]


def _path(node: ast.expr) -> tuple[str, str]:
    """Return the variable and the dotted rest of ``cfg.model.seq_length`` in a Megatron Bridge recipe."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else ""), ".".join(reversed(parts))


class Recipes:
    """The functions of all recipes of one version."""

    def __init__(self, folder: Path) -> None:
        self.functions: dict[str, ast.FunctionDef] = {}
        self.aliases: dict[str, str] = {}
        self._modules: dict[int, Values] = {}  # constants and functions of each function's own module
        self._module: Values = {}
        self._depth = 0
        for path in sorted(folder.rglob("*.py")):
            self._module = {}
            for node in ast.parse(path.read_text("utf-8")).body:
                self._take(node)

    def _take(self, node: ast.stmt) -> None:
        """A function, another name of one, or a constant."""
        if isinstance(node, ast.FunctionDef):
            self._modules[id(node)] = self._module
            self._module[node.name] = node
            self.functions.setdefault(node.name, node)
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                if name.asname and name.asname != name.name:
                    self.aliases.setdefault(name.asname, name.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant):
                self._module[target.id] = node.value.value
            elif isinstance(target, ast.Name) and isinstance(node.value, ast.Name):
                self.aliases.setdefault(target.id, node.value.id)

    def names(self) -> list[str]:
        """All recipes, also by their other names."""
        public = {name for name in (*self.functions, *self.aliases) if name.endswith("_config")}
        return sorted(
            name for name in public if name[0] != "_" and self.aliases.get(name, name) in self.functions
        )

    def values(self, name: str) -> Values:
        """What a recipe sets, by dotted name."""
        found = self._function(self.aliases.get(name, name), [], {})
        return found if isinstance(found, dict) else {}

    def _function(self, name: str, given: list[Any], named: Values) -> Any:  # noqa: ANN401 - any value of Python
        """What a function gives back."""
        own = self._module.get(name)
        function = own if isinstance(own, ast.FunctionDef) else self.functions[name]
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        known: Values = {}
        for at, argument in enumerate(positional):
            default = defaults[at]
            usual = UNKNOWN if default is None else self._value(default, {})
            known[argument.arg] = given[at] if at < len(given) else named.get(argument.arg, usual)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            usual = UNKNOWN if default is None else self._value(default, {})
            known[argument.arg] = named.get(argument.arg, usual)
        if self._depth >= _DEEPEST:
            return UNKNOWN
        before, self._module, self._depth = self._module, self._modules[id(function)], self._depth + 1
        try:
            return self._body(function.body, known)
        finally:
            self._module, self._depth = before, self._depth - 1

    def _body(self, statements: list[ast.stmt], known: Values) -> Any:  # noqa: ANN401 - any value of Python
        """The statements of a function in order, until one gives something back."""
        for statement in statements:
            if isinstance(statement, ast.Return):
                return UNKNOWN if statement.value is None else self._value(statement.value, known)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
                _assign(target, self._value(statement.value, known), known)
            elif isinstance(statement, ast.If):
                holds = _BY_NAME.search(ast.unparse(statement.test)) is not None
                holds = holds or self._value(statement.test, known)
                if holds != UNKNOWN:
                    found = self._body(statement.body if holds else statement.orelse, known)
                    if found is not None:
                        return found
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._value(statement.value, known)  # it may fill what it is given
                self._fill_section(statement.value, known)
        return None

    def _fill_section(self, call: ast.Call, known: Values) -> None:
        """What a function sets of a section that it is given, as in ``set_layout(cfg.model)``.

        Its values are computed there. ``apply_flex_dispatcher_backend`` is the trainer's own
        (training/flex_dispatcher_backend.py): it takes DeepEP or HybridEP where the GPU has it.
        """
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        variable, section = _path(call.args[0]) if call.args else ("", "")
        held = known.get(variable)
        if not section or not isinstance(held, dict):
            return
        if name == "apply_flex_dispatcher_backend":
            backend = [
                self._value(one, known) for one in (*call.args[1:], *(k.value for k in call.keywords))
            ]
            if backend and backend[0] in FLEX_BACKENDS:
                held[f"{section}.moe_token_dispatcher_type"] = "flex"
                held[f"{section}.moe_flex_dispatcher_backend"] = backend[0]
                held[f"{section}.moe_shared_expert_overlap"] = False
        elif (function := self.functions.get(self.aliases.get(name, name))) and function.args.args:
            own = function.args.args[0].arg
            targets = [node.targets[0] for node in ast.walk(function) if isinstance(node, ast.Assign)]
            names = {rest for of, rest in map(_path, targets) if of == own}
            held |= {f"{section}.{rest}": UNKNOWN for rest in names - {"", "vocab_size"}}  # that is padded

    def _value(self, node: ast.expr, known: Values) -> Any:  # noqa: ANN401 - any value of Python
        """What an expression is; ``?`` where that takes more than these few kinds."""
        if isinstance(node, ast.Constant | ast.Name | ast.List | ast.Tuple):
            return self._plain(node, known)
        if isinstance(node, ast.Attribute):
            variable, rest = _path(node)
            held = known.get(variable)
            return (
                held.get(rest, UNKNOWN)
                if isinstance(held, dict)
                else rest
                if variable == "torch"
                else UNKNOWN
            )
        if isinstance(node, ast.IfExp):
            holds = self._value(node.test, known)
            return UNKNOWN if holds == UNKNOWN else self._value(node.body if holds else node.orelse, known)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return _compared(
                node.ops[0], self._value(node.left, known), self._value(node.comparators[0], known)
            )
        return self._called(node, known) if isinstance(node, ast.Call) else UNKNOWN

    def _plain(self, node: ast.expr, known: Values) -> Any:  # noqa: ANN401 - any value of Python
        """A constant, what a name holds, or a list of such."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            held = self._module.get(node.id, UNKNOWN)
            return known.get(node.id, UNKNOWN if isinstance(held, ast.FunctionDef) else held)
        return [self._value(one, known) for one in getattr(node, "elts", ())]

    def _called(self, node: ast.Call, known: Values) -> Any:  # noqa: ANN401 - any value of Python
        """A recipe, a configuration made of its arguments, or a published model."""
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        given = [self._value(one, known) for one in node.args]
        named = {one.arg: self._value(one.value, known) for one in node.keywords if one.arg}
        if name == "from_hf_pretrained":
            return {"hub_id": given[0] if given else UNKNOWN}
        if name in ("to_megatron_provider", "get_model_config") and isinstance(function, ast.Attribute):
            return self._value(function.value, known)
        if name in ("get_mixed_precision_config", *_ADAPTERS):
            return given[0] if name not in _ADAPTERS else {_SCHEME: str((*given, name)[0]).lower(), **named}
        name = self.aliases.get(name, name)
        if name in self.functions:
            return self._function(name, given, named)
        if name.endswith(("Config", "ConfigContainer", "Provider")):
            whole: Values = {}
            for key, value in named.items():
                _set(whole, key, value)
            return whole
        return name if "mixed" in name else UNKNOWN


def _assign(target: ast.expr, value: Any, known: Values) -> None:  # noqa: ANN401
    """``cfg = …`` and ``cfg.model.seq_length = …``."""
    variable, rest = _path(target)
    if isinstance(target, ast.Name):
        known[variable] = value
    elif isinstance(target, ast.Attribute) and isinstance(known.get(variable), dict):
        held = known[variable]
        section, _, name = rest.partition(".")
        if section == _PEFT and (not name or isinstance(held.get(_PEFT), dict)):
            if name:
                held[_PEFT][name] = value
            else:
                held[_PEFT] = value  # itself: what is set of it later counts, too
            return
        for key in [key for key in held if key.startswith(f"{rest}.")]:
            del held[key]
        _set(held, rest, value)


def _set(held: Values, key: str, value: Any) -> None:  # noqa: ANN401
    """One value, or all of a part's."""
    held[key] = "" if isinstance(value, dict) else value
    if isinstance(value, dict):
        held.update({f"{key}.{inner}": one for inner, one in value.items()})


def _compared(how: ast.cmpop, left: Any, right: Any) -> Any:  # noqa: ANN401 - any value of Python
    """What a comparison of known values says."""
    if UNKNOWN in (left, right):
        return UNKNOWN
    same = left == right
    return (
        same
        if isinstance(how, ast.Is | ast.Eq)
        else not same
        if isinstance(how, ast.IsNot | ast.NotEq)
        else UNKNOWN
    )


def adapters(values: Mapping[str, Any]) -> Values:
    """What a recipe sets of its adapters; ``?`` where it makes them itself."""
    found = values.get(_PEFT)
    if not isinstance(found, dict) or found.get(_SCHEME) not in ("lora", "dora"):
        return {_PEFT: UNKNOWN}
    kept = {key: found[key] for key in ("dim", "target_modules", "dropout") if key in found}
    return {_PEFT: {_SCHEME: found[_SCHEME], **kept}}


def facts(values: Mapping[str, Any]) -> Values:
    """What a plan hangs on, of all that a recipe sets."""
    found: Values = {"hub_id": values.get("model.hub_id", "")}
    length = values.get("dataset.seq_length", values.get("dataset.sequence_length"))
    if length is not None:
        found["model.seq_length"] = length
    for key, value in values.items():
        section, _, name = key.partition(".")
        counts = section in _READ and flag_of(name) is not None and not _NO_FACTS.search(name)
        if (counts or section == "mixed_precision") and value not in (None, "", False):
            found[key] = value
        elif value is False and name in (
            "overlap_grad_reduce",
            "overlap_param_gather",
            "grad_reduce_in_fp32",
        ):
            found[key] = False
    if not found.get("ddp.use_megatron_fsdp"):
        found.pop("ddp.data_parallel_sharding_strategy", None)
    # One is the usual size of all but the experts' tensor ranks, which are usually as many as the others'.
    sizes = [
        key
        for key, value in found.items()
        if value == 1 and key.endswith("parallel_size") and not key.endswith("expert_tensor_parallel_size")
    ]
    kept = {
        key: value
        for key, value in found.items()
        if key not in sizes and value != USUAL.get(key, UNKNOWN + key)
    }
    # its optimizers are distributed, whatever ddp says (Megatron Bridge ``ConfigContainer.validate``)
    return kept | {key: None for key in USUAL if key not in found and "distributed" not in key}


def main(folders: list[str]) -> None:
    """Write the table."""
    recipes: dict[str, Values] = {}
    for folder in folders:
        version = Recipes(Path(folder))
        for name in (one for one in version.names() if not _LONG.search(one)):
            found = facts(version.values(name))
            recipes.setdefault(name, found | (adapters(version.values(name)) if "_peft_" in name else {}))
    rows = [f'  "{name}": {json.dumps(recipes[name], sort_keys=True)}' for name in sorted(recipes)]
    CATALOG.parent.mkdir(exist_ok=True)
    text = ",\n".join(rows)
    CATALOG.write_text(
        f'{{\n "source": "{SOURCE}",\n "usual": {json.dumps(USUAL)},\n "recipes": {{\n{text}\n }}\n}}\n',
        "utf-8",
    )
    print(f"{CATALOG}: {len(recipes)} recipes")


if __name__ == "__main__":
    main(sys.argv[1:])
