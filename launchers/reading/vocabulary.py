"""Number of tokens of a launch file's tokenizer, by its kind, its name, or its own file.

Counts are what the launchers ask the tokenizer for (``len(tokenizer)`` of Hugging Face, ``vocab_size`` of
Megatron-LM's own kinds), before they pad: tokenizers published with the models, October 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from meshwright.launchers.reading.base import Include
from meshwright.launchers.templates import data
from meshwright.shell.values import UNKNOWN

# Megatron-LM's kinds with a table of their own, unless a file overrides it: tokens and source.
_KINDS: Mapping[str, tuple[int, str]] = {
    "gpt2bpetokenizer": (50257, "GPT-2's"),
    "llama2tokenizer": (32000, "Llama 2's"),
    "tiktokentokenizer": (131072, "Megatron-LM's default of --vocab-size"),  # 2 ** 17
}
_GPT2, _LLAMA_2 = "gpt2bpetokenizer", "llama2tokenizer"
_FILES = ("tokenizer.json", "vocab.json")
_PIECES = ".model"  # of SentencePiece
_STATED = re.compile(r"(?:tokeni[sz]er|vocab|bpe|spm)\D*(?<!\d)(\d{5,6})(?!\d)", re.IGNORECASE)
_MONTH = re.compile(r"20\d\d(?:0[1-9]|1[0-2])")  # vocab_202401 was made then
_A_TOKENIZER = re.compile(r"tokeni[sz]er", re.IGNORECASE)
_OF_NOBODY = re.compile(
    r"tokeni[sz]ers?|gpt[-_]?2|bpe|vocab|files?|data|models?|json|path|to|my|the|hf|llama[-_]?2?|meta|hub"
    r"|sentence[-_]?piece|spm|checkpoints?|ckpts?|weights|dir|[\W\d_]+"
)
_A_SIZE = re.compile(r"(?<![a-z0-9])\d+(?:\.\d+)?b(?![a-z0-9])", re.IGNORECASE)  # of a model: qwen-7b


@cache
def _patterns() -> list[tuple[re.Pattern[str], int]]:
    names = data("reading/tokenizers.yaml")
    return [(re.compile(pattern, re.IGNORECASE), size) for pattern, size in names.items()]


def named_vocabulary(name: str) -> int | None:
    """Return the tokens of a tokenizer by a hub id, or a path that ends in one; None if unknown."""
    for part in reversed(name.rstrip("/").split("/")[-3:]):
        size = next((size for pattern, size in _patterns() if pattern.search(part)), None)
        if size is not None:
            return size or None  # 0: of several sizes
    return None


def _stated(name: str) -> int | None:
    """Return the tokens stated in a path: ``…/nordic_tokenizer_131072/vocab.json``; None without them."""
    found = (_STATED.search(part) for part in reversed(name.split("/")))
    return next((int(one[1]) for one in found if one and not _MONTH.fullmatch(one[1])), None)


def _is_own(name: str) -> bool:
    """Return whether a path names a custom tokenizer: ``…/europa-tokenizer/vocab.json``.

    A file next to a model that is named by its size counts, too: ``baichuan-7b/tokenizer.model``.
    """
    beside = name.endswith(_PIECES)
    parts = [
        part.lower()
        for part in name.split("/")
        if _A_TOKENIZER.search(part) or (beside and _A_SIZE.search(part))
    ]
    return any(_OF_NOBODY.sub("", part) for part in parts)


def vocabulary_of(kind: str, names: tuple[str, ...], include: Include) -> tuple[int, str] | None:
    """Return the tokens and the source of the tokenizer that a command names; None if unknown.

    Args:
        kind: Megatron-LM's ``--tokenizer-type``; empty if the launcher has no kinds.
        names: its names in the command: hub ids, folders, files.
        include: reads a file next to the launch file, by its base name.
    """
    known = [name for name in names if name and UNKNOWN not in name]
    named = [part for name in names for part in name.split(UNKNOWN)[::2]]  # includes text after a variable
    for name in (*known, *(_FILES if known else ())):
        base = name.rstrip("/").rsplit("/", 1)[-1]
        text = include(base) if base.endswith((".json", _PIECES)) else None
        size = (pieces(text) if base.endswith(_PIECES) else counted(text)) if text else None
        if size:
            return size, base
    for name in known:
        size = (kind.lower() != _GPT2 and named_vocabulary(name)) or _stated(name)
        if size:
            return size, name[-60:]
    if kind.lower() in (_GPT2, _LLAMA_2) and any(map(_is_own, named)):
        return None
    return _KINDS.get(kind.lower())


def pieces(text: str) -> int | None:
    """Return the tokens of SentencePiece's ``tokenizer.model``, read as Latin-1; None for other files.

    sentencepiece_model.proto: a ``ModelProto`` repeats field 1, the pieces, each with its length.
    """
    data = text.encode("latin-1", "replace")
    at = count = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _LENGTH_DELIMITED:
            length, at = _varint(data, at)
            count += key >> 3 == 1
            at += length
        elif kind == 0:
            _, at = _varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(kind, len(data) + 1)  # fixed sizes; protobuf has no others
    return count if at == len(data) and count else None


_LENGTH_DELIMITED = 2  # of protobuf's kinds


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a protobuf number, seven bits per byte, and its end; past the data if it does not end."""
    number = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:  # noqa: PLR2004 - the last byte of a number
            return number, at
    return 0, len(data) + 1


def counted(text: str) -> int | None:
    """Count tokens in Hugging Face's ``tokenizer.json`` or in GPT-2's table; None for other files."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    model = raw.get("model")
    if not isinstance(model, dict):
        return len(raw) if raw and all(isinstance(place, int) for place in raw.values()) else None
    table = model.get("vocab")
    places = {one.get("id") for one in raw.get("added_tokens") or () if isinstance(one, dict)}
    if isinstance(table, dict):
        return len(places | set(table.values()))
    return len(places | set(range(len(table)))) if isinstance(table, list) else None
