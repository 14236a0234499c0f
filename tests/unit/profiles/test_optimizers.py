import pytest

from meshwright.profiles.errors import UnknownNameError
from meshwright.profiles.optimizers import OPTIMIZERS, optimizer_named


def test_every_optimizer_names_its_source() -> None:
    assert all(one.source for one in OPTIMIZERS.values())


def test_8_bit_moments_take_a_quarter_of_the_fp32_ones() -> None:
    # two bytes, and two fp32 scales for 256 weights
    assert optimizer_named("adamw-8bit").state_bytes == pytest.approx(2.0 + 8.0 / 256)
    assert optimizer_named("adamw").state_bytes == 8.0


def test_a_projection_of_rank_128_keeps_a_projector_and_two_moments() -> None:
    # 4 (128 * 4096 + 2 * 128 * 11008) of fp32; the projector is on the shorter side
    galore = optimizer_named("galore")
    assert galore.matrix_states(11008, 4096, rank=128) == 4 * (128 * 4096 + 2 * 128 * 11008)
    assert galore.matrix_states(4096, 11008, rank=128) == galore.matrix_states(11008, 4096, rank=128)


def test_moments_of_8_bits_are_those_of_the_projected_gradient() -> None:
    # the projector stays in bf16; of 128 * 11008 elements two bytes each, and two scales for 256
    found = optimizer_named("galore-8bit-bf16").matrix_states(4096, 11008, rank=128)
    assert found == 2 * 128 * 4096 + (2 + 8 / 256) * 128 * 11008


def test_a_rank_above_the_shorter_side_is_that_side() -> None:
    galore = optimizer_named("galore")
    assert galore.matrix_states(64, 4096, rank=128) == galore.matrix_states(64, 4096, rank=64)


def test_apollo_keeps_what_galore_keeps_and_all_rows_of_a_projector_that_is_drawn() -> None:
    # apollo_torch 1.0.3, random_projector.py:164: randn of rank by the shorter side, whatever the rank
    apollo, galore = optimizer_named("apollo"), optimizer_named("galore")
    assert apollo.matrix_states(11008, 4096, rank=128) == galore.matrix_states(11008, 4096, rank=128)
    assert apollo.matrix_states(64, 4096, rank=128) == 2 * galore.matrix_states(64, 4096, rank=64)


def test_adam_mini_keeps_half_of_adamw_of_every_weight() -> None:
    # arXiv:2406.16793, table 1: memory of its states is that of AdamW less 99.9 % of the second moments
    for mini, adamw in (("adam-mini", "adamw"), ("adam-mini-pure-bf16", "adamw-pure-bf16")):
        one, other = optimizer_named(mini), optimizer_named(adamw)
        assert (one.state_bytes, one.end_state_bytes) == (other.state_bytes / 2, other.end_state_bytes / 2)


def test_adamw_with_bf16_states_moves_8_bytes_less_than_the_30_of_fp32_states() -> None:
    assert optimizer_named("adamw-bf16").moved_bytes == 30 - 8


def test_an_unknown_optimizer_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="muon"):
        optimizer_named("muom")
