"""Layer times and memory of Galvatron and Sailor."""

import json
from pathlib import Path

import pytest

from benchmarks.foreign.galvatron import read_galvatron
from benchmarks.foreign.records import LayerProfile, MemoryProfile
from benchmarks.foreign.sailor import read_sailor
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.units import MIB

FILES = Path(__file__).parents[3] / "fixtures" / "foreign"
COMPUTATION = FILES / "galvatron" / "computation_profiling_bf16_llama2-7b_all.json"
MEMORY = FILES / "galvatron" / "memory_profiling_bf16_llama2-7b_all.json"


def test_two_depths_of_galvatron_give_the_time_it_distilled_for_a_layer() -> None:
    profile = read_galvatron(COMPUTATION)
    assert isinstance(profile, LayerProfile)
    # (149.652 ms of 4 layers − 86.661 ms of 2) / 2 = 31.496 ms; the file says 3.93697 ms a sequence × 8
    assert profile.layer_forward_s(micro_batch_size=8, seq_length=2048) == pytest.approx(
        31.496e-3, rel=1e-4
    )
    distilled = next(layer for layer in profile.layers if layer.micro_batch_size == 8)
    assert distilled.forward_s == pytest.approx(8 * 3.9369729995727534e-3)
    assert profile.layer_forward_s(micro_batch_size=64, seq_length=2048) is None


def test_memory_of_galvatron_is_in_mebibytes_and_its_flags_are_read() -> None:
    profile = read_galvatron(MEMORY)
    assert isinstance(profile, MemoryProfile)
    first = profile.ranks[0]
    assert (first.pipeline_parallel_size, first.tensor_parallel_size, first.data_parallel_size) == (1, 1, 8)
    assert first.model_states_bytes == round(904.3330078125 * MIB)
    assert first.sequence_parallel
    assert {rank.full_recompute for rank in profile.ranks} == {False, True}
    layer = next(part for part in profile.parts if part.part == "layer")
    # 202.4 million weights of a Llama-2-7B layer in fp32 and its buffers: 778 MiB
    assert layer.weight_bytes == round(778.2236328125 * MIB)
    assert layer.activation_bytes[8] == round(68.3204345703125 * MIB)
    assert layer.recomputed_activation_bytes == 32 * MIB
    outside = {part.part: part for part in profile.parts}["outside_last_stage"]
    assert outside.model_states_bytes[8] == round(387.872802734375 * MIB)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"layernum[2]_bsz1_seq2048": "15.0 GB"}, "'15.0 GB' is not a number"),
        ({"layernum[2]_bsz1_seq2048": -1.0}, "is out of range"),
        ({"layernum[2]_bsz1_seq2048": 1.0, "other": 1.0}, "'other': expected layernum"),
        ({"1_1_8_sp": {"layernum[1]_bsz8_seq2048_rank0_ms": 1.0}}, "rank 0: expected the figures act"),
        ({"1_1_8_sp": {"what": 1.0}}, "1_1_8_sp, 'what': expected layernum"),
        ({"layertype_0_sp": {"2048": 3}}, "3 is not a JSON object"),
        ({"overlap_coe": 0.5}, "overlap_coe: 0.5 is out of range, expected 1 to 100"),
        ({"strange": 1}, "is not a field of any of Galvatron's profiles"),
    ],
)
def test_a_broken_galvatron_file_names_the_field(
    tmp_path: Path, content: dict[str, object], expected: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError, match=r"^profile.json: ") as raised:
        read_galvatron(path)
    assert expected in str(raised.value)


def test_sailor_layers_carry_model_and_gpu_from_their_folders() -> None:
    profile = read_sailor(FILES / "sailor" / "LLAMA-3-8" / "V100-16" / "profile.json")
    assert isinstance(profile, LayerProfile)
    assert (profile.model, profile.gpu) == ("LLAMA-3-8", "V100-16")
    block = next(layer for layer in profile.layers if layer.layer == 1)
    assert (block.micro_batch_size, block.tensor_parallel_size) == (1, 4)
    assert (block.forward_s, block.backward_s) == (0.1352, 0.2589)
    assert block.update_s is None or block.update_s > 0
