"""Training on preferences by the trainers' own arguments: what a sample is, and which model scores it.

TRL 1.16.0 (trainer/dpo_trainer.py, kto_trainer.py; experimental/cpo, orpo, bco, tpo), LLaMA-Factory 0.9.5
(train/dpo, kto, rm), ms-swift 4 (arguments/rlhf_args.py), Axolotl 0.19 (core/builders/rl.py, train.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.launchers.reading.fields import Fields
from meshwright.profiles.documents import shown
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.samples import SampleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of training on preferences."""

    sample: SampleKind
    compares: bool = True  # to a reference model
    labels: int = 0  # outputs of its head, in place of logits; 0: logits
    makes_chunks: bool = True  # of logits, where its trainer is TRL's
    compares_logits: bool = False  # all of them, with the reference's, of sequences


_PAIRS = Kind(sample="pair", compares=False)
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("dpo", "ipo"), Kind(sample="pair")),
    **dict.fromkeys(("orpo", "cpo", "simpo"), _PAIRS),
    "kto": Kind(sample="unpaired"),
    "bco": Kind(sample="sequence"),  # each answer through both models, and a classifier of prompts
    "rm": _PAIRS,  # a value head beside the logits, which are made all the same (train/rm/trainer.py)
}
# Classes without logits: one score of a sequence, or two of every token (TRL 1.16:
# trainer/reward_trainer.py; experimental/prm/prm_trainer.py, examples/scripts/prm.py).
REWARD = Kind(sample="pair", compares=False, labels=1)
PROCESS_REWARD = Kind(sample="sequence", compares=False, labels=2)
# Its reference is the third answer, not a model. Without that term's weight the collator leaves it out.
_TRIPLES = Kind(sample="triple", compares=False, makes_chunks=False)
_THIRD = "tpo_alpha"
_TRLS_KINDS = {
    **KINDS, "reward": REWARD, "prm": PROCESS_REWARD, "tpo": _TRIPLES, "mpo": KINDS["dpo"],
}  # fmt: skip
GENERATES = (
    "generates answers while it trains, which files of this trainer are not read for: plan its roles with "
    "kind: post_training"
)
_TRLS = re.compile(
    r"(?:^trl |(?:^|/)(?:trl|examples)/scripts/)([dcmt]po|kto|bco|orpo|reward|prm)(?:_modeling|_vlm)?"
    r"(?:\.py)?$"
)
# LLaMA-Factory 0.9.5 train/sft/workflow.py:56: supervised fine-tuning next to a second model
_ASFT, _OTHER_LOSSES = "use_asft_loss", ("use_dft_loss", "use_eaft_loss")
_COMPARES = Kind(sample="sequence", compares_logits=True)
_STAGES = ("sft", "pt", "pretrain", "")
_LABELS = "num_labels"


def labelled(fields: Fields, model: ModelSpec, kind: Kind | None) -> ModelSpec:
    """Return the model with the head that a kind of training, or ``num_labels``, gives it."""
    said = fields.integer(_LABELS) if fields.has(_LABELS) else 0
    labels = said or (kind.labels if kind else 0)
    return model.scored(labels) if labels else model


def kind_named(fields: Fields, program: str) -> Kind | None:
    """Return the kind of training on preferences that arguments state; None for training on sequences."""
    name = trls_kind(program)
    if program == "swift rlhf":
        name = fields.word("rlhf_type", "dpo")
        _require_known(fields, "rlhf_type", name)
        name = "reward" if name == "rm" else name  # seq_cls with one label (arguments/rlhf_args.py)
    elif fields.has("stage") and not str(fields.raw("stage")).isdecimal():
        stage = fields.word("stage", "")
        name = "" if stage in _STAGES else stage
        if name:
            _require_known(fields, "stage", name)
        if name == "dpo" and fields.choice("pref_loss", "sigmoid") in ("orpo", "simpo"):
            name = "orpo"
    if not name and "llama-factory" in fields.programs and fields.flag(_ASFT):
        return _COMPARES if fields.word("stage", "sft") == "sft" else None
    kind = _TRLS_KINDS.get(name)
    return replace(_TRIPLES, sample="pair") if kind is _TRIPLES and not fields.number(_THIRD, 1.0) else kind


def _require_known(fields: Fields, key: str, name: str) -> None:
    if name not in KINDS:
        allowed = ", ".join(("sft", *KINDS))
        fields.fault(key, f"{shown(name)} {GENERATES}", allowed=allowed)


def trls_kind(program: str) -> str:
    """Return the kind that a script or command of TRL trains; empty for others."""
    found = _TRLS.search(program)
    return found[1] if found else ""


def samples_of(fields: Fields, kind: Kind | None, *, adapts: bool) -> dict[str, Any]:
    """Return a workload's sample and reference; nothing for training on sequences.

    Adapters are turned off where the reference answers, unless the arguments name a model for it.
    """
    if kind is None:
        return {}
    if kind.compares_logits:
        _require_logits(fields)
    if kind.compares and fields.flag("precompute_ref_log_probs"):
        fields.note("precompute_ref_log_probs: the reference scores all samples before the first step")
        return {"sample": kind.sample, "reference": "none"}
    named = next((name for name in ("ref_model", "rl_adapter_ref_model") if fields.raw(name)), None)
    reference = "adapters-off" if adapts and named is None and not kind.compares_logits else "frozen"
    if named == "ref_model":
        fields.note("ref_model is priced as large as the trained model")
    return {"sample": kind.sample, "reference": reference if kind.compares else "none"}


def loss_of(kind: Kind | None) -> dict[str, Any]:
    """Return the option of a loss that compares all logits; nothing for others."""
    return {"loss_kernel": "compared"} if kind is not None and kind.compares_logits else {}


def _require_logits(fields: Fields) -> None:
    """Refuse what leaves a loss of two models' logits without one of them (train/sft/trainer.py:152)."""
    if fields.word("finetuning_type", "lora") == "lora" and not fields.raw("ref_model"):
        fields.fault(
            _ASFT,
            "its trainer makes no second model next to LoRA, and fails (trainer_utils.py create_ref_model)",
            allowed="false, or finetuning_type full",
            nearest="false",
        )
    if fields.flag("enable_liger_kernel"):
        fields.fault(
            _ASFT, "Liger's loss returns no logits to compare", allowed="enable_liger_kernel false"
        )
    for name in _OTHER_LOSSES:
        if fields.flag(name):
            fields.fault(name, f"next to {_ASFT}: one loss is computed", allowed="false", nearest="false")
