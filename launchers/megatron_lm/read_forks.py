"""Flags of older Megatron-LM and of its forks, as today's flags with the same meaning.

Megatron-LM before 2022 and Megatron-DeepSpeed (``--checkpoint-activations``, ``--num-key-value-heads``),
BigScience's (``--pp-partition-method``, ``--pad-vocab-size-to``), BigCode's (``--attention-head-type``) and
Megatron-LLaMA's (``--RMSNorm``):
their megatron/arguments.py. Trainings that today's flags cannot express are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from meshwright.launchers.deepspeed.read import read_offload
from meshwright.launchers.flags import flag_names, is_off, plain_name
from meshwright.launchers.megatron_core.names import FROM_CHECKPOINT, spelled, table
from meshwright.launchers.megatron_lm.flags import FP4_RECIPE
from meshwright.launchers.reading.base import Include, Source
from meshwright.launchers.reading.documents import Values, document_of, looks_like_document
from meshwright.launchers.reading.fields import (
    Fields,
    affected,
    first_larger,
    passing,
)
from meshwright.launchers.reading.given import Given, Value
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.values import UNKNOWN, FilledTemplate, plainly, why_unknown

OFFLOAD = "--offload of DeepSpeed's file"
DEEPSPEED = "deepspeed"  # the switch that passes the model to DeepSpeed's engine
_MAX_STAGE_WITH_PIPELINE = 1
_STAGE = re.compile(r'"stage"\s*:\s*"?(\d)')


def translate(given: Given, include: Include, filled: Mapping[str, FilledTemplate] | None = None) -> str:
    """Convert older and forked flags to today's; return the launcher, ``megatron-lm`` or ``deepspeed``.

    Faults are left in ``given``. ``include``: the text of a file next to the script, or that the script
    writes, by base name. ``filled``: its output from templates, even if they are missing.
    """
    with_deepspeed = f"--{DEEPSPEED}" in given.others
    first = given.others.get("--batch-size")
    if first is not None and (given.has("micro-batch-size") or given.has("global-batch-size")):
        given.fault_of(
            "--batch-size",
            first,
            "Megatron-LM refuses it since it has --micro-batch-size and --global-batch-size",
            allowed="one of them",
        )
    respell(given)
    _agree_on_padding(given)
    take_4_bits(given)
    _experts(given)
    if with_deepspeed:
        _take_stage(given, include, filled or {})
    return "deepspeed" if with_deepspeed else "megatron-lm"


# --------------------------------------------------------------------------------------------------
# Unknown to all readers: a fork's own arguments, and programs that build a model of their own.


# Families of models with gated layers and RMSNorm, by a program's name.
_GATED = re.compile(
    r"(?:llama|alpaca|vicuna|qwen|mistral|mixtral|deepseek|baichuan|internlm|aquila|gemma|(?<![a-z])yi)",
    re.IGNORECASE,
)


_SIZES = ("hidden-size", "num-attention-heads", "seq-length")


def require_known(given: Given, program: str) -> None:
    """Record a fault for a fork's changes that no flag here expresses.

    An argument that neither Megatron-LM nor Megatron-DeepSpeed has is a fork's own; a program with the name
    of a family whose layers the flags do not describe builds its model by itself.

    Raises:
        InvalidProblemError: such arguments in a command without sizes of a language model.
    """
    strange: dict[str, Value] = {}
    for called, (name, value) in given.left.items() if program else ():  # else they are of any command
        off = bool(value.texts) and is_off(value.texts[0])
        if not (name in table() or off or affected(None, name, "on")):
            strange[called] = value
    base = program.rpartition("/")[2][:64]
    if strange and not any(given.has(name) for name in _SIZES):
        line, names = next(iter(strange.values())).line, ", ".join([*strange][:4])
        raise InvalidProblemError.of(
            base,
            f"line {line}: takes {names}, which Megatron-LM does not, and no size of a language model",
            allowed=f"a command with {', '.join(f'--{one}' for one in _SIZES)}",
        )
    for called, value in strange.items():
        given.refuse(
            called,
            f"line {value.line}: belongs to a fork or another program. Its effect is unknown",
            allowed=passing(called),
        )
    family = _GATED.search(program)
    said = any(given.has(name) for name in ("swiglu", "quick-geglu")) or FROM_CHECKPOINT in given.others
    if family is not None and not said:
        given.refuse(
            program[:64],
            f"is a {family[0]} by its name, but --swiglu is not set: it builds its layers itself",
            allowed="--model with the model that it builds",
        )


def respell(given: Given) -> None:
    """Take the flags that other spellings mean, those of single flags first; given ones count before."""
    older = [
        (row, name, value)
        for name, value in given.others.items()
        if (row := table().get(plain_name(name))) is not None and row.means and value.texts != _NONE
    ]
    for row, name, value in sorted(older, key=lambda one: len(one[0].means)):
        by_value = any(isinstance(said, Mapping) for said in row.means.values())
        meaning = row.means.get(given.other(name[2:]), {}) if by_value else row.means
        lacking = [new for new in meaning if row.wins or not given.has(new.replace("_", "-"))]
        for new in () if row.first_decides and lacking[:1] != [*meaning][:1] else lacking:
            said = meaning[new]
            texts = value.texts if said == "$" else () if said is True else (str(said),)
            given.take(spelled(new), Value(texts, value.line), called=name)


def _agree_on_padding(given: Given) -> None:
    """Refuse lists of samples that Pai-Megatron-Patch pads to another length than the model's sequences.

    Its megatron_patch/data/json_sft.py; tables of tokens (``--dataset LLama-Pretrain-Idxmap``) are cut by
    ``--seq-length``.
    """
    name = "max-padding-length"
    length, cut = given.optional(name), given.optional("seq-length")
    if length in (None, cut) or _OF_TOKENS.search(given.partly("dataset")):
        return
    given.fault(name, f"samples are padded to {length} tokens, not to --seq-length {cut}", nearest=cut)


_OF_TOKENS = re.compile("idxmap|mmap", re.IGNORECASE)
_NONE = ("0",)  # --pipe-parallel-size 0


def take_4_bits(given: Given) -> None:
    """Take the format and the recipe of 4 bits, which replace those of 8."""
    if given.has("fp4-format"):
        if given.has("fp8-format"):
            given.fault("fp4-format", "contradicts --fp8-format: Megatron-LM takes one of them")
        line = given.values["--fp4-format"].line
        given.take("--fp8-format", Value(("e4m3",), line), called="--fp4-format")
        given.take("--fp8-recipe", Value((FP4_RECIPE,), line), called="--fp4-recipe")


def _experts(given: Given) -> None:
    """Convert Megatron-DeepSpeed's experts to Megatron-Core's names; one expert means none.

    Its megatron/model/transformer.py (``get_num_experts_per_layer``: every ``--expert-interval``-th layer,
    counted from one) and deepspeed/moe/sharded_moe.py: the probability of one expert is over all of them,
    those of several are divided by their sum; the gate has no bias.
    """
    if f"--{DEEPSPEED}" not in given.others or not given.has("num-experts"):
        return
    said = given.values.pop("--num-experts")
    own = {name: given.others.pop(f"--{name}", None) for name in _EXPERTS}
    if all(text == "1" for text in said.texts):
        return
    if given.other("mlp-type") not in ("", "standard"):
        given.fault_of(
            "--mlp-type",
            given.others["--mlp-type"],
            "cannot be read: an MLP next to its experts is not supported",
            allowed="standard",
        )
        return
    if given.integer("tensor-model-parallel-size", 1) > 1:
        given.fault_of(
            "--num-experts",
            said,
            "cannot be read: DeepSpeed's experts next to tensor ranks, which repeat them, are not "
            "supported",
            allowed="--tensor-model-parallel-size 1",
        )
        return
    text = {name: value.texts[0] if value and value.texts else "" for name, value in own.items()}
    every, num_layers = _count(text["expert-interval"], 2), given.integer("num-layers", 0)
    marks = [int(layer % every == 0) for layer in range(1, num_layers + 1)]
    top_k = _count(text["topk"], 1)
    taken: list[tuple[str, tuple[str, ...], str]] = [
        ("num-experts", said.texts[:1], "num-experts"),
        ("moe-layer-freq", (str(marks),), "expert-interval"),
        ("moe-router-topk", (str(top_k),), "topk"),
        (
            "expert-model-parallel-size",
            (text["moe-expert-parallel-size"] or "1",),
            "moe-expert-parallel-size",
        ),
        ("moe-token-dispatcher-type", ("alltoall",), "num-experts"),
    ]
    if top_k == 1:
        taken.append(("moe-router-pre-softmax", (), "topk"))
    if "--disable-moe-token-dropping" not in given.others:
        factor = given.other("moe-train-capacity-factor") or "1.0"
        taken.append(("moe-expert-capacity-factor", (factor,), "moe-train-capacity-factor"))
    for name, texts, called in taken:
        value = own.get(called)
        given.take(f"--{name}", Value(texts, value.line if value else said.line), called=f"--{called}")
    given.others["--moe-aux-loss-coeff"] = Value((given.other("moe-loss-coeff") or "0.1",), said.line)
    tokens = given.integer("micro-batch-size", 1) * given.integer("seq-length", 1)
    width = given.integer("ffn-hidden-size", 4 * given.integer("hidden-size", 1))
    given.note(
        "DeepSpeed's gate moves tokens by products with masks of all experts' places, "
        f"{tokens / max(width, 1):.0%} of the experts' own products here, which are not supported"
    )


_EXPERTS = ("expert-interval", "topk", "moe-expert-parallel-size")  # they set the layers and the number


def _count(text: str, usual: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) else usual  # noqa: PLR2004


def _take_stage(given: Given, include: Include, filled: Mapping[str, FilledTemplate]) -> None:
    """Take the ZeRO stage from DeepSpeed's file; ``--zero-stage`` alone only sets the model up."""
    flag = next((one for one in _FILES if one in given.others), _FILES[0])
    name = given.partly(flag.removeprefix("--"))
    base, plain = name.rsplit("/", 1)[-1], plainly(name).rsplit("/", 1)[-1]
    text = include(base) if base.endswith(".json") else None
    said = given.other("zero-stage")
    found = _stage_of(given, base, text) if text else None
    if found is None and base in filled:
        found = filled[base].names.get(_PLACEHOLDER)
    if found is None and not said and UNKNOWN in name:
        why, step = why_unknown(name.split(UNKNOWN)[1])
        given.fault_of(flag, given.others[flag], why, allowed=step)
    elif found is None and not said and name:
        given.fault_of(
            flag,
            given.others[flag],
            f"{shown(base)} is not next to the file, and --zero-stage is not set either",
            allowed="that file too, or its folder",
        )
    elif text is None and "--cpu-optimizer" in given.others:
        given.fault_of(
            "--cpu-optimizer",
            given.others["--cpu-optimizer"],
            f"the states are placed by {shown(plain)}, which is not next to the file",
            allowed="that file too",
        )
    elif found is None:
        given.note(
            f"ZeRO stage {said or 0}: of --zero-stage, {plain[:60] or 'a configuration'} is not next to it"
        )
    elif said and said != found:
        line = given.others["--zero-stage"].line
        given.note(f"line {line}: --zero-stage {said}, but {base[:60]} sets {found}, which counts")
    found = found or said or "0"
    given.others["--zero-stage"] = Value((found,), 0)
    stages = given.integer("pipeline-model-parallel-size", 1)
    if found.isdecimal() and int(found) > _MAX_STAGE_WITH_PIPELINE and stages > 1:
        given.fault(
            "pipeline-model-parallel-size", f"{stages} stages next to ZeRO {found}: DeepSpeed refuses it"
        )


