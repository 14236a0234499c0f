"""Tools with arguments of transformers' Trainer: a record each, which a relative replaces in part.

Names and defaults: transformers' ``TrainingArguments``; LLaMA-Factory 0.9.5 (hparams, model/adapter.py);
ms-swift 4 (arguments/base_args); TRL 1.16 (trainer/sft_config.py); DeepSpeed-Chat (``read_chat``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from meshwright.launchers.images import DEFAULT_PIXELS, LLAMA_FACTORY_PARTS, LLAMA_FACTORY_PIXELS
from meshwright.launchers.ms_swift.export import FROZEN_ARGUMENTS, MAX_PIXELS
from meshwright.profiles.towers import FrozenPart

# Weights as loaded: fp32 unless bf16 is named; in their own type unless another is; bf16 always; or cast up
# to fp32 where they are trained, unless ``pure_bf16`` is on.
Loaded = Literal["fp32", "own", "bf16", "cast up"]
# What keeps packed documents apart: ``neat_packing``, or ``padding_free``, which goes with packing.
Packing = Literal["", "neat", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool with arguments of the Trainer: how it is known, its defaults, and how it trains."""

    name: str
    launcher: str = "accelerate"  # of its replicas and meshes
    programs: tuple[str, ...] = ("transformers", "trl")  # tables of its arguments (launchers.flags)
    starts: tuple[str, ...] = ()  # words of the programs that are its own
    names: tuple[str, ...] = ()  # arguments and sections that only it has
    is_script: bool = False  # a person's own, which may do anything
    is_fork: bool = False  # a script with the names of a tool, whose defaults may be others
    needs_do_train: bool = False  # without it, only evaluates
    micro: int = 8  # samples of a micro-batch
    older_micro: str = ""  # another name of that argument
    batch: int = 0  # samples of a step that it accumulates; 0: one micro-batch
    length: int | None = None
    limit: str = "max_length"  # the argument of the length
    no_limit: str = "max_seq_length of the training script"  # which the user has to supply
    packing: Packing = ""
    recomputes: bool = False
    keeps: str = ""  # a switch of its own that turns recomputation off
    loads: Loaded = "fp32"
    types: Mapping[str, str] = field(default_factory=dict)  # its words for types of weights, by torch's
    makes_chunks: bool = False  # of logits, as TRL's trainers do
    tuner: str = "full"
    dropout: float = 0.0  # of adapters' inputs
    pefts: bool = False  # uses peft's own adapters by default
    packs: bool = False  # weights of few bits in the compute type, which FSDP cuts
    freezes_stored: bool = False  # checkpoints in GPTQ, AWQ and AQLM are bases of adapters
    freezes_layers: bool = False  # ``finetuning_type: freeze``, and LLaMA-Pro's blocks
    rotates: bool = False  # OFT is one of its kinds of adapters
    own_galore: bool = False  # ``use_galore``, in place of the Trainer's optimizers
    parts: Mapping[FrozenPart, str] = field(default_factory=dict)  # switches that freeze parts of a tower
    pixels: str = ""  # the argument of the largest image
    most_pixels: int = 0  # its default


PLAIN = Tool(name="transformers", is_script=True, pefts=True)
LLAMA_FACTORY = Tool(
    name="LLaMA-Factory",
    launcher="llama-factory-accelerate",
    programs=("llama-factory", "transformers"),
    starts=("llamafactory",),
    names=("finetuning_type", "stage"),
    needs_do_train=True,
    length=2048,
    limit="cutoff_len",
    packing="neat",
    recomputes=True,
    keeps="disable_gradient_checkpointing",
    loads="cast up",
    tuner="lora",
    packs=True,  # model/model_utils/quantization.py:178
    freezes_stored=True,  # model/model_utils/quantization.py:88
    freezes_layers=True,
    rotates=True,
    own_galore=True,
    parts=LLAMA_FACTORY_PARTS,
    pixels=LLAMA_FACTORY_PIXELS,
    most_pixels=DEFAULT_PIXELS,
)
FORK = replace(
    LLAMA_FACTORY,
    name="a script in LLaMA-Factory's names",
    is_fork=True,
    freezes_stored=False,
    needs_do_train=False,
    length=None,
    limit="max_length",
    packing="",
)
MS_SWIFT = Tool(
    name="ms-swift",
    programs=("ms-swift", "transformers"),
    starts=("swift",),
    names=("tuner_type", "train_type"),
    micro=1,
    older_micro="batch_size",
    batch=16,
    no_limit="max_length, without which no sequence is cut",
    packing="free",  # arguments/base_args.py
    recomputes=True,
    loads="own",
    types={"AUTO": "", "bf16": "bfloat16", "fp16": "float16"},
    tuner="lora",
    dropout=0.05,
    parts=FROZEN_ARGUMENTS,
    pixels=MAX_PIXELS.lower(),
)
TRL = Tool(
    name="TRL",
    starts=("trl/scripts/sft", "trl sft"),
    length=1024,
    recomputes=True,
    makes_chunks=True,
    dropout=0.05,
    pefts=True,
)
TRLS_PREFERENCES = replace(TRL, programs=("trl", "transformers"))  # DPOConfig, KTOConfig, …: as long
CHAT = Tool(name="DeepSpeed-Chat", programs=("trl", "transformers"), micro=16, length=512)
OPEN_INSTRUCT = Tool(  # sequences as long as it says
    name="open-instruct",
    starts=("open_instruct/finetune",),
    names=("dataset_mixer_list", "dataset_mix_dir"),
    loads="bf16",
)
TOOLS = (LLAMA_FACTORY, MS_SWIFT, TRL, OPEN_INSTRUCT)  # names of the later ones win
# LLaMA-Factory's own entry points; others may have other defaults. None: a file of arguments.
ITS_PROGRAMS = re.compile(r"llamafactory|(?:^|/)(?:train|train_bash|run_exp|launcher)\.py$|^$")
# Arguments of TRL's SFTConfig that no other trainer has (TRL 1.16.0, trainer/sft_config.py).
OF_SFT = ("packing", "packing_strategy", "completion_only_loss", "assistant_only_loss")
