"""A vision tower is priced in the first stage; frozen parts have a forward pass alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.adapters import adapter_parameters
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.towers import FrozenPart, TowerSpec
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.parameters import part_weights, trained_first
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.cost.towers import end_seconds, tower_context
from meshwright.solver.problem import Problem, Workload

TOWER = TowerSpec(
    num_layers=24, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16, patch_size=16,
    patch_inputs=1536, merged_patches=4, projector_matrices=4096 * 8192, projector_vectors=8192,
)  # fmt: skip
MODEL = replace(find_model("llama-3.1-8b"), tower=TOWER)
TOKENS = SequenceLengths(percentiles=((0.0, 1024), (100.0, 1024)))


def _problem(model: ModelSpec = MODEL, images: float = 2.0, frozen: tuple[FrozenPart, ...] = ()) -> Problem:
    return Problem(
        model=model,
        cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=Workload(
            global_batch_size=8,
            seq_length=4096,
            images_per_sample=images,
            image_tokens=TOKENS,
            frozen=frozen,
        ),
        launcher="none",
    )


def _prices(problem: Problem) -> RowPrices:
    config = Configuration(data_parallel_size=8, stage_layers=(32,))
    return price(problem, Columns.of([config]), default_profile(problem.cluster, "none"))


def test_the_tower_is_priced_with_the_embedding_and_changes_no_other_part() -> None:
    plain = _prices(_problem(replace(MODEL, tower=None), images=0.0))
    whole = _prices(_problem())
    for name in ("forward_s", "backward_s", "weights_bytes", "optimizer_bytes", "activation_bytes"):
        before, after = getattr(plain, name), getattr(whole, name)
        assert after[0, -2] > before[0, -2], name
        np.testing.assert_array_equal(np.delete(after, -2, axis=1), np.delete(before, -2, axis=1))
    gained = whole.weights_bytes[0, -2] - plain.weights_bytes[0, -2]
    assert gained == pytest.approx(2.0 * MODEL.tower_parameters())


def test_text_alone_has_the_weights_of_the_tower_and_none_of_its_work() -> None:
    plain = _prices(_problem(replace(MODEL, tower=None), images=0.0))
    seeing = _prices(_problem(images=0.0))
    for name in ("forward_s", "backward_s", "activation_bytes"):
        np.testing.assert_array_equal(getattr(seeing, name), getattr(plain, name))
    gained = seeing.weights_bytes[0, -2] - plain.weights_bytes[0, -2]
    assert gained == pytest.approx(2.0 * MODEL.tower_parameters())


def test_each_further_image_takes_as_long_as_the_one_before() -> None:
    two, three, four = (_prices(_problem(images=n)).forward_s[0, -2] for n in (2.0, 3.0, 4.0))
    assert (four - three) / (three - two) == pytest.approx(1.0, rel=0.1)


def test_a_frozen_tower_has_a_forward_pass_and_weights_alone() -> None:
    plain = _prices(_problem(replace(MODEL, tower=None), images=0.0))
    whole, frozen = _prices(_problem()), _prices(_problem(frozen=("vision", "projector")))
    for name in ("forward_s", "weights_bytes"):
        np.testing.assert_array_equal(getattr(frozen, name), getattr(whole, name))
    for name in ("backward_s", "optimizer_bytes", "gradients_bytes", "activation_bytes"):
        np.testing.assert_array_equal(getattr(frozen, name), getattr(plain, name))


def test_a_trained_projector_behind_a_frozen_tower_keeps_its_own_tensors() -> None:
    problem = _problem(frozen=("vision",))
    config = Columns.of([Configuration(data_parallel_size=8, stage_layers=(32,))])
    ctx = context_of(problem, config, default_profile(problem.cluster, "none"))
    tower = MODEL.tower_parameters()
    trained = trained_first(ctx).dense[0]
    first, _ = part_weights(ctx, ())
    assert first.dense[0] - trained == tower - 4096 * 8192 - 8192
    none, whole = (_prices(_problem(frozen=one)) for one in (("vision", "projector"), ()))
    some = _prices(problem)
    for name in ("backward_s", "activation_bytes"):
        values = [getattr(prices, name)[0, -2] for prices in (none, some, whole)]
        assert values == sorted(set(values)), name


def test_a_frozen_language_model_has_neither_weight_gradients_nor_states() -> None:
    whole, frozen = _prices(_problem()), _prices(_problem(frozen=("language",)))
    assert not frozen.optimizer_bytes[0, [0, -1]].any()
    assert not frozen.gradients_bytes[0, [0, -1]].any()
    assert frozen.weights_bytes[0, -2] == whole.weights_bytes[0, -2]
    assert frozen.backward_s[0, 0] < 0.7 * whole.backward_s[0, 0]
    tower = whole.optimizer_bytes[0, -2] * MODEL.tower_parameters()
    own = MODEL.tower_parameters() + MODEL.embedding_parameters
    assert frozen.optimizer_bytes[0, -2] == pytest.approx(tower / own)


def test_ranks_of_a_split_sequence_share_the_images_and_tensor_ranks_split_layers() -> None:
    problem = _problem()
    profile = default_profile(problem.cluster, "none")
    rows = [
        Configuration(data_parallel_size=8, stage_layers=(32,)),
        Configuration(data_parallel_size=4, context_parallel_size=2, stage_layers=(32,)),
        Configuration(data_parallel_size=4, tensor_parallel_size=2, stage_layers=(32,)),
    ]
    its = tower_context(context_of(problem, Columns.of(rows), profile))
    np.testing.assert_array_equal(its.tokens, [8192.0, 4096.0, 8192.0])
    prices = price(problem, Columns.of(rows), profile)
    assert prices.forward_s[1, -2] < 0.7 * prices.forward_s[0, -2]
    assert prices.weights_bytes[2, -2] < 0.6 * prices.weights_bytes[0, -2]


def test_flops_of_images_count_once_where_the_tower_is_frozen() -> None:
    forward = _problem(frozen=("vision", "projector")).model_flops_per_token
    language = _problem(replace(MODEL, tower=None), images=0.0).model_flops_per_token
    # 2 images of 4,096 patches: 24 layers of 12 h^2 weights and 4 h scores a patch, 1,536 h of pixels.
    patches, h = 2 * 4096, 1024
    layers = 24 * (2 * 12 * h * h + 4 * h * 4096)
    expected = patches * (layers + 2 * 1536 * h) + 2048 * 2 * 4096 * 8192
    assert (forward - language) * 4096 == pytest.approx(expected)
    assert _problem().model_flops_per_token - language > 2.9 * (forward - language)


# --------------------------------------------------------------------------------------------------
# Adapters in the tower, under Qwen3-VL's names.

NAMED = replace(TOWER, model_type="qwen3_5")
IN_TOWER = ("vision.qkv_proj", "vision.o_proj", "vision.up_proj", "vision.down_proj", "projector")


def _adapting(*targets: str) -> Problem:
    problem = _problem(replace(MODEL, tower=replace(NAMED, projector_matrices=4096 * (4096 + 4096))))
    work = replace(problem.workload, lora_rank=8, lora_targets=("q_proj", *targets))
    return replace(problem, workload=work)


def test_adapters_of_a_tower_are_pairs_of_its_layers_and_of_its_projectors_products() -> None:
    def trained(*targets: str) -> float:
        problem = _adapting(*targets)
        config = Columns.of([Configuration(data_parallel_size=8, stage_layers=(32,))])
        return float(
            trained_first(context_of(problem, config, default_profile(problem.cluster, "none"))).dense[0]
        )

    assert trained() == 0.0
    assert trained("vision.qkv_proj") == 24 * 8 * (1024 + 3 * 1024)
    assert trained("vision.up_proj", "vision.down_proj") == 24 * 8 * 2 * (1024 + 4096)
    # a merger of 4 patches: 4 x 1,024 to as many, and these to the language model's 4,096
    assert trained("projector") == 8 * (2 * 4096 + 2 * 4096)
    whole = trained(*IN_TOWER)
    assert whole == adapter_parameters(_adapting().model, 8, IN_TOWER)
    assert whole == 24 * 8 * (4 + 2 + 5 + 5) * 1024 + 8 * 4 * 4096


def test_gradients_pass_a_tower_with_adapters_and_keep_what_they_read() -> None:
    frozen, some, every = (_prices(_adapting(*one)) for one in ((), IN_TOWER[:1], IN_TOWER))
    for name in ("forward_s", "backward_s", "optimizer_bytes", "activation_bytes"):
        values = [getattr(prices, name)[0, -2] for prices in (frozen, some, every)]
        assert values == sorted({*values}), name
        for prices in (some, every):  # no other part changes
            np.testing.assert_array_equal(
                np.delete(getattr(prices, name), -2, axis=1), np.delete(getattr(frozen, name), -2, axis=1)
            )
    np.testing.assert_array_equal(frozen.weights_bytes[0, :-2], every.weights_bytes[0, :-2])


def test_flops_of_a_tower_with_adapters_are_those_of_two_passes_and_of_three_for_scores() -> None:
    forward, passed = (_adapting(*one).model_flops_per_token for one in ((), IN_TOWER))
    # 2 images of 4,096 patches: weights once more for gradients of inputs, scores twice more
    patches, h = 2 * 4096, 1024
    scores = 4 * h * 4096
    more = patches * 24 * (2 * 12 * h * h + 2 * scores) + 2048 * 2 * 4096 * 8192
    assert (passed - forward) * 4096 == pytest.approx(more)


# one product behind 4 patches of 1,024, as Idefics 3 has
IDEFICS = replace(MODEL, tower=replace(TOWER, model_type="idefics3", projector_matrices=4096 * 4096))


@pytest.mark.parametrize(
    ("model", "all_weights", "behind_first"),
    [
        # 4 patches of 1,280 to as many, and these to the language model's 1,536
        (find_model("qwen2-vl-2b"), 5120 * 5120 + 5120 * 1536, 5120 * 1536),  # 34.1 M and 7.9 M
        (IDEFICS, 4096 * 4096, 0),
    ],
)
def test_a_projector_behind_a_frozen_tower_needs_no_gradient_of_its_first_products_input(
    model: ModelSpec, all_weights: int, behind_first: int
) -> None:
    """Nothing in front of it is trained: each token multiplies once more the weights of later products."""
    assert model.tower is not None
    images = model.tower.load(1.0, TOKENS)
    frozen: tuple[FrozenPart, ...] = ("vision", "projector")
    passes = model.image_flops(images, frozen, ("projector",)) - model.image_flops(images, frozen)
    assert passes == pytest.approx(2.0 * images.tokens * behind_first)
    whole = model.image_flops(images, ("vision",)) - model.image_flops(images, frozen)
    assert whole == pytest.approx(2.0 * images.tokens * (all_weights + behind_first))  # of weights, too

    def backward_s(*targets: str) -> float:
        problem = _problem(model, frozen=frozen)
        work = replace(problem.workload, lora_rank=8, lora_targets=("q_proj", *targets))
        columns = Columns.of([Configuration(data_parallel_size=8, stage_layers=(model.num_layers,))])
        ctx = context_of(replace(problem, workload=work), columns, default_profile(problem.cluster, "none"))
        assert model.tower is not None
        return float(end_seconds(ctx, model.tower).backward[0])

    both, alone, passed = (
        backward_s(*one) for one in ((*IN_TOWER[:1], "projector"), ("projector",), IN_TOWER[:1])
    )
    assert backward_s() == 0.0
    assert both - alone == pytest.approx(passed * (1 - behind_first / all_weights))


def test_a_tower_under_adapters_is_stored_in_few_bits_with_all_of_its_linear_layers() -> None:
    """24 layers of 12 h^2 weights and two products of 4,096 x 4,096, half a byte and scales each."""

    def held(base: BasePrecision) -> float:
        problem = _adapting()
        problem = replace(problem, workload=replace(problem.workload, base_precision=base))
        return float(_prices(problem).weights_bytes[0, -2])

    weights = 24 * 12 * 1024**2 + 2 * 4096**2
    # a scale in fp32 for each 64 weights; the table of 16 code points of each matrix is 64 bytes
    narrow = weights * (0.5 + 4 / 64) + (24 * 6 + 2) * 64
    assert held("bf16") - held("nf4") == pytest.approx(2 * weights - narrow, rel=1e-6)
