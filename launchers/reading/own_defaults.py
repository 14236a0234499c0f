"""What a user's own Python program trains with where its command says nothing.

Read are literals: defaults of argparse and of dataclasses, arguments of transformers' and TRL's classes,
and the model that ``from_pretrained`` names. Nothing is run. An argument of the command counts first.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import pairwise

from meshwright.launchers.flags import flags_of, plain_name
from meshwright.launchers.reading.python_values import called_name
from meshwright.shell.commands import is_python
from meshwright.shell.values import Word, unknown_value

LENGTHS = ("cutoff_len", "max_length", "max_seq_length", "model_max_length", "max_seq_len", "block_size")
_TABLES = ("transformers", "trl", "accelerate", "deepspeed")
_LONGEST = 200_000  # characters of a program
_IS_OURS = re.compile(r"^\s*(?:from|import)\s+(?:transformers|trl|deepspeed|accelerate)\b", re.MULTILINE)
# What code may do that no argument says: such a program is not read.
_BEYOND = re.compile(
    r"\b(?:unsloth|requires_grad_?|optimizers\s*=|DeepSpeedPlugin|FullyShardedDataParallelPlugin|"
    r"fully_shard|init_inference|add_adapter|(?:AdaLora|IA3|LoHa|LoKr|OFT|BOFT|Prefix\w+|Prompt\w+|VeRA)Config)\b"
)
_CONFIGS = re.compile(r"(?:\w*TrainingArguments|(?:SFT|DPO|KTO|Reward)Config)")
_MODELS = re.compile(r"\w*ForCausalLM")
_MODEL = "model_name_or_path"
_OF_LOADING = ("torch_dtype", "dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")
_TRAINERS = re.compile(
    r"(SFT|DPO|KTO|BCO|CPO|ORPO|PRM|Reward)Trainer"
)  # TRL 1.16, trainer and experimental
_PARSES = re.compile(r"parse\w*_args\w*|parse_(?:json|yaml)_file|parse_dict")
LORA_ARGUMENTS = {  # of peft's LoraConfig, by the names of TRL's ModelConfig
    "r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
}  # fmt: skip
PEFTS_RANK = 8  # of LoraConfig, where none is named
WIDENS = "prepare_model_for_kbit_training"  # peft's
_LORA, _BITS, _WRAPS = "LoraConfig", "BitsAndBytesConfig", "get_peft_model"
_READ = {  # what is read of their arguments, by the words of our tables; empty: it changes no price
    _LORA: {
        **LORA_ARGUMENTS,
        **{name: name for name in ("lora_dropout", "use_dora")},
        **dict.fromkeys(
            ("lora_alpha", "use_rslora", "task_type", "init_lora_weights", "inference_mode", "bias"), ""
        ),
    },
    _BITS: {
        **{name: name for name in ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type")},
        "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
        **dict.fromkeys(("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold"), ""),
    },
}
_USUAL = {"lora_r": PEFTS_RANK, "lora_dropout": 0.0}  # of LoraConfig


def with_defaults(words: Sequence[Word], texts: Mapping[str, str]) -> tuple[Word, ...]:
    """Return the words of a command with the defaults of its Python program behind them.

    Args:
        words: words of a command.
        texts: the Python programs next to it, by base name.
    """
    at = next((at for at, word in enumerate(words) if word.text.endswith(".py")), None)
    text = None if at is None else texts.get(words[at].text.rsplit("/", 1)[-1])
    if at is None or text is None:
        return tuple(words)
    given = _given(words[at + 1 :])
    others = LENGTHS if any(name in given for name in LENGTHS) else ()  # which do not count next to it
    line, found, handed = words[-1].line, dict[str, str](), set[str]()
    for name, value in defaults_of(text).items():
        other = value.removeprefix(_REFERENCE)  # TrainingArguments(per_device_train_batch_size=args.batch)
        said = value if other == value else given.get(other, defaults_of(text).get(other, ""))
        if said.startswith(_REFERENCE):
            said = unknown_value(f"{other} of the program")
        handed |= {other} - _known() if other != value else set()
        if name in _known() and name not in (*given, *others) and said:
            found[name] = said
    own = (Word(piece, line) for name, value in found.items() for piece in (f"--{name}", value))
    return (*words[: at + 1], *_without(words[at + 1 :], handed), *own)


def _without(words: Sequence[Word], names: Container[str]) -> Iterator[Word]:
    """Yield words without some arguments, whose values others have."""
    drops = False
    for word in words:
        if word.text.startswith("--"):
            name, equals, _ = word.text.partition("=")
            drops = plain_name(name) in names
            if not drops:
                yield word
            drops = drops and not equals
        elif drops:
            drops = False
        else:
            yield word


def _given(words: Sequence[Word]) -> dict[str, str]:
    """Return the arguments of a command with their values."""
    found = dict[str, str]()
    for word, following in pairwise((*words, Word("", 0))):
        name, equals, value = word.text.partition("=")
        if name.startswith("--"):
            is_switch = following.text[:2] in ("", "--")
            found[plain_name(name)] = value if equals else "true" if is_switch else following.text
    return found


_REFERENCE = "\x01"  # before the argument whose value another one gets


def beyond_arguments(text: str) -> tuple[str, int]:
    """Return what a program does that no argument says, with its line; empty text without it."""
    if _IS_OURS.search(text) is None:
        return "", 0
    found = _BEYOND.search(text)
    if found is not None:
        return found[0], text.count("\n", 0, found.start()) + 1
    tree = _tree_of(text)
    return ("", 0) if tree is None else _beyond_read(tree)


def _beyond_read(tree: ast.Module) -> tuple[str, int]:
    """Return the adapters, or the weights of few bits, whose arguments are not read."""
    for name, arguments in _READ.items():
        calls = _calls(tree, name)
        for call in calls[1:]:
            return f"a second {name}", call.lineno
        for one in (one for call in calls for one in call.keywords):
            if one.arg not in arguments or (one.arg == "bias" and _text_of(one.value) != "none"):
                return f"{one.arg or '**'} of {name}", one.value.lineno
        if any(call.args for call in calls):
            return name, calls[0].lineno
    wraps = _calls(tree, _WRAPS)
    return (_WRAPS, wraps[0].lineno) if wraps and not _calls(tree, _LORA) else ("", 0)


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) == name]


@lru_cache(maxsize=16)
def _tree_of(text: str) -> ast.Module | None:
    """Return the syntax tree of a program; None if it is too long or cannot be parsed."""
    try:
        return ast.parse(text) if len(text) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def trained_by(text: str) -> str:
    """Return TRL's own program that trains as a program does; empty without one trainer of TRL."""
    tree = _tree_of(text) if re.search(r"^\s*(?:from|import)\s+trl\b", text, re.MULTILINE) else None
    names = {
        called_name(node) for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.Call)
    }
    kinds = {found[1].lower() for name in names if (found := _TRAINERS.fullmatch(name))}
    return f"trl/scripts/{kinds.pop()}.py" if len(kinds) == 1 else ""


