"""Exporter of TRL: accelerate's own file for the mesh, and a YAML of SFTConfig's and ModelConfig's fields.

Names: TRL 1.16.0, trainer/sft_config.py and trainer/model_config.py, which reads transformers'
TrainingArguments next to accelerate's own file.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.launchers.images import (
    adapted_pattern,
    has_images,
)
from meshwright.launchers.target import Target, pads, pads_to_longest
from meshwright.launchers.transformers.export import TrainerFiles, Values, keeps_fp32
from meshwright.profiles.adapters import class_targets, names_every, parted
from meshwright.profiles.requirements import Requirement, packages
from meshwright.profiles.storage import WHOLE_PRECISIONS


class TrlFiles(TrainerFiles):
    """TRL's scripts of supervised fine-tuning, DPO and KTO."""

    launcher = "trl"
    product = "TRL 1.16.0 on accelerate 1.15.0"
    file = "trl_KIND.yaml"
    command = """\
    -m trl.scripts.KIND --config "${here}/trl_KIND.yaml" \\
    --model_name_or_path "${MODEL}" --dataset_name "${DATASET}" \\
    --output_dir "${OUTPUT_DIR}" --learning_rate "${LR}" \\
    ${last:+--resume_from_checkpoint "${last%/*}"} "$@"\
"""
    needs = (
        ("MODEL", "the model that was planned: a folder or a name of the hub"),
        ("DATASET", "the data set: a folder or a name of the hub"),
        ("OUTPUT_DIR", "where checkpoints go"),
        ("LR", "the learning rate"),
    )
    batch = (*TrainerFiles.batch, "max_length")
    before = """\
# A run that is started again goes on from the last checkpoint that is whole.
last="$(find "${OUTPUT_DIR}" -path '*/checkpoint-*/trainer_state.json' 2>/dev/null |
    sort -V | tail -n 1 || true)"
"""
    others = (
        "deepspeed", "fsdp", "fsdp_config", "load_in_4bit", "load_in_8bit", "lora_modules_to_save",
        "lora_r", "padding_free", "parallelism_config", "torch_compile", "torch_dtype", "use_liger_kernel",
        "use_peft",
    )  # fmt: skip

    def own(self, target: Target) -> Values:
        """Return packing, or what answers are compared with; weights in bf16 if no copy of them was priced.

        fp32 is for FSDP's shards, or autocast's weights.
        """
        batching = self._batching(target) if self.kind(target) == "sft" else self._answers(target)
        return {**batching, "dtype": "float32" if keeps_fp32(target) else "bfloat16"}

    @staticmethod
    def _answers(target: Target) -> Values:
        """Return the fields of DPOConfig and KTOConfig; adapters are their own reference, turned off."""
        own: Values = {"precompute_ref_log_probs": target.workload.reference == "none"}
        if target.workload.sample == "unpaired":  # answers of one batch estimate the divergence of the next
            own["train_sampling_strategy"] = "sequential"
        return own

    @staticmethod
    def _batching(target: Target) -> Values:
        """Return TRL's packing of documents into sequences; cut at their ends, no batch is flattened."""
        if pads_to_longest(target):
            return {"packing": False}
        if pads(target) or has_images(target):  # images are not packed (trainer/sft_trainer.py:779)
            return {"packing": False, "pad_to_multiple_of": target.workload.seq_length}
        return {
            "packing": True,
            "packing_strategy": "wrapped" if target.workload.lengths is None else "bfd",
        }

    def adapted(self, target: Target) -> Values:
        """Return ModelConfig's names of adapted layers.

        A list of one becomes a word, which peft treats as a pattern of whole paths (trainer/utils.py).
        """
        targets, parameters = parted(target.workload.lora_targets)
        words = class_targets(target.model, targets)
        listed = list(words) * (2 if len(words) == 1 else 1)
        listed = [adapted_pattern(target, targets)] if has_images(target) else listed
        named = "all-linear" if names_every(targets) else listed
        apart = {"lora_target_parameters": list(parameters)} if parameters else {}
        return {**({"lora_target_modules": named} if targets else {}), **apart, **super().adapted(target)}

    def frozen(self, target: Target) -> Values:
        """Return 16-, 8- or 4-bit weights next to adapters of peft."""
        base = target.workload.base_precision
        values: Values = {"use_peft": True, "dtype": "float32" if base == "fp32" else "bfloat16"}
        if base == "int8":
            values["load_in_8bit"] = True
        elif base not in WHOLE_PRECISIONS:
            values |= {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "use_bnb_nested_quant": base == "nf4-double",
                "bnb_4bit_quant_storage": "bfloat16",  # FSDP cuts floats alone
            }
        return values

    def packages(self, target: Target) -> Iterator[Requirement]:
        """Yield the trainer's packages, and that of the attention kernel."""
        yield from super().packages(target)
        if str(self.attention(target)["attn_implementation"]).startswith("flash"):
            yield packages()["FlashAttention or kernels"]


export = TrlFiles().export
