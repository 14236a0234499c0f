"""Flags that Megatron-LM's relatives add or call otherwise: what is read of each, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshwright.launchers.flags import flags_of
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.switches import clashes
from tests.launchers.read_figures import figures

SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128"
)
RUN = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES}"
GPT = f"{RUN} --bf16 --vocab-size 512"
LLAMA = GPT.replace("pretrain_gpt", "pretrain_llama")
PAI = f"{LLAMA} --swiglu --train-mode pretrain --epochs 1".replace("--vocab-size 512 ", "")
FIRST = GPT.replace("pretrain_gpt.py", "pretrain_gpt2.py --model-parallel-size 2 --batch-size 8")
DEEP = GPT.replace("torchrun --nproc-per-node 8", "deepspeed --num_nodes 1 --num_gpus 8") + " --deepspeed"
EXPERTS = (
    f"{DEEP} --num-experts 16 --moe-expert-parallel-size 4 --no-pipeline-parallel --zero-stage 0 "
    "--global-batch-size 16"
)


def read(command: str, overrides: Overrides | None = None) -> LaunchFile:
    return read_launch_files(Source(name="a.sh", text=f"{command}\n"), overrides or Overrides())


READ: dict[str, tuple[str, Mapping[str, object]]] = {
    "8 bits by an older switch": (
        f"{GPT} --fp8-hybrid --transformer-impl transformer_engine",
        {"workload.precision": "fp8", "unread": ()},
    ),
    "flags that decide nothing": (
        f"{GPT} --job-name 1 --wandb-id 1 --rank 1 --structured-logs-dir 1 --lr-stable-steps 1",
        {"configuration.num_gpus": 8, "unread": ()},
    ),
    "a fork's switches that are off": (
        f"{GPT} --first-k-dense-replace 0 --context-parallel-algo megatron_cp_algo --stage sft",
        {"model.num_layers": 4},
    ),
    "a switch that is off, and an argument without a price": (
        f"{GPT} --hetero-mode none --optimizer-cuda-graph",
        {"unread": ("--hetero-mode", "--optimizer-cuda-graph")},
    ),
    "FlashAttention by its version": (
        f"{GPT} --use-flash-attn-v2",
        {"workload.framework_options.attention_kernel": "flash2", "unread": ()},
    ),
    "the first Megatron's batch is a replica's": (
        FIRST,
        {"configuration.micro_batch_size": 8, "workload.global_batch_size": 8 * 8 // 2},
    ),
    "Megatron-LLaMA's names": (
        (f"{LLAMA} --swiglu --RMSNorm --layernorm-epsilon 1e-6 --causal-lm "
         "--overlapped-distributed-optimizer"),
        {"model.normalization": "rmsnorm", "configuration.zero_stage": 1, "unread": ()},
    ),
    "a llama by its name with a llama's MLP": (
        f"{LLAMA} --swiglu",
        {"launcher": "megatron-lm", "model.num_layers": 4, "model.gated_mlp": True},
    ),
    "PAI adds tokens to LLama3Tokenizer's": (
        f"{PAI} --patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256",
        {"model.vocab_size": 128_000 + 256},
    ),
    "PAI adds tokens to Qwen2Tokenizer's": (
        f"{PAI} --patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 421",
        {"model.vocab_size": 151_643 + 421},
    ),
    "PAI names a model": (
        f"{PAI} --extra-vocab-size 2400 --load /mnt/deepseek-v2-lite",
        {"model.vocab_size": 102_400},  # all rows of its table
    ),
    "PAI states the padded table": (
        f"{PAI} --padded-vocab-size 1024 --extra-vocab-size 256",
        {"model.vocab_size": 1024},
    ),
    "PAI pads samples to the model's length": (
        f"{PAI} --padded-vocab-size 1024 --max-padding-length 128",
        {"workload.seq_length": 128},
    ),
    "PAI's packed data are padded to no length": (
        f"{PAI} --padded-vocab-size 1024 --max-padding-length 64 --dataset LLama-Pretrain-Idxmap",
        {"workload.seq_length": 128},
    ),
    # Layers 2 and 4 of 4; one expert a token, by its probability among 16; the gate has no bias.
    "every other layer of Megatron-DeepSpeed has experts": (
        f"{EXPERTS} --micro-batch-size 2",
        {
            "model.moe.num_dense_layers": 1, "model.moe.frequency": 2, "model.moe.num_experts": 16,
            "model.moe.top_k": 1, "model.moe.normalized_top_k": False, "model.moe.router_bias": False,
            "model.moe.ffn_hidden_size": 4 * 512,
            "model.moe.balance_coefficient": 0.1,  # the default of --moe-loss-coeff
            "configuration.expert_parallel_size": 4,
            "workload.framework_options.moe_capacity_factor": 1.0,  # room for their share
        },
    ),
    "a stated balance of experts": (
        f"{EXPERTS} --moe-loss-coeff 0.02",
        {"model.moe.balance_coefficient": 0.02},
    ),
    "no token is dropped": (
        f"{EXPERTS} --disable-moe-token-dropping --topk 2",
        {"workload.framework_options.moe_capacity_factor": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "expected"), READ.values(), ids=READ)
def test_a_relatives_flags_are_read_as_todays(command: str, expected: Mapping[str, object]) -> None:
    assert figures(read(command), expected) == expected


FORK = "belongs to a fork"
NOT_THE_TRAINERS = {
    # MindSpeed-LLM's
    "--first-k-dense-replace 1 --n-shared-experts 2": "which experts",
    "--noop-layers 46,47": "which layers",
    "--post-norm --output-logit-softcapping 30.0": "which layers",
    "--context-parallel-algo ulysses_cp_algo": "other ways to share attention",
    "--swap-optimizer": "what the optimizer keeps",
    "--recompute-activation-function": "what is kept for the backward pass",
    "--enable-bidirectional-pipeline": FORK,  # another schedule
    # Megatron-LM's, without a price
    "--experimental-attention-variant dsa": "other kinds of attention",
    "--export-kd-teacher-load teacher": "which model it learns from",
    # of others
    "--lora-r 8": "which weights are trained",
    "--outer-optimizer nesterov --outer-sync-interval 50": FORK,  # gradients seldom meet
    "--load-in-4bit": FORK,  # though --load… says what is read from a disk
    "--galore-rank 128": FORK,
    "--early-exit-layers 4": FORK,
    "--grad-data-type fp8": FORK,
    "--hetero-mode pp": f"{FORK} .*--ignore",
    # unknown, however harmless they sound
    "--my-log-file 4": FORK,
    "--data-parallel-log 4": FORK,
    "--save-model-parallel-state 4": FORK,
}
REFUSED: dict[str, tuple[str, str]] = {
    **{flags: (f"{GPT} {flags}", f"{flags.split(maxsplit=1)[0]}: line 1.*{what}")
       for flags, what in NOT_THE_TRAINERS.items()},
    "MS-AMP": (f"{GPT} --fp8-hybrid --msamp", "--msamp: line 1: cannot be read: MS-AMP"),
    "experts that all share": (f"{GPT} --enable-shared-expert", "experts"),
    "masked tokens": (f"{GPT} --mlm-probability 0.3", "taught"),
    "halves of a layer": (f"{GPT} --split-transformers", "halves of a layer"),
    "an evaluation": (f"{GPT} --eval-only True", "it trains nothing"),
    "two batches of a replica": (
        f"{FIRST} --micro-batch-size 8", "--batch-size: line 1: Megatron-LM refuses it",
    ),
    "a replica's batch and a step's": (
        f"{FIRST} --global-batch-size 64", "--batch-size: line 1: Megatron-LM refuses it",
    ),
    # LayerNorm and a plain MLP, were it pretrain_gpt.py
    "a llama by its name that no flag describes": (LLAMA, r"pretrain_llama.py: is a llama by its name"),
    "a tokenizer of PAI's without a known size": (
        f"{PAI} --patch-tokenizer-type BaichuanTokenizer --extra-vocab-size 64",
        "tokenizer's own vocabulary.*--set vocab_size=",
    ),
    "samples padded to another length": (
        f"{PAI} --padded-vocab-size 1024 --max-padding-length 64 --dataset LLama-SFT",
        "padded to 64 tokens, not to --seq-length 128",
    ),
    "an MLP next to experts": (
        f"{EXPERTS} --mlp-type residual", "--mlp-type: line 1: cannot be read: an MLP next to its experts",
    ),
    "experts next to tensor ranks": (
        f"{EXPERTS} --tensor-model-parallel-size 2", "next to tensor ranks, which repeat them",
    ),
    "numbers of experts by layer": (
        f"{EXPERTS} --num-experts 8 16", "takes one value, not 2 by layer",
    ),
    "configurations that DeepSpeed tries": (
        GPT.replace("torchrun --nproc-per-node 8", "deepspeed --num_nodes 1 --num_gpus 8 --autotuning=run"),
        "--autotuning.* configurations of its own",
    ),
    "more experts a token than there are": (
        f"{GPT} --num-experts 8 --moe-router-topk 16",
        "--moe-router-topk: line 1: 16 is more than num_experts = 8",
    ),
    "stages that do not divide the GPUs": (
        f"{GPT} --pipeline-model-parallel-size 3",
        "--pipeline-model-parallel-size: line 1: tp × pp × cp = 3 does",
    ),
    "chunks of one stage": (
        f"{GPT} --num-virtual-stages-per-pipeline-rank 2",
        "makes 2 chunks of one stage, which Megatron-LM refuses",
    ),
    "a method without its layers": (
        f"{GPT} --recompute-method uniform", "needs .*: --recompute-num-layers, or no --recompute-method",
    ),
    "two types": (f"{GPT} --fp16", r"contradicts --bf16: .* Allowed: no --fp16"),
    "a recipe with a slip": (f"{GPT} --fp8-format hybrid --fp8-recipe delayd", "Nearest: delayed"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "says"), REFUSED.values(), ids=REFUSED)
def test_what_makes_another_training_is_refused_with_its_flag(command: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        read(command)


def test_masks_of_tokens_to_experts_are_told_by_their_share_of_the_products() -> None:
    # masks of 2 * 128 tokens against products of 2048 columns: 256 / 2048
    told = "12% of the experts' own products here, which are not supported"
    assert any(told in note for note in read(f"{EXPERTS} --micro-batch-size 2").notes)


def test_a_forks_flag_is_ignored_where_that_is_asked() -> None:
    passed = read(f"{GPT} --hetero-mode pp", Overrides(ignored=("--hetero-mode",)))
    assert any("--hetero-mode is ignored" in note for note in passed.notes)


def test_one_of_forty_listed_flags_is_still_refused() -> None:
    # the answer lists 32 of them; what decides the run may be the last
    listed = [name for name, flag in flags_of("megatron-lm").items() if flag.role == "listed"][:40]
    details = " ".join(f"--{name.replace('_', '-')} 1" for name in listed)
    assert len(read(f"{GPT} {details}").unread) == 32
    with pytest.raises(InvalidProblemError, match="--num-layer-list"):
        read(f"{GPT} {details} --num-layer-list 2,2")


@pytest.mark.parametrize(
    ("flags", "kept"),
    [("", "fp16"), ("--grad-reduce-in-bf16", "fp16"), ("--accumulate-allreduce-grads-in-fp32", None)],
)
def test_gradients_of_fp16_are_kept_in_it_and_the_run_is_priced(flags: str, kept: str | None) -> None:
    found = read(f"{RUN} --fp16 --vocab-size 50304 {flags}")
    assert found.workload.framework_options.get("gradient_dtype") == kept
    facts = with_options(framework_facts("megatron-core"), found.workload.framework_options)
    assert [*clashes("megatron-lm", facts, found.model, "fp16")] == []