def trains(text: str) -> bool:
    """Return whether a program has a trainer of TRL or transformers, and all that it sets is read."""
    tree = _tree_of(text) if _IS_OURS.search(text) is not None and not beyond_arguments(text)[0] else None
    return tree is not None and bool(trained_by(text) or _calls(tree, "Trainer"))


def may_start(words: Sequence[Word]) -> bool:
    """Return whether a command starts a Python program with a launcher or alone."""
    first = words[0].text.rsplit("/", 1)[-1]
    return is_python(words[0]) or first in ("torchrun", "accelerate", "deepspeed", "srun", "mpirun")


@cache
def _known() -> frozenset[str]:
    """Return the arguments that are read."""
    rows = (pair for one in _TABLES for pair in flags_of(one).items())
    return frozenset((*LENGTHS, *(name for name, row in rows if row.role != "refused")))


@lru_cache(maxsize=16)
def defaults_of(text: str) -> Mapping[str, str]:
    """Return the values of a program by argument; none of one that trains otherwise than arguments say."""
    tree = _tree_of(text) if _IS_OURS.search(text) is not None else None
    if tree is None or beyond_arguments(text)[0]:
        return {}
    known = _known()
    try:
        found = _found_in(tree, known)
    except RecursionError:
        return {}
    named = {value[1:] for value in found.values() if value.startswith(_REFERENCE)}
    return {name: value for name, value in found.items() if name in known or name in named}


