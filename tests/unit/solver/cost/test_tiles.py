"""MLPs in tiles: what they keep, hold and compute again, with the arithmetic."""

from dataclasses import replace

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import tiled_again_s
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import layer_activation_bytes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.cost.tiles import mlp_tiles, mlp_weights, summed_bytes
from tests.problems.pricing import a_layout, a_problem, a_profile

LLAMA = find_model("llama-3.1-8b")
TOKENS, HIDDEN, WIDTH = 65_536, 4096, 14_336
WEIGHTS = 3 * HIDDEN * WIDTH


def run(
    tile: int, framework: str = "axolotl", replays: str = "", **layout: object
) -> tuple[Context, RowPrices]:
    options = {"mlp_tile_tokens": float(tile), **({"recompute_modules": replays} if replays else {})}
    problem = a_problem(LLAMA, seq_length=TOKENS, framework_options=options)
    usual = {
        "tensor_parallel_size": 1,
        "stage_layers": (32,),
        "micro_batch_size": 1,
        "num_microbatches": 16,
    }
    columns = Columns.of([replace(a_layout(**usual), **layout)])  # type: ignore[arg-type]
    profile = a_profile(problem, framework)
    return context_of(problem, columns, profile), price(problem, columns, profile)


@pytest.mark.parametrize(("tile", "tiles"), [(32_768, 2), (32_767, 3), (TOKENS, 1)])
def test_tiles_are_as_few_as_have_no_more_tokens(tile: int, tiles: int) -> None:
    assert float(mlp_tiles(run(tile)[0])[0]) == tiles


def test_an_mlp_in_tiles_keeps_its_input_alone() -> None:
    whole, tiled = run(0)[0], run(32_768)[0]
    more = layer_activation_bytes(whole, "dense") - layer_activation_bytes(tiled, "dense")
    # gate before and behind its activation, the other half and the product that is projected back
    assert more[0] == pytest.approx(TOKENS * WIDTH * 8)


def test_selective_recomputation_frees_nothing_more_of_an_mlp_in_tiles() -> None:
    tiled = run(32_768, "megatron-core")[0]
    both = run(32_768, "megatron-core", "mlp", recompute_granularity="selective", recompute_layers=32)[0]
    assert bool(both.selective.all())
    kept, of_both = (layer_activation_bytes(one, "dense")[0] for one in (tiled, both))
    assert of_both == pytest.approx(kept)


def test_more_tiles_hold_less_in_a_backward_pass() -> None:
    two, four = (run(tile)[1].replay_workspace_bytes[0] for tile in (32_768, 16_384))
    # 8 bytes that a tile keeps, and 6 of gradients of the gate, the other half and their product
    assert two - four == pytest.approx(TOKENS * WIDTH * (8 + 6) / 4)


@pytest.mark.parametrize(
    ("framework", "each"),
    [
        ("axolotl", 2 + 3 * 6),  # zeros, to which three tiles' gradients are added
        ("deepspeed", 2 * 6),  # the second and the third are added to the first
    ],
)
def test_gradients_of_tiles_add_up(framework: str, each: int) -> None:
    ctx, _ = run(30_000, framework)
    assert float(mlp_weights(ctx)[0]) == WEIGHTS
    assert float(summed_bytes(ctx)[0]) == WEIGHTS * each


def test_every_tile_is_computed_again() -> None:
    (plain, before), (tiled, after) = run(0), run(32_768)
    again = float(tiled_again_s(tiled, "dense")[0])
    assert float(tiled_again_s(plain, "dense")[0]) == 0.0
    assert after.forward_s[0, 0] == before.forward_s[0, 0]
    assert after.backward_s[0, 0] - before.backward_s[0, 0] == pytest.approx(again, rel=1e-6)
    # 2 FLOPs a token and weight at no more than the peak
    assert again > 2 * TOKENS * WEIGHTS / plain.gpu.peak_bf16_flops


@pytest.mark.parametrize(
    ("model", "more"),
    [("llama-3.1-8b", {"lora_rank": 8}), ("mixtral-8x7b", {}), ("qwen3-vl-8b", {"images_per_sample": 0})],
)
def test_tiles_of_what_is_not_dense_or_not_trained_are_refused(model: str, more: dict[str, int]) -> None:
    options = {"mlp_tile_tokens": 32_768}
    work = {"global_batch_size": 8, "seq_length": 4096, "framework_options": options, **more}
    cluster = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8}]}
    with pytest.raises(InvalidProblemError, match="whole weights of dense language models"):
        parse_problem({"model": model, "cluster": cluster, "workload": work, "launcher": "axolotl"})
