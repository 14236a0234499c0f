"""Options that change no price are listed or noted, placeholders of checkpoints read, and packing said."""

from __future__ import annotations

import json

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

MODEL = "meta-llama/Llama-3.1-8B"
FACTORY = f"""model_name_or_path: {MODEL}
stage: sft
do_train: true
finetuning_type: full
deepspeed: z3.json
dataset: d
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
output_dir: out
"""
Z3 = json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3},
                 "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
                 "train_batch_size": "auto"})  # fmt: skip
AXOLOTL = f"""base_model: {MODEL}
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
flash_attention: true
"""
TRL = f"""model_name_or_path: {MODEL}
max_length: 4096
bf16: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
dataset_name: d
"""
SWIFT = (
    "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tensor_model_parallel_size 4 "
    "--micro_batch_size 1 --global_batch_size 16 --max_length 131072 --sequence_parallel true"
)


def read(name: str, text: str) -> LaunchFile:
    files = {"z3.json": Z3, name: text} if "z3.json" in text else {}
    return read_launch_files(Source(name=name, text=text, files=files), Overrides(num_gpus=8))


@pytest.mark.parametrize(
    ("name", "text", "option", "said"),
    [
        ("a.yaml", FACTORY, "use_dft_loss: true\n", "use_dft_loss"),
        ("a.yaml", FACTORY, "use_eaft_loss: true\n", "use_eaft_loss"),
        ("a.yml", AXOLOTL, "gc_steps: -1\n", "gc_steps"),
        ("a.yml", AXOLOTL, "use_dft: true\n", "use_dft"),
        ("a.yml", AXOLOTL, "model_config: {pad_token_id: 0}\n", "model_config.pad_token_id"),
        ("a.yml", AXOLOTL, "model_config: {output_router_logits: true}\n", "output_router_logits"),
        ("a.yaml", TRL, "torch_empty_cache_steps: 4\n", "torch_empty_cache_steps"),
        ("a.sh", SWIFT, " --enable_dft_loss true", "enable_dft_loss"),
    ],
)
def test_an_option_without_a_price_is_said_and_priced_as_without(
    name: str, text: str, option: str, said: str
) -> None:
    plain, found = read(name, text), read(name, text + option)
    assert (found.workload, found.configuration) == (plain.workload, plain.configuration)
    assert any(said in one for one in (*found.notes, *found.unread))


def test_a_change_of_the_model_itself_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidProblemError, match=r"model_config\.hidden_size"):
        read("a.yml", AXOLOTL + "model_config: {pad_token_id: 0, hidden_size: 8192}\n")


@pytest.mark.parametrize(
    ("name", "text", "option", "packed"),
    [
        ("a.yaml", FACTORY, "neat_packing: true\n", "neat_packing"),
        ("a.yaml", FACTORY, "packing: true\n", ""),  # its documents attend to one another
        ("a.yml", AXOLOTL, "sample_packing: true\n", "sample_packing"),
        ("a.yaml", TRL, "packing: true\n", "packing"),
        ("a.yaml", TRL, "packing: true\npacking_strategy: wrapped\n", ""),
        ("a.sh", SWIFT, " --packing true", "packing"),
        ("a.sh", SWIFT, " --packing false", ""),
    ],
)
def test_packing_of_documents_that_attend_to_themselves_alone_is_known(
    name: str, text: str, option: str, packed: str
) -> None:
    assert read(name, text + option).packed == packed


EXPERIMENT = """defaults:
  - train: small
experiment:
  exp_name: run
  load: null
  ckpt_format: torch
  task: {type: train, backend: megatron, entrypoint: ./flagscale/train/train_gpt.py}
  runner: {backend: torchrun, nnodes: 1, nproc_per_node: 8}
action: run
"""
TRAINING = """system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  use_distributed_optimizer: true
  precision: {bf16: true}
  checkpoint:
    load: "${experiment.load}"
    ckpt_format: "${experiment.ckpt_format}"
    pretrained_checkpoint: "${path:??}"
model:
  num_layers: 4
  hidden_size: 1024
  num_attention_heads: 8
  ffn_hidden_size: 4096
  seq_length: 2048
  max_position_embeddings: 2048
  use_rotary_position_embeddings: true
  no_position_embedding: true
  swiglu: true
  normalization: RMSNorm
  untie_embeddings_and_output_weights: true
  disable_bias_linear: true
  micro_batch_size: 1
  global_batch_size: 64
data:
  tokenizer: {tokenizer_type: NullTokenizer, vocab_size: 32000}
"""


def flagscale(experiment: str) -> LaunchFile:
    files = {"train.yaml": experiment, "small.yaml": TRAINING}
    return read_launch_files(Source(name="train.yaml", text=experiment, files=files), Overrides())


def test_flagscales_own_examples_are_read_with_rotary_positions() -> None:
    found = flagscale(EXPERIMENT)
    assert not found.model.learned_position_embeddings
    assert (found.configuration.tensor_parallel_size, found.configuration.data_parallel_size) == (2, 4)


@pytest.mark.parametrize(
    ("said", "other"),
    [
        ("./flagscale/train/train_gpt.py", "flagscale/train/train_rwkv.py"),
        ("action: run", "action: auto_tune"),
        ("backend: megatron", "backend: pi0"),
    ],
)
def test_an_experiment_that_trains_otherwise_is_refused_with_that_one_reason(said: str, other: str) -> None:
    with pytest.raises(InvalidProblemError, match="is not supported") as raised:
        flagscale(EXPERIMENT.replace(said, other))
    assert len(raised.value.errors) == 1