_PLACEHOLDER = "ZERO_STAGE"  # of Megatron-DeepSpeed's templates (examples_deepspeed/rebase)
_FILES = ("--deepspeed_config", "--deepspeed-config")
_CURRICULA = ("curriculum_learning", "data_efficiency.data_sampling.curriculum_learning")
DEEPSPEED_STAGES = ("0", "1", "2", "3")
_OPEN_PLACE = re.compile(r":\s*\"?[$<{]*[A-Z][A-Z_]{2,}")  # of a template: ``"stage": ZERO_STAGE``
_AWAY = re.compile(r'"offload_(optimizer|param)"\s*:\s*\{[^}]*"device"\s*:\s*"(cpu|nvme)"')


def _stage_of(given: Given, name: str, text: str) -> str | None:
    """Return the stage in DeepSpeed's JSON, also if a script fills it in, and record its offloading."""
    file = Source(name=name, text=text)
    is_template = _OPEN_PLACE.search(text) is not None or UNKNOWN in text
    values = looks_like_document(file) if is_template else document_of(file)
    for at in _CURRICULA:
        if str(getattr(values.get(f"{at}.enabled"), "value", None)).lower() == "true":
            given.note(f"{shown(name)}: {at} is on: the prediction uses the full length for every step")
    stage = values.get("zero_optimization.stage")
    match = None if values else _STAGE.search(text)
    found = str(stage.value) if stage is not None else match[1] if match else "0"
    if stage is not None and found not in DEEPSPEED_STAGES:
        given.refuse(
            "zero_optimization.stage",
            f"line {stage.line} of {shown(name)}: {shown(found)} is not a ZeRO stage",
            allowed=", ".join(DEEPSPEED_STAGES),
        )
    if found in DEEPSPEED_STAGES and values:
        fields = Fields(name, values, programs=("deepspeed",))
        given.others[OFFLOAD] = Value((read_offload(fields, int(found)),), 0)
        batch = fields.optional("train_batch_size")
        if batch is not None and not given.has("global-batch-size"):
            given.take("--global-batch-size", Value((str(batch),), 0))
            given.note(f"--global-batch-size is {shown(name)}'s train_batch_size, {batch}")
        _agree(given, fields)
        _note_unknown(given, name, values)
        given.faults += [replace(one, message=f"{shown(name)}: {one.message}") for one in fields.faults]
    elif f"{UNKNOWN}$(" in text:
        line = next((given.others[flag].line for flag in _FILES if flag in given.others), 0)
        why, step = why_unknown(text.split(UNKNOWN)[1])
        given.fault_of(_FILES[0], Value((), line), f"part of {shown(name)}: {why}", allowed=step)
    elif (away := _AWAY.search(text)) is not None:
        line = next((given.others[flag].line for flag in _FILES if flag in given.others), 0)
        message = f"cannot be read: {shown(name)} keeps states on the {away[2]}, in a form with open places"
        given.fault_of(_FILES[0], Value((), line), message)
    return found


