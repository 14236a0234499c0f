"""Documents of unequal length in launch files: packed or padded where a launcher does it, else refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from meshwright.launchers.export import sequences_in_the_script
from meshwright.launchers.registry import export
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.library import find_model
from meshwright.profiles.sequences import Batching, SequenceLengths
from meshwright.solver.configuration import Configuration
from tests.launchers.cases import LLAMA_70B, plan, target
from tests.launchers.plans import problem_of

# of 8 GPUs: replicas in shards for those that know no other, and a rank's two slices of each document
SHARDS = Configuration(
    data_parallel_size=8, num_microbatches=16, stage_layers=(32,), zero_stage=3, zero_shard_size=8
)
STAGES = replace(
    SHARDS, data_parallel_size=4, num_microbatches=16, micro_batch_size=2, pipeline_parallel_size=2,
    pipeline_schedule="1f1b", stage_layers=(16, 16), zero_stage=1, zero_shard_size=4,
)  # fmt: skip
RINGS = replace(SHARDS, data_parallel_size=4, num_microbatches=32, context_parallel_size=2, zero_stage=1)


def files(launcher: str, config: Configuration, batching: Batching = "packing") -> Mapping[str, str]:
    """Of Llama 3.1 8B on one node and documents of 1 to 4096 tokens."""
    problem = problem_of(launcher, find_model("llama-3.1-8b"), num_nodes=1)
    lengths = SequenceLengths(batching=batching, percentiles=((0.0, 1), (100.0, 4096)))
    batch = config.global_batch_size
    workload = replace(problem.workload, lengths=lengths, global_batch_size=batch, seq_length=8192)
    return export(plan(config), replace(problem, workload=workload), launcher).files


@pytest.mark.parametrize(
    ("launcher", "config", "batching", "lines"),
    [
        ("megatron-lm", RINGS, "packing", ["--sft", "packed already, one sequence"]),
        ("megatron-lm", RINGS, "padding", ["--sft", "each with one conversation"]),
        ("megatron-bridge", RINGS, "packing", [
            "dataset.packed_sequence_specs.packed_sequence_size=8192",
            "dataset.packed_sequence_specs.pad_seq_to_mult=4",  # 2 cp
            "model.calculate_per_token_loss=true"]),
        ("llama-factory", RINGS, "packing", ["neat_packing: true"]),
        ("ms-swift", RINGS, "packing", ["--packing true"]),
        ("axolotl", SHARDS, "packing", ["sample_packing: true"]),
        ("axolotl", SHARDS, "padding", ["sample_packing: false", "pad_to_sequence_len: true"]),
        ("trl", SHARDS, "packing", ["packing: true", "packing_strategy: bfd"]),
        ("trl", SHARDS, "padding", ["packing: false", "pad_to_multiple_of: 8192"]),
        ("axolotl", SHARDS, "padding_to_longest", ["sample_packing: false", "pad_to_sequence_len: false"]),
        ("trl", SHARDS, "padding_to_longest", ["packing: false"]),
        ("ms-swift", STAGES, "padding_to_longest", ["--packing false", "--padding_free false"]),
        ("llama-factory", STAGES, "padding_to_longest", [
            "packing: false",
            # else a rank pads all micro-batches of a step alike; its arguments refuse it next to allgather
            "variable_seq_lengths: true", "moe_token_dispatcher_type: alltoall"]),
        ("accelerate", SHARDS, "padding_to_longest", ["only to the longest of its micro-batch"]),
        ("accelerate", SHARDS, "packing", ["pack whole documents into sequences of 8192"]),
        ("deepspeed", SHARDS, "padding", ["pad every document to 8192 tokens"]),
    ],
)  # fmt: skip
def test_what_makes_the_sequences_is_written(
    launcher: str, config: Configuration, batching: Batching, lines: list[str]
) -> None:
    text = "\n".join(files(launcher, config, batching).values())
    assert [line for line in lines if line not in text] == []


@pytest.mark.parametrize(
    ("launcher", "batching"),
    [("torchtitan", "packing"), ("nanotron", "packing"), ("torchtitan", "padding"), ("ms-swift", "padding"),
     ("megatron-bridge", "padding"), ("megatron-lm", "padding_to_longest"),
     ("megatron-bridge", "padding_to_longest")],
)  # fmt: skip
def test_what_a_launcher_does_otherwise_is_refused_with_what_it_does(
    launcher: str, batching: Batching
) -> None:
    with pytest.raises(RefusedExportError) as caught:
        files(launcher, RINGS, batching)
    found = [one for one in caught.value.errors if one.pointer == "/workload/lengths/batching"]
    assert [one.message.split(":")[0] for one in found] == [f"{launcher} doesn't support {batching}"]


def test_megatron_packs_one_sequence_a_micro_batch() -> None:
    with pytest.raises(RefusedExportError, match=r"micro_batch_size: 2 breaks a rule: .*Allowed: 1$"):
        files("megatron-lm", replace(RINGS, micro_batch_size=2, num_microbatches=16))


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (None, "pack the data into sequences of 4096 tokens"),
        (SequenceLengths(percentiles=((0.0, 1), (100.0, 4096))), "pack whole documents"),
        (SequenceLengths(batching="padding", percentiles=((0.0, 1), (100.0, 4096))), "document to 4096"),
        (
            SequenceLengths(batching="padding_to_longest", percentiles=((0.0, 1), (100.0, 4096))),
            "to the longest of its micro-batch",
        ),
    ],
)
def test_an_export_states_how_a_script_makes_sequences(lengths: SequenceLengths | None, words: str) -> None:
    found = target(LLAMA_70B, Configuration(stage_layers=(80,)), seq_length=4096)
    work = replace(found.workload, lengths=lengths)
    said = sequences_in_the_script(replace(found, problem=replace(found.problem, workload=work)))
    assert words in said
