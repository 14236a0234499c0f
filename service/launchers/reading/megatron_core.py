"""Names of Megatron-Core's own configuration, which several launchers share, as flags of Megatron-LM.

One reader then checks them all. Names: TransformerConfig, ModelParallelConfig and
DistributedDataParallelConfig of Megatron-Core 0.17 to 0.19; those of single launchers are marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod

from meshwright.service.launchers.megatron_names import flag_kinds
from meshwright.service.launchers.reading.given import Given, Value, plain_names
from meshwright.service.shell.values import unknown_fault, unknown_in
from meshwright.solver.configuration import HIERARCHICAL

_RENAMED: Mapping[str, str] = {
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "num_moe_experts": "num-experts",
    "gated_linear_unit": "swiglu",
    "mtp_num_layers": "mtp-num-layers",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "account_for_loss_in_pipeline_split": "account-for-loss-in-pipeline-split",
    "layernorm_epsilon": "norm-epsilon",
    "layernorm_zero_centered_gamma": "apply-layernorm-1p",
    "rope_scaling": "use-rope-scaling",  # Megatron-Bridge
    "seq_len_interpolation_factor": "rotary-seq-len-interpolation-factor",  # Megatron-Bridge
    "yarn_rotary_scaling_factor": "rotary-scaling-factor",  # Megatron-Bridge, models/gpt_oss
    "yarn_mscale": "mscale",
    "yarn_mscale_all_dim": "mscale-all-dim",
    "max_length": "seq-length",  # ms-swift
    "cutoff_len": "seq-length",  # LLaMA-Factory
    "sequence_length": "seq-length",
    "per_device_train_batch_size": "micro-batch-size",  # transformers' TrainingArguments
}
_INVERTED: Mapping[str, str] = {
    "add_bias_linear": "disable-bias-linear",
    "yarn_correction_range_round_to_int": "no-yarn-correction-range-round-to-int",
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
    "bias_dropout_fusion": "no-bias-dropout-fusion",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion",
    "bias_activation_fusion": "no-bias-swiglu-fusion",  # ms-swift
}
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}  # of ``torch``
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
DISPATCHER = "moe_token_dispatcher_type"
_UNSET = ("null", "none", "~")


def flag_of(key: str) -> str | None:
    """Return Megatron-LM's flag for a name of Megatron-Core; None without one."""
    flag = "--" + _RENAMED.get(key, _INVERTED.get(key, key)).replace("_", "-")
    return flag if flag in flag_kinds() else None


@cache
def core_names() -> dict[str, str]:
    """Return the flag of every name of Megatron-Core and Megatron-LM that is read."""
    renamed = {key: flag for key in (*_RENAMED, *_INVERTED) if (flag := flag_of(key)) is not None}
    return plain_names() | renamed


def take(given: Given, key: str, text: str, line: int, *, called: str) -> None:
    """Keep one value under its flag, or list it as unknown; ``called`` is the whole name in the file."""
    flag = flag_of(key)
    if flag is None:
        given.leave(called[:64], f"--{key.replace('_', '-')}", Value((text,), line))
        return
    if text.lower() in _UNSET or (text == "[]" and flag_kinds()[flag] == "words"):
        return
    if flag_kinds()[flag] == "switch":
        _take_switch(given, flag, text, line, called=called, wanted=key not in _INVERTED)
        return
    plain = text.strip("'\" ")
    if flag_kinds()[flag] == "words":
        texts = tuple(plain.strip("[]").replace(",", " ").split())
    elif flag_kinds()[flag] == "integer":
        texts = (plain.removesuffix(".0"),)
    elif key.endswith("_dtype"):
        name = plain.removeprefix("torch.")
        texts = (_DTYPES.get(name, name),)
    else:
        texts = (plain.strip("[]") if key == "window_size" else plain,)
    given.take(flag, Value(texts, line), called=called)
    if key == "num_query_groups":
        given.take("--group-query-attention", Value((), line), called=called)


def _take_switch(given: Given, flag: str, text: str, line: int, *, called: str, wanted: bool) -> None:
    """Take a Boolean value of the file as a switch; one that is off is not given."""
    word = text.lower()
    if (unknown := unknown_in(text)) is not None:
        given.faults.append(unknown_fault(called[:64], unknown, line))
    elif word not in (*_TRUE, *_FALSE):
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
    given.note("--cp-comm-type is priced as p2p, the ring")
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
            name, "is not priced", allowed=", ".join(map(str, HIERARCHICAL.values())) + " that exchange"
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
        length = given.word("seq-length", "1")
        given.take("--max-position-embeddings", Value((length,), 0), called="seq_length")


def text_of(value: object) -> str:
    """Return a value of a document as the text on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(text_of(one) for one in value[:64]) + "]"
    return str(value)[:20_000]
