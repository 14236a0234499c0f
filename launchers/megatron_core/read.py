"""Names of Megatron-Core's own configuration, which several launchers share, as flags of Megatron-LM.

One reader then checks them all. Their table is ``flags.yaml`` in this folder: TransformerConfig,
ModelParallelConfig and DistributedDataParallelConfig of Megatron-Core 0.17 to 0.19, and names of single
launchers, which ``of`` marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod

from meshwright.launchers.flags import flags_of, plain_name
from meshwright.launchers.megatron_core.names import flag_kinds, spelled, table
from meshwright.launchers.reading.given import Given, Value, plain_names
from meshwright.shell.values import unknown_fault, unknown_in
from meshwright.solver.configuration import HIERARCHICAL

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}  # of ``torch``
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
DISPATCHER = "moe_token_dispatcher_type"
_UNSET = ("null", "none", "~")


@cache
def meanings() -> Mapping[str, Mapping[str, object]]:
    """Return the arguments of Megatron-LM that a name stands for, with their values: ``$`` is its own."""
    own = {name: {name: "$"} for name in plain_names()}
    return own | {name: flag.means for name, flag in flags_of("megatron-core").items() if flag.means}


@cache
def core_names() -> dict[str, str]:
    """Return the first flag of every name of Megatron-Core and Megatron-LM that is read."""
    return {name: spelled(next(iter(meant))) for name, meant in meanings().items()}


def flag_of(key: str) -> str | None:
    """Return Megatron-LM's flag for a name of Megatron-Core; None without one."""
    return core_names().get(key.replace("-", "_"))


def take(given: Given, key: str, text: str, line: int, *, called: str) -> None:
    """Keep one value under its flags, or list it as unknown; ``called`` is the whole name in the file."""
    flag = flag_of(key)
    if flag is None:
        given.leave(called[:64], spelled(key), Value((text,), line))
        return
    if (unknown := unknown_in(text)) is not None:
        given.faults.append(unknown_fault(called[:64], unknown, line))
        return
    if _is_unset(flag, text):
        return
    for name, value in meanings()[key.replace("-", "_")].items():
        if value is True:
            given.take(spelled(name), Value((), line), called=called)
        elif flag_kinds()[spelled(name)] == "switch":
            _take_switch(given, spelled(name), text, line, called=called, wanted=value != "not")
        else:
            given.take(spelled(name), Value(_texts(spelled(name), text), line), called=called)


def _is_unset(flag: str, text: str) -> bool:
    """Return whether a value leaves a flag at its default, as ``fp8: false`` does."""
    kind, word = flag_kinds()[flag], text.lower()
    off = word == "false" and kind == "word" and table()[plain_name(flag)].default is None
    return off or word in _UNSET or (text == "[]" and kind == "words")


def _texts(flag: str, text: str) -> tuple[str, ...]:
    """Return a value of a document in the words of the command line."""
    kind, plain = flag_kinds()[flag], text.strip("'\" ")
    if kind == "words":
        return tuple(plain.strip("[]").replace(",", " ").split())
    if kind == "integer":
        return (plain.removesuffix(".0"),)
    if flag.endswith("-dtype"):
        name = plain.removeprefix("torch.")
        return (_DTYPES.get(name, name),)
    return (plain.strip("[]") if flag == "--window-size" else plain,)


def _take_switch(given: Given, flag: str, text: str, line: int, *, called: str, wanted: bool) -> None:
    """Take a Boolean value of the file as a switch; one that is off is not given."""
    word = text.lower()
    if word not in (*_TRUE, *_FALSE):
        given.called[flag] = called[:64]
        given.values.setdefault(flag, Value((), line))
        given.fault(flag.removeprefix("--"), "is neither true nor false", allowed="true, false")
    elif (word in _TRUE) is wanted:
        given.take(flag, Value((), line), called=called)
    else:
        given.called[flag] = called[:64]  # given as off


def context_mode(given: Given, cp: int) -> str:
    """Return the mode of context parallelism: the ring, all-to-all, or both; different layers: the ring."""
    words = set(given.words("cp-comm-type"))
    if cp == 1 or not words or words == {"p2p"}:
        return "ring"
    if words == {"a2a"}:
        return "all_to_all"
    if words == {"a2a+p2p"}:
        return _both_modes(given, cp)
    given.note("--cp-comm-type is predicted as p2p, the ring")
    return "ring"


def _both_modes(given: Given, cp: int) -> str:
    """Return the mode for the size of the all-to-all; sizes of 1 and of all ranks are single modes."""
    name = "hierarchical-context-parallel-sizes"
    sizes = [int(word) if word.isascii() and word.isdigit() else 0 for word in given.words(name)]
    if len(sizes) != 2 or prod(sizes) != cp:  # noqa: PLR2004 - sizes of the all-to-all and of the rings
        given.fault(
            name if sizes else "cp-comm-type",
            f"a2a+p2p needs two sizes in --{name} with the product context-parallel-size {cp}",
            allowed=", ".join(f"{one} {cp // one}" for one in HIERARCHICAL.values() if cp % one == 0),
        )
        return "ring"
    modes = {1: "ring", cp: "all_to_all", **{size: mode for mode, size in HIERARCHICAL.items()}}
    if sizes[0] not in modes:
        given.fault(
            name, "is not supported", allowed=", ".join(map(str, HIERARCHICAL.values())) + " that exchange"
        )
    return modes.get(sizes[0], "ring")


def take_usual(given: Given) -> None:
    """Take the defaults that these launchers read from the model's own configuration."""
    if given.has("num-experts") and not given.has("moe-token-dispatcher-type"):
        given.take("--moe-token-dispatcher-type", Value(("alltoall",), 0), called=DISPATCHER)
    for name in ("attention-dropout", "hidden-dropout"):
        if not given.has(name):
            given.take(f"--{name}", Value(("0.0",), 0), called=name.replace("-", "_"))
    if given.word("position-embedding-type") == "learned_absolute" and not given.has(
        "max-position-embeddings"
    ):
        given.take(
            "--max-position-embeddings", Value((given.word("seq-length", "1"),), 0), called="seq_length"
        )


def text_of(value: object) -> str:
    """Return a value of a document as the text on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(text_of(one) for one in value[:64]) + "]"
    return str(value)[:20_000]