def _found_in(tree: ast.Module, known: Container[str]) -> Mapping[str, str]:
    """Return values by name: what code sets counts before defaults, and two different ones are unknown."""
    constants, owners = _constants(tree), _owners(tree)
    adapts = bool(_calls(tree, _LORA))
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})  # defaults, what code sets
    for node, condition in _conditioned(tree):
        rows = [*named_defaults(node), *_changed(node, known)]
        rows += [(name, value, True) for name, value in _set_by(node, condition, constants, adapts=adapts)]
        for name, value, is_set in rows:
            text = _text_of(
                constants.get(value.id, value) if isinstance(value, ast.Name) else value, owners
            )
            unknown = unknown_value(f"{name} of the program")
            if text is None and name in known:  # computed: whoever reads it says so
                text = unknown
            if text and text != _REFERENCE + name and found[is_set].setdefault(name, text) != text:
                found[is_set][name] = unknown
    unused = {"use_peft": "false"} if adapts else {}  # a LoraConfig that no trainer or model gets
    return {**unused, **found[False], **found[True]}


def _set_by(
    node: ast.AST, condition: ast.expr, constants: Mapping[str, ast.expr], *, adapts: bool
) -> Iterator[tuple[str, ast.expr]]:
    """Yield the arguments that mean what a program does: recomputation, adapters, bits, a trainer's model.

    ``condition``: under which the node runs. ``adapts``: whether the program has a LoraConfig.
    """
    if isinstance(node, ast.Attribute) and node.attr == "gradient_checkpointing_enable":
        yield "gradient_checkpointing", condition
    called = called_name(node) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call):
        return
    given = {one.arg: one.value for one in node.keywords if one.arg}
    if called in _READ:
        stated = {word: given[name] for name, word in _READ[called].items() if word and name in given}
        usual = {name: ast.Constant(value) for name, value in _USUAL.items()} if called == _LORA else {}
        for name, value in {**usual, **stated}.items():
            yield name, condition if getattr(value, "value", None) is True else value
    elif called == _WRAPS:
        yield "use_peft", condition
    elif called == WIDENS:
        yield "gradient_checkpointing", given.get("use_gradient_checkpointing", ast.Constant(value=True))
    elif called.endswith("Trainer"):
        model = given.get("model", next(iter(node.args), None))
        model = constants.get(model.id) if isinstance(model, ast.Name) else model
        if isinstance(model, ast.Constant) and isinstance(model.value, str):
            yield _MODEL, model
        config = given.get("peft_config")
        if adapts and config is not None and not isinstance(config, ast.Constant):
            yield "use_peft", config.test if isinstance(config, ast.IfExp) else condition


