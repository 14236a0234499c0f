"""Every value of an exported folder, changed one at a time: what the launcher's judge does not notice.

A change is another value that the launcher would take, so that only the meaning is wrong: twice a size, the
opposite of a switch, another word of the same kind. The judge has noticed when it refuses the files or sees
another plan. What it does not notice stands in ``BLIND``, each with its reason.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

Files = Mapping[str, str]
SCRIPTS = (".sbatch", ".md")
# Of words that stand for a choice, another choice; of all others a word that is none.
WORDS = {
    "true": "false", "false": "true", "null": "1",
    "RMSNorm": "LayerNorm", "LayerNorm": "RMSNorm", "rope": "learned_absolute", "yarn": "rope",
    "learned_absolute": "rope", "vanilla": "learnable", "learnable": "vanilla", "softmax": "sigmoid",
    "sigmoid": "softmax", "seq_aux_loss": "aux_loss", "aux_loss": "seq_aux_loss", "full": "selective",
    "selective": "full", "uniform": "block", "block": "uniform", "torch.float32": "torch.bfloat16",
    "torch.bfloat16": "torch.float32", "bf16_mixed": "fp16_mixed", "adam": "sgd", "fused": "flash",
    "flash": "fused", "transformer_engine": "local", "torch_dist": "torch", "p2p": "a2a", "a2a": "p2p",
    "optim_grads_params": "optim_grads", "alltoall": "allgather", "allgather": "alltoall", "bf16": "fp16",
    "bfloat16": "float16", "fp16": "bf16", "sdpa": "eager", "flash_attention_2": "sdpa",
    "FULL_STATE_DICT": "SHARDED_STATE_DICT", "SHARDED_STATE_DICT": "FULL_STATE_DICT",
    "adamw_torch_fused": "adamw_torch", "adamw_bnb_8bit": "adamw_torch", "adamw_torch_8bit": "adamw_torch",
    "float32": "bfloat16", "wrapped": "bfd", "nf4": "fp4", "fsdp_dtensor": "torch_dist", "fp32": "bf16",
    "1F1B": "GPipe", "Interleaved1F1B": "LoopedBFS", "REDUCE_SCATTER": "ALL_REDUCE", "1f1b": "afab",
    "ALL_REDUCE": "REDUCE_SCATTER", "afab": "1f1b", "FSDP": "MULTI_GPU", "MULTI_GPU": "FSDP",
    "TRANSFORMER_BASED_WRAP": "NO_WRAP", "cpu": "none", "nvme": "cpu", "INDUCTOR": "EAGER",
    "fp8": "bf16", "none": "full", "lora": "full", "fa2": "sdpa", "silu": "gelu", "default": "sdpa",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One value of one file, changed."""

    key: str
    old: object
    new: object
    files: Files

    def __str__(self) -> str:
        """As it is printed."""
        return f"{self.key}: {self.old} -> {self.new}"


def changes(files: Files) -> Iterator[Change]:
    """Every value of every file but the scripts, changed alone."""
    for name, text in files.items():
        for key, old, new, changed in _of_file(name, text):
            yield Change(key, old, new, {**files, name: changed})


Found = tuple[str, object, object, str]  # key, old and new value, and the file's new text


def _of_file(name: str, text: str) -> Iterator[Found]:
    if name.endswith("_args.sh"):
        yield from _of_arguments(text)
    elif name.endswith((".yaml", ".yml")):
        comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        for key, old, new, tree in _of_tree(yaml.load(text, yaml.CSafeLoader)):
            yield key, old, new, comment + yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=True)
    elif name.endswith(".json"):
        for key, old, new, tree in _of_tree(json.loads(text)):
            if not key.startswith("_"):
                yield key, old, new, json.dumps(tree)
    elif name.endswith(".toml"):
        yield from _of_toml(text)
    elif name.endswith(".py"):
        yield from _of_module(text)


def _of_arguments(text: str) -> Iterator[Found]:
    """``--name value`` or ``name=value``, one a line; a switch is left out."""
    lines = text.splitlines(keepends=True)
    begin = next(at for at, line in enumerate(lines) if line.endswith("ARGS=(\n")) + 1
    end = lines.index(")\n", begin)
    for at in range(begin, end):
        words = shlex.split(lines[at], comments=True)
        if not words:
            continue
        if words[0].startswith("--"):
            key, values = words[0], words[1:]
            new = [str(other(value)) for value in values]
            line = f"    {shlex.join([key, *new])}\n" if values else ""
        else:
            key, _, value = words[0].partition("=")
            values, new = [value], [str(other(value))]
            line = f"    {shlex.quote(f'{key}={new[0]}')}\n"
        yield key, " ".join(values), " ".join(new), "".join([*lines[:at], line, *lines[at + 1 :]])


