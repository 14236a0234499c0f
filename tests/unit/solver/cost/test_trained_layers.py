"""Time and memory of a model of which some layers are trained, against all and none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import outside_bytes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import workload_faults
from tests.problems.pricing import a_layout, a_problem, a_profile

LLAMA = find_model("llama-3.1-8b")
FREEZES, REPLAYS_ALL = "llama-factory-accelerate", "trl"


def priced(
    layers: str,
    framework: str = FREEZES,
    *,
    model: ModelSpec = LLAMA,
    full: bool = True,
    **workload: object,
) -> tuple[Problem, RowPrices, list[str]]:
    problem = a_problem(model, trained_layers=layers, **workload)  # type: ignore[arg-type]
    layout = a_layout(stage_layers=(model.num_layers,), recompute_granularity="full" if full else "none")
    found = price(problem, Columns.of([layout]), a_profile(problem, framework))
    return problem, found, [one.trains for one in LayerLayout.of(model, problem.training).kinds]


def test_states_and_gradients_are_those_of_the_trained_layers_alone() -> None:
    _, found, kinds = priced("30-31")
    assert kinds == ["below", "trained"]
    for name in ("gradients_bytes", "optimizer_bytes"):
        below, trained, embedding, head = getattr(found, name)[0]
        assert (below, embedding, head) == (0.0, 0.0, 0.0)
        assert trained > 0.0


def test_badam_keeps_an_fp32_copy_and_moments_of_its_layer_and_gradients_in_bf16() -> None:
    # badam 1.4, block_optim.py:515: 4 bytes of a copy and 8 of moments, next to bf16 weights and gradients
    of_layer = LLAMA.layer_parameters("dense")
    _, found, kinds = priced("0", optimizer="badam")
    first = kinds.index("trained")
    assert found.optimizer_bytes[0, first] == pytest.approx(12 * of_layer)
    assert found.gradients_bytes[0, first] == pytest.approx(2 * of_layer)
    assert found.weights_bytes[0, : len(kinds)] == pytest.approx([2 * of_layer] * 2)
    assert found.optimizer_bytes[0].sum() == found.optimizer_bytes[0, first]


ENDS = ("embed_tokens", "lm_head")


def test_layers_that_are_drawn_anew_leave_moments_of_all_and_gradients_of_those_drawn() -> None:
    # Axolotl's LISA: two of 32 layers have gradients; each of them ends with 4 bytes of two moments in bf16
    workload: dict[str, Any] = {"trained_modules": ENDS, "optimizer": "adamw-pure-bf16"}
    _, fixed, kinds = priced("0-1", "axolotl", **workload)
    _, drawn, _ = priced("0-1", "axolotl", framework_options={"redraws_layers": True}, **workload)
    frozen, trained = kinds.index("frozen"), kinds.index("trained")
    of_layer = LLAMA.layer_parameters("dense")
    assert drawn.optimizer_bytes[0, [frozen, trained]] == pytest.approx(4 * of_layer)
    assert fixed.optimizer_bytes[0, frozen] == drawn.gradients_bytes[0, frozen] == 0.0
    for name in ("gradients_bytes", "weights_bytes", "activation_bytes", "backward_s", "tail_s"):
        assert (getattr(drawn, name) == getattr(fixed, name)).all(), name


@pytest.mark.parametrize(
    ("launcher", "layers", "modules"),
    [
        ("trl", "", ()),
        ("axolotl", "", ()),
        ("axolotl", "0-1", ()),
        ("llama-factory-accelerate", "0-1", ENDS),
    ],
)
def test_layers_are_drawn_anew_under_axolotl_next_to_trained_ends(
    launcher: str, layers: str, modules: tuple[str, ...]
) -> None:
    options = {"redraws_layers": True}
    problem = a_problem(LLAMA, trained_layers=layers, trained_modules=modules, framework_options=options)
    faults = workload_faults(replace(problem, launcher=launcher), launcher_capabilities(launcher))
    assert "/workload/framework_options/redraws_layers" in [one.pointer for one in faults]


def test_below_the_first_trained_layer_there_is_no_backward_pass_and_nothing_is_kept() -> None:
    _, found, kinds = priced("30-31")
    below, trained = kinds.index("below"), kinds.index("trained")
    for name in ("backward_s", "replay_s", "activation_bytes", "checkpoint_bytes"):
        assert getattr(found, name)[0, below] == 0.0 < getattr(found, name)[0, trained], name
    assert found.backward_s[0, len(kinds)] == 0.0  # nor has the embedding one


def test_a_trained_embedding_sends_gradients_through_all_layers() -> None:
    _, found, kinds = priced("30-31", trained_modules=("embed_tokens",))
    assert kinds == ["frozen", "trained"]
    assert found.backward_s[0, 0] > 0.0 < found.activation_bytes[0, 0]
    assert found.optimizer_bytes[0, 2] > 0.0 == found.optimizer_bytes[0, 3]


@pytest.mark.parametrize(("framework", "reached"), [(FREEZES, False), ("axolotl", True)])
def test_a_trained_head_sends_gradients_through_all_layers_under_axolotl(
    framework: str, *, reached: bool
) -> None:
    problem = replace(
        a_problem(LLAMA, trained_layers="none", trained_modules=("lm_head",)), launcher=framework
    )
    layout = a_layout(stage_layers=(LLAMA.num_layers,))
    found = price(problem, Columns.of([layout]), a_profile(problem, framework))
    assert {*problem.training} == {"frozen" if reached else "below"}
    for name in ("backward_s", "activation_bytes"):
        assert bool(getattr(found, name)[0, 0] > 0.0) is reached, name
    assert found.backward_s[0, 1] == 0.0  # of the embedding: none of its weights is trained


def test_a_frozen_layer_has_one_of_two_products_in_its_backward_pass() -> None:
    _, found, kinds = priced("0", full=False)
    frozen, trained = kinds.index("frozen"), kinds.index("trained")
    assert 0.45 < found.backward_s[0, frozen] / found.backward_s[0, trained] < 0.7
    assert found.activation_bytes[0, frozen] < found.activation_bytes[0, trained]


@pytest.mark.parametrize(("framework", "replays"), [(FREEZES, False), (REPLAYS_ALL, True)])
def test_llama_factory_checkpoints_trained_layers_alone(framework: str, *, replays: bool) -> None:
    _, found, kinds = priced("0", framework)
    frozen = kinds.index("frozen")
    kept, whole = found.checkpoint_bytes[0, frozen], found.activation_bytes[0, frozen]
    assert (kept < 0.1 * whole) if replays else (kept == whole)
    assert bool(found.replay_s[0, frozen] > 0.0) is replays


def test_layers_that_are_all_trained_have_the_states_of_training_all() -> None:
    _, every, _ = priced("")
    _, named, kinds = priced("0-31", trained_modules=("embed_tokens", "lm_head"))
    assert kinds == ["trained"]
    for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activation_bytes", "backward_s"):
        assert getattr(named, name).tolist() == getattr(every, name).tolist(), name


def test_counts_and_flops_are_those_of_what_is_trained() -> None:
    one, _, _ = priced("31")
    all_of_them, _, _ = priced("")
    layer = (LLAMA.num_parameters() - 2 * 128256 * 4096 - 4096) // 32
    assert one.model_figures["num_trainable_parameters"] == layer
    assert one.model_flops_per_token < 0.45 * all_of_them.model_flops_per_token
    ends, _, _ = priced("none", trained_modules=("lm_head",))
    assert ends.model_figures["num_trainable_parameters"] == 128256 * 4096


def test_the_host_keeps_the_states_of_the_trained_layers() -> None:
    def on_host(layers: str) -> float:
        problem = a_problem(LLAMA, trained_layers=layers)
        layout = a_layout(
            stage_layers=(32,), data_parallel_size=8, zero_stage=3, zero_shard_size=8, offload="optimizer"
        )
        return float(
            outside_bytes(context_of(problem, Columns.of([layout]), a_profile(problem, "deepspeed"))).host[
                0
            ]
        )

    assert on_host("28-31") == pytest.approx(on_host("0-31") / 8, rel=0.05)


def test_experts_next_to_dense_layers_are_kinds_of_their_own() -> None:
    model = find_model("deepseek-v2-lite")
    kinds = LayerLayout.of(model, a_problem(model, trained_layers="0,26").training)
    assert [(one.kind, one.trains) for one in kinds.kinds] == [
        ("moe", "frozen"), ("dense", "trained"), ("moe", "trained"),
    ]  # fmt: skip
    assert kinds.cumulative[-1].tolist() == [25, 1, 1]