def _owners(tree: ast.AST) -> frozenset[str]:
    """Return the names that a parser of arguments gives a program: ``a`` of ``a = parser.parse_args()``."""
    bound = (
        (target, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
    )
    return frozenset(
        one.id
        for target, call in bound
        if _PARSES.fullmatch(called_name(call))
        for one in ast.walk(target)
        if isinstance(one, ast.Name)
    )


def _changed(node: ast.AST, known: Container[str]) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield the arguments that a program changes: ``args.batch_size = 4``; ``//= 2`` is computed."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AugAssign) else targets
    for target in targets:
        owner = target.value if isinstance(target, ast.Attribute) else None
        if not isinstance(target, ast.Attribute) or not isinstance(owner, ast.Name) or owner.id == "self":
            continue
        if is_argument(target) or target.attr in known:
            computed = ast.BinOp(left=target, op=ast.Mult(), right=target)
            yield target.attr, node.value if isinstance(node, ast.Assign) else computed, True


def _constants(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Return the names that a program binds once, to a literal."""
    bound = Counter(
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and bound[target.id] == 1
    }


def _conditioned(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield the nodes of a program as ast.walk does, each with the innermost condition around it."""
    todo = deque[tuple[ast.AST, ast.expr]]([(tree, ast.Constant(value=True))])
    while todo:
        node, condition = todo.popleft()
        yield node, condition
        if not isinstance(node, ast.If) or "__name__" in {
            getattr(one, "id", "") for one in ast.walk(node.test)
        }:
            todo.extend((one, condition) for one in ast.iter_child_nodes(node))
            continue
        todo.extend((one, node.test) for one in node.body)
        todo.extend((one, ast.UnaryOp(op=ast.Not(), operand=node.test)) for one in node.orelse)


def _text_of(value: ast.expr, owners: Container[str] = ()) -> str | None:
    """Return a literal as an argument, or the reference to another one; None if it is computed.

    ``owners``: names of the program's arguments, besides those that say so.
    """
    if isinstance(value, ast.List | ast.Tuple | ast.Dict):
        return _text_of_several(value)
    if isinstance(value, ast.Constant):
        literal = value.value
        return (
            str(literal).lower() if isinstance(literal, bool) else "" if literal is None else str(literal)
        )
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        number = _text_of(value.operand) if isinstance(value.operand, ast.Constant) else None
        return f"-{number}" if number else None
    if isinstance(value, ast.Attribute):
        of_torch = isinstance(value.value, ast.Name) and value.value.id == "torch"
        return (
            value.attr if of_torch else f"{_REFERENCE}{value.attr}" if is_argument(value, owners) else None
        )
    return None


def _text_of_several(value: ast.expr) -> str | None:
    """Return literals as a command line has them: a list's with blanks between, a dictionary as JSON."""
    with suppress(ValueError, TypeError):
        found = ast.literal_eval(value)
        if isinstance(found, dict):
            return json.dumps(found)
        texts = [_text_of(ast.Constant(one)) for one in found]
        return " ".join(map(str, texts)) if all(texts) else None
    return None


def is_argument(value: ast.expr, owners: Container[str] = ()) -> bool:
    """Return whether an expression is an argument of the program: ``args.batch_size``."""
    owner = value.value if isinstance(value, ast.Attribute) else None
    return isinstance(owner, ast.Name) and ("arg" in owner.id or owner.id in owners)


def named_defaults(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield the arguments that a node gives a value, with whether code sets it, not a default."""
    if isinstance(node, ast.ClassDef) and any(
        "dataclass" in ast.unparse(one) for one in node.decorator_list
    ):
        for one in node.body:
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and one.value is not None
            ):
                yield from ((one.target.id, value, False) for value in _default_of(one.value))
    if not isinstance(node, ast.Call):
        return
    called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    last = called.rpartition(".")[2]
    if last == "add_argument":
        options = [one.value for one in node.args if isinstance(one, ast.Constant)]
        name = next((one for one in options if isinstance(one, str) and one.startswith("--")), None)
        if name is not None:
            yield from (
                (plain_name(name), one.value, False) for one in node.keywords if one.arg == "default"
            )
    elif _CONFIGS.fullmatch(last):
        yield from ((one.arg, one.value, True) for one in node.keywords if one.arg)
    elif last == "from_pretrained" and _MODELS.fullmatch(called.rpartition(".")[0].rpartition(".")[2]):
        yield from ((_MODEL, one, True) for one in node.args[:1])
        yield from ((str(one.arg), one.value, True) for one in node.keywords if one.arg in _OF_LOADING)


def _default_of(value: ast.expr) -> list[ast.expr]:
    """Return the default of a dataclass's field: the value, or that of ``field(default=…)``."""
    if not isinstance(value, ast.Call):
        return [value]
    return [one.value for one in value.keywords if one.arg == "default"]