def _of_tree(tree: object, path: str = "") -> Iterator[tuple[str, object, object, object]]:
    """Every leaf of a mapping, changed alone, with the whole tree around it."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            for name, old, new, part in _of_tree(value, f"{path}.{key}" if path else str(key)):
                yield name, old, new, {**tree, key: part}
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict | list):
        for at, value in enumerate(tree):
            for name, old, new, part in _of_tree(value, path):
                yield name, old, new, [*tree[:at], part, *tree[at + 1 :]]
    elif isinstance(tree, list):
        new = [other(value) for value in tree]
        yield path, tree, new, new
    else:
        new = other(tree)
        yield path, tree, new, new


def _of_toml(text: str) -> Iterator[Found]:
    """Lines ``name = value`` of a TOML."""
    lines, table = text.splitlines(keepends=True), ""
    for at, line in enumerate(lines):
        if line.startswith("["):
            table = line.strip("[]\n")
        elif " = " in line and not line.startswith("#"):
            name, _, value = line.strip().partition(" = ")
            try:
                old = tomllib.loads(f"x = {value}")["x"]
            except tomllib.TOMLDecodeError:
                continue  # a list of many lines
            new = other(old)
            changed = [*lines[:at], f"{name} = {json.dumps(new)}\n", *lines[at + 1 :]]
            yield f"{table}.{name}", old, new, "".join(changed)


def _of_module(text: str) -> Iterator[Found]:
    """Constants that a module assigns or passes by name."""
    rows = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        named: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named = [(node.targets[0].id, node.value)]
        elif isinstance(node, ast.keyword) and node.arg:
            named = [(node.arg, node.value)]
        elif isinstance(node, ast.Dict):
            named = [
                (str(key.value), value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
        for name, value in named:
            if isinstance(value, ast.Constant):
                new = other(value.value)
                row, end = rows[value.lineno - 1], value.end_col_offset
                head, tail = row.encode()[: value.col_offset].decode(), row.encode()[end:].decode()
                changed = [*rows[: value.lineno - 1], f"{head}{new!r}{tail}", *rows[value.lineno :]]
                yield name, value.value, new, "".join(changed)


def other(value: object) -> object:  # noqa: PLR0911 - one answer a kind
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 or 1
    if value is None:
        return 1
    text = str(value)
    if re.fullmatch(r"-?\d+", text):
        return str(int(text) * 2 or 1)
    if re.fullmatch(r"-?\d+\.\d*(e-?\d+)?|\d+e-?\d+", text):
        return str(float(text) * 2 or 1.0)
    if "|" in text:
        return _moved(text)
    return WORDS.get(text, f"{text}x")


def _moved(layout: str) -> str:
    """A pipeline layout of which a layer has moved to the next stage; it is lost where none has two."""
    place = [*re.finditer(r"t(?:\*(\d+))?", layout)]
    counts = [int(one[1] or 1) for one in place]
    first = next((at for at, count in enumerate(counts) if count > 1), None)
    if first is None:
        return layout.replace("t|", "|", 1)
    second = first + 1 if first + 1 < len(place) else first - 1
    pieces = {place[first].span(): counts[first] - 1, place[second].span(): counts[second] + 1}
    for (begin, end), count in sorted(pieces.items(), reverse=True):
        layout = f"{layout[:begin]}t*{count}{layout[end:]}"
    return layout


# --------------------------------------------------------------------------------------------------
# What no judge can notice, by the beginning of its name: no change of it was noticed in any plan.

_RUN = "of the run: data, logs, checkpoints, learning rates, seeds; no plan and no price hangs on it"
_WRITTEN_OVER = "the launcher writes over it what another value of the same file says, which is judged"
_EITHER = (
    "stands twice, and the launcher takes either; both at once are judged by the plans of other stages"
)
_DEFAULT = "the launcher's own default; what leaving it out leads to is judged"
_HOST = "how a buffer on the host or a drive is used; its size is asked of the memory's tests"
_START = "of accelerate's start: the ranks, nodes and addresses that the command line says again"
_TRAINER = ("ddp_timeout", "logging_steps", "max_grad_norm", "save_steps")
_ADAPTERS = "how far adapters count, and what of them is dropped: their sizes and their base are priced"
_SHORT = "positions beyond those of a sequence cost nothing"
BLIND: Mapping[str, Mapping[str, str]] = {
    "megatron-bridge": {
        "ddp.grad_reduce_in_fp32": _WRITTEN_OVER,
        "ddp.use_megatron_fsdp": _EITHER,
        "dist.use_megatron_fsdp": _EITHER,
        "checkpoint.dist_ckpt": _RUN,
    },
    "megatron-lm": {
        "--accumulate-allreduce-grads": _DEFAULT,
        "--attention-backend": "which kernel is asked for by which name is a test of the exporter's own",
        "--max-position-embeddings": "positions beyond a sequence cost nothing; learned ones are built",
    },
    "deepspeed": {
        **dict.fromkeys(("gradient_clipping", "steps_per_print"), _RUN),
        **dict.fromkeys(("compute_environment", "machine_rank", "main_training", "rdzv_backend"), _START),
        **dict.fromkeys(("zero_optimization.offload_", "zero_optimization.sub_group_size", "aio."), _HOST),
    },
    "trl": {
        "bnb_4bit_quant_storage": "the type of elements that hold 4-bit weights, which nothing here counts",
        **dict.fromkeys(_TRAINER, _RUN),
        **dict.fromkeys(("machine_rank", "main_training", "rdzv_backend"), _START),
        **dict.fromkeys(("lora_alpha", "lora_dropout"), _ADAPTERS),
    },
    "llama-factory-accelerate": {
        **dict.fromkeys(_TRAINER, _RUN),
        **dict.fromkeys(("machine_rank", "main_training", "rdzv_backend"), _START),
        **dict.fromkeys(("lora_alpha", "lora_dropout"), _ADAPTERS),
    },
    "axolotl": {
        **dict.fromkeys((*_TRAINER, "auto_resume_from_checkpoints"), _RUN),
        **dict.fromkeys(("lora_alpha", "lora_dropout"), _ADAPTERS),
    },
    "llama-factory": dict.fromkeys(_TRAINER, _RUN),
    "ms-swift": {
        "--attention_backend": "which kernel is asked for by which name is a test of the exporter's own",
        "--torch_dtype": _WRITTEN_OVER,
        "--gradient_accumulation_fusion": "ms-swift takes it back where apex is not installed, as here",
        **dict.fromkeys(("--lora_alpha", "--lora_dropout"), _ADAPTERS),
    },
    "accelerate": dict.fromkeys(("machine_rank", "main_training", "rdzv_backend"), _START),
    "torchtitan-0.3": {
        **dict.fromkeys(("max_norm", "std", "LOAD_BALANCE"), _RUN),
        **dict.fromkeys(("name", "flavor"), "the module registers its model whatever it is called"),
        "MAX_SEQ_LEN": _SHORT,
        "MODEL_FAMILY": "for readers: the module imports the registry of the family that it names",
        **dict.fromkeys(("max_images_per_batch", "min_pixels"), "a limit on images of the user's data"),
        "ROUTER_BIAS": "for readers: torchtitan's mixtures all have one",
        "model_compile_enabled": "a converter warns without it, and converts all the same",
    },
    "nanotron": {
        **dict.fromkeys(("checkpoints.", "data_stages.", "general.", "logging.", "tokenizer."), _RUN),
        **dict.fromkeys(
            ("optimizer.clip_grad", "optimizer.weight_decay", "optimizer.optimizer_factory"), _RUN
        ),
        **dict.fromkeys(("optimizer.learning_rate_scheduler", "tokens.train_steps", "tokens.val"), _RUN),
        "model.init_method": _RUN,
        "model.ddp_bucket_cap_mb": "torch's own default of a bucket",
        "model.make_vocab_size": "a vocabulary that tensor ranks divide is not padded",
        "model.model_config._attn": "the repository's kernels, which the release does not have",
        "model.model_config.max_position": _SHORT,
    },
    "maxtext": {
        **dict.fromkeys(("base_output_directory", "enable_checkpointing", "log_period", "run_name"), _RUN),
        "steps": _RUN,
        "load_balance_loss_weight": "a loss that costs nothing",
        "norm_topk_prob": "the softmax over the chosen experts adds up to one already",
        **dict.fromkeys(("megablox", "sparse_matmul"), "either kernel of experts drops no token"),
    },
}


def unexplained(launcher: str, tried: Mapping[str, bool]) -> Iterator[str]:
    """Values of which no change was noticed, and which ``BLIND`` does not explain; and what it should not.

    Args:
        launcher: whose files were changed.
        tried: by the name of a value, whether any change of it was noticed.
    """
    known = BLIND.get(launcher, {})
    for key, noticed in tried.items():
        if not noticed and not key.startswith((*known,)):
            yield f"no change of {key} is noticed"
    for begin in known:
        if not any(key.startswith(begin) and not noticed for key, noticed in tried.items()):
            yield f"{begin} is noticed, or not written, though it is said to be blind"