def _note_unknown(given: Given, file: str, values: Values) -> None:
    known = flag_names("deepspeed")
    for key, found in values.items():
        if not (key in known or known.is_free(key) or key.startswith(_CURRICULA)):
            where = f"line {found.line} of {shown(file)}"
            given.note(f"{where}: {shown(key)} is unknown to DeepSpeed, which ignores it")


def _agree(given: Given, fields: Fields) -> None:
    for name, other in (("bf16", "fp16"), ("fp16", "bf16")):
        if fields.flag(f"{name}.enabled", default=False) and given.has(other):
            flag = given.values[f"--{other}"]
            fields.fault(
                f"{name}.enabled",
                f"but --{other} on line {flag.line} of the script",
                allowed=f"--{name}, or {other} in both",
            )


def partition(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """Return the layers of each stage by ``--pp-partition-method``; faults are left in ``given``.

    DeepSpeed's ``PipelineModule._partition_layers``: layers with a matching class weigh 1 and are balanced;
    ``type:transformer|embedding`` also counts the embedding and the head, which is an embedding.
    """
    method = given.other("pp-partition-method").strip("'\"").lower() or "type:transformer"
    counted = {"type:transformer": 0, "type:transformer|embedding": 1, "type:embedding|transformer": 1}
    if method not in counted:
        value = given.others["--pp-partition-method"]
        given.fault_of("--pp-partition-method", value, "is not read", allowed=", ".join(counted))
        return ()
    ends = counted[method]
    split = list(first_larger(num_layers + 2 * ends, pp, field="--pipeline-model-parallel-size"))
    split[0] -= ends
    split[-1] -= ends
    if min(split) < 1:
        given.fault(
            "pipeline-model-parallel-size", "leaves a stage without a layer, which is not supported"
        )
        return ()
    return tuple(split)
