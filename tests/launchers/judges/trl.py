"""TRL on a CPU: the parser of its own script, beside accelerate's judge for the mesh."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # this file has the name of the package

from trl import SFTConfig, get_peft_config  # noqa: E402
from trl.scripts.sft import make_parser  # noqa: E402

sys.path.insert(0, HERE)
import towers  # noqa: E402
from protocol import Case, Seen, serve  # noqa: E402

_spec = importlib.util.spec_from_file_location("accelerate_judge", f"{HERE}/accelerate.py")
accelerate_judge = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(accelerate_judge)

BEFORE = dict(os.environ)
KERNELS = {"flash_attention_2": "flash2", "flash_attention_3": "flash3", "sdpa": "sdpa", "eager": "torch"}


def judge(case: Case) -> Seen:
    """What TRL and accelerate make of their YAML."""
    seen = accelerate_judge.judge(case)
    os.environ.clear()
    os.environ.update(BEFORE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trl_sft.yaml"
        # its bf16 asks for a GPU; ours is checked as text
        text = case["files"]["trl_sft.yaml"]
        if "\nbf16: true\n" not in text or "\nfp16: false\n" not in text:
            raise ValueError("no bf16")
        path.write_text(text.replace("\nbf16: true\n", "\nbf16: false\n") + "use_cpu: true\n")
        words = [
            "--config",
            str(path),
            "--model_name_or_path",
            "m",
            "--dataset_name",
            "d",
            "--output_dir",
            folder,
        ]
        script, sft, model, _ = make_parser().parse_args_and_config([*words, "--learning_rate", "1e-4"])
    _require_whole_sequences(script.dataset_name, sft, has_images=towers.shape_in(text) is not None)
    kernel = model.attn_implementation
    if seen.get("context_parallel_size", 1) > 1:
        if kernel != "sdpa":
            raise ValueError(f"torch's rings do not take {kernel}")
    else:
        seen["facts.attention_kernel"] = KERNELS[kernel]
    adapters = get_peft_config(model)
    targets = adapters.target_modules if adapters else set()
    if isinstance(targets, str):
        raise TypeError(f"{targets} is a pattern of whole paths")  # peft, check_target_module_exists
    nested = "nf4-double" if model.use_bnb_nested_quant else model.bnb_4bit_quant_type
    seen |= {
        "lora_rank": adapters.r if adapters else 0,
        "lora_targets": sorted(targets),
        "trained_modules": sorted((adapters and adapters.modules_to_save) or []),
        "dora": bool(adapters and adapters.use_dora),
        "base_precision": nested
        if model.load_in_4bit
        else "int8"
        if model.load_in_8bit
        else "fp32"
        if adapters and model.dtype == "float32"
        else "bf16",
        "optimizer_bits": 8 if "8bit" in str(getattr(sft.optim, "value", sft.optim)) else 32,
        "loaded_as": model.dtype,
    }
    if sft.gradient_checkpointing:
        seen["recompute_granularity"] = "full"
    if sft.ddp_bucket_cap_mb:
        seen["facts.bucket_bytes"] = sft.ddp_bucket_cap_mb * 2**20
    return seen | {
        "seq_length": sft.max_length,
        "micro_batch_size": sft.per_device_train_batch_size,
        "num_microbatches": sft.gradient_accumulation_steps,
    }


def _require_whole_sequences(dataset: str, sft: SFTConfig, *, has_images: bool) -> None:
    """Images are not packed (trainer/sft_trainer.py:779): their sequences are filled up."""
    filled = not sft.packing and sft.pad_to_multiple_of == sft.max_length
    packed = sft.packing and sft.packing_strategy == "wrapped"
    if dataset != "d" or not (filled if has_images else packed):
        raise ValueError(f"{dataset}, packing {sft.packing} {sft.packing_strategy}")


if __name__ == "__main__":
    serve(judge)
