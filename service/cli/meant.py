"""Options of other tools, and what they are here: ``--lora``, ``--load-in-4bit``, ``--max-length 2048``.

A person types what their trainer calls a thing. Names are compared in lower case, without dashes or
underscores.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.service.requests.parts import long_name
from meshwright.solver.configuration import VARIABLES

_VALUE = "{}"  # of what was typed
EXAMPLE = ("--lora-rank", "16")  # gives way to a rank that is typed
_LORA = " ".join(EXAMPLE)
_NOTHING = ""  # what a plan has anyway: all weights are trained, and every sequence is full

_NAMES = {  # options of ours, and what others call them: {} takes the value, the rest are switches
    "--seq-length {}": "max-length max-seq-length max-seq-len max-sequence-length sequence-length "
    "sequence-len cutoff-len model-max-length block-size context-length context-window context ctx seq",
    "--model {}": "model-name model-name-or-path model-id base-model pretrained-model hf-model llm",
    "--global-batch-size {}": "batch-size train-batch-size total-batch-size batch gbs bs",
    "--pin micro_batch_size={}": "per-device-train-batch-size per-device-batch-size per-gpu-batch-size "
    "train-micro-batch-size-per-gpu local-batch-size micro-batch",
    "--pin num_microbatches={}": "gradient-accumulation-steps gradient-accumulation grad-accum",
    "--pin zero_stage={}": "zero-optimization-stage deepspeed-stage zero",
    "--pin zero_stage=0": "ddp",
    "--pin zero_stage=2": "zero2 zero-2",
    "--pin zero_stage=3": "fsdp fsdp2 full-shard zero3 zero-3",
    "--pin recompute_granularity=full": "gradient-checkpointing activation-checkpointing checkpointing",
    "--allow offload": "offload cpu-offload offload-optimizer optimizer-offload",
    "--lora-rank {}": "lora-r lora-dim peft-lora-r rank r",
    "--lora-target {}": "target-modules lora-target-modules lora-modules",
    _LORA: "lora peft use-peft use-lora adapter adapters",
    f"{_LORA} --base-precision nf4": "qlora use-qlora load-in-4bit 4bit nf4 int4 bnb-4bit",
    f"{_LORA} --base-precision int8": "load-in-8bit 8bit bnb-8bit",
    _NOTHING: "full sft finetune fine-tune finetuning full-finetune full-finetuning pretrain pretraining "
    "packing sample-packing neat-packing",
    "--sample pair --reference frozen": "dpo ipo",
    "--sample pair": "orpo simpo cpo reward reward-model",
    "--sample unpaired --reference frozen": "kto",
    "--precision {}": "dtype torch-dtype mixed-precision",
    "--precision bf16": "bf16 bfloat16",
    "--precision fp16": "fp16 half float16",
    "--precision fp8": "fp8",
    "--precision fp32": "fp32 float32",
    "--optimizer {}": "optim optimizer-name",
    "--launcher {}": "framework trainer backend tool engine",
    "--num-nodes {}": "nnodes num-machines",
    "--gpus-per-node {}": "nproc-per-node ntasks-per-node num-gpus-per-node",
    "--num-gpus {}": "num-processes world-size n-gpus ngpus gpu-count nproc count",
    "--gpu {}": "gpu-type gpu-name device accelerator card",
    "--gpus {}": "hardware",
    "--cluster {}": "instance instance-type machine machine-type node-type",
    "--total-tokens {}": "tokens num-tokens train-tokens dataset-tokens",
    "--deadline-days {}": "deadline days",
    "--gpu-hour-price {}": "price gpu-price price-per-hour cost-per-hour gpu-cost",
    "--objective gpu_hours_per_token": "cheapest",
    "--time-limit-s {}": "timeout time-limit",
    "--save-dir {}": "output output-dir out outdir out-dir",
}
BY_NAME = {name: ours for ours, names in _NAMES.items() for name in names.split()}


def run_together(name: str) -> str:
    """Return a name in lower case without dashes and underscores."""
    return name.lower().replace("-", "").replace("_", "")


_RUN_TOGETHER = {run_together(name): ours for name, ours in BY_NAME.items()}
_VALUED = (  # what others call an option whose value is a name of the table: --method qlora
    "method methods strategy finetuning-type tuner-type train-type training-type peft-type peft-method "
    "adapter-type peft adapter finetune task stage mode rlhf-type quantization quant quantize fsdp"
)
_METHODS = _VALUED.split()
_ON, _OFF = ("true", "yes", "1", "on", "cpu"), ("false", "no", "0", "off", "none", "null")


def meant_by(name: str, value: str | None, *, sizes: str) -> Iterator[tuple[str, str]]:
    """Yield the options, with their values, that one of another tool means here; none: the default.

    Args:
        name: as it was typed: ``--load_in_4bit``.
        value: what was typed after it; None: nothing.
        sizes: the command's option that states a size: ``--pin`` or ``--set``.

    Raises:
        LookupError: nobody calls it so, or it switches something off.
    """
    word = _plain(name)
    if word in _METHODS and value and _plain(value) in BY_NAME:
        word, value = _plain(value), None
    size = _size_of(word) if value is not None else None
    words = _RUN_TOGETHER[run_together(word)] if size is None else f"--pin {size}={_VALUE}"
    if value is not None and value.isdecimal() and value not in (*_ON, *_OFF):
        words = words.replace(_LORA, f"{EXAMPLE[0]} {_VALUE}")  # --lora 16, --qlora 64: the rank
    if _VALUE not in words:
        _require_on(value)
    elif value is None:
        raise LookupError(name)
    typed = [one.replace(_VALUE, value or "") for one in words.split()]
    yield from (
        (sizes if one == "--pin" else one, own) for one, own in zip(typed[::2], typed[1::2], strict=True)
    )


def _size_of(word: str) -> str | None:
    """Return the size that a word names: ``tp``, ``expert-parallel``, ``tensor-model-parallel-size``."""
    name = run_together(long_name(word.replace("model-parallel", "parallel")))
    return next((one for one in VARIABLES if run_together(one) in (name, f"{name}size")), None)


def _require_on(value: str | None) -> None:
    """Require that a switch is turned on: ``--use_peft true``.

    Raises:
        LookupError: it is turned off, or has a value that is no switch's.
    """
    if value is not None and value.lower() not in _ON:
        raise LookupError(value)


def is_off(value: str | None) -> bool:
    """Return whether a value switches something off: ``--use_peft false``."""
    return value is not None and value.lower() in _OFF


def _plain(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")
