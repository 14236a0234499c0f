import pytest

from meshwright.profiles.errors import UnknownNameError
from meshwright.profiles.optimizers import OPTIMIZERS, optimizer_named


def test_every_optimizer_names_its_source() -> None:
    assert all(one.source for one in OPTIMIZERS.values())


def test_8_bit_moments_take_a_quarter_of_the_fp32_ones() -> None:
    # two bytes, and two fp32 scales for 256 weights
    assert optimizer_named("adamw-8bit").state_bytes == pytest.approx(2.0 + 8.0 / 256)
    assert optimizer_named("adamw").state_bytes == 8.0


def test_a_projection_of_rank_128_keeps_less_than_half_a_byte_for_a_weight_of_a_4096_wide_matrix() -> None:
    # (m r + 2 n r) / (m n) elements of 4 bytes with m = n = 4096: 4 * 3 * 128 / 4096
    assert optimizer_named("galore").matrix_state_bytes(4096, rank=128) == pytest.approx(0.375)


def test_a_projection_without_a_rank_takes_a_quarter_of_the_hidden_size() -> None:
    galore = optimizer_named("galore")
    assert galore.matrix_state_bytes(4096, rank=0) == galore.matrix_state_bytes(4096, rank=1024)


def test_a_projection_never_keeps_more_than_the_whole_moments() -> None:
    assert optimizer_named("galore").matrix_state_bytes(4096, rank=4096) == 8.0


def test_adamw_with_bf16_states_moves_8_bytes_less_than_the_30_of_fp32_states() -> None:
    assert optimizer_named("adamw-bf16").moved_bytes == 30 - 8


def test_an_unknown_optimizer_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="muon"):
        optimizer_named("muom")
