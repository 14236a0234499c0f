"""Local layers with an attention of their own: what they weigh, take and keep is theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_cluster
from meshwright.profiles.model import LayerShape, ModelSpec
from meshwright.profiles.model_parts import LocalAttention
from meshwright.profiles.model_shapes import model_from_shape, model_to_mapping
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.rules import rules_of

# Five local layers for each global one; global heads are twice as wide, and half as many are of keys.
GLOBAL = ModelSpec(
    name="x", num_layers=6, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=16,
    num_kv_heads=4, head_dim=256, vocab_size=32_000, sliding_window=1024, sliding_window_every=6,
)  # fmt: skip
MIXED = replace(GLOBAL, local_attention=LocalAttention(num_kv_heads=8, head_dim=128))
ALIKE = replace(GLOBAL, sliding_window=None, sliding_window_every=1)
LOCAL = LayerShape("dense", local=True)
WHOLE = LayerShape("dense")


def _problem(model: ModelSpec) -> Problem:
    return Problem(
        model=model,
        cluster=find_cluster("dgx-h100", num_nodes=1),
        workload=Workload(global_batch_size=8, seq_length=8192),
        launcher="none",
    )


def _prices(model: ModelSpec, tp: int = 1) -> RowPrices:
    problem = _problem(model)
    alone = Configuration(
        tensor_parallel_size=tp, data_parallel_size=8 // tp, num_microbatches=tp, stage_layers=(6,)
    )
    profile = default_profile(problem.cluster, "none")
    return price(problem, Columns.of([alone]), profile)


def test_each_layer_has_the_weights_of_its_own_heads() -> None:
    # Queries and output 16 heads of 256 or 128; keys and values 4 of 256 or 8 of 128: 1024 columns each.
    of_global = 2048 * (2 * 16 * 256 + 2 * 1024)
    of_local = 2048 * (2 * 16 * 128 + 2 * 1024)
    mlp, norms = 3 * 2048 * 8192, 2 * 2048
    assert MIXED.parameters_by_layer() == (*[of_local + mlp + norms] * 5, of_global + mlp + norms)
    ends = 2 * 32_000 * 2048 + 2048
    assert MIXED.num_parameters() == 5 * of_local + of_global + 6 * (mlp + norms) + ends


def test_a_model_has_the_flops_of_each_layer_with_its_own_heads_and_its_own_keys() -> None:
    each = {shape: MIXED.forward_flops_of(shape, 8192) for shape in MIXED.shapes()}
    # A local query reads 1 024 keys but for the first 1 023 queries, a global one 4 096.5 on the mean.
    local_keys = 1024 - 1024 * 1023 / (2 * 8192)
    assert each[LOCAL] == 2 * (MIXED.parameters_by_layer()[0] - 4096) + 2 * 16 * 256 * local_keys
    assert each[WHOLE] == 2 * (MIXED.parameters_by_layer()[5] - 4096) + 2 * 16 * 512 * 4096.5
    head = MIXED.head_forward_flops_per_token()
    assert MIXED.model_flops_per_token(8192) == pytest.approx(3 * (5 * each[LOCAL] + each[WHOLE] + head))


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_price_of_either_kind_is_that_of_a_model_which_has_no_other(tp: int) -> None:
    alone = {shape: _prices(MIXED.shaped(shape), tp) for shape in (LOCAL, WHOLE)}
    mixed, kinds = _prices(MIXED, tp), LayerLayout.of(MIXED).kinds
    assert kinds == (LOCAL, WHOLE), "the larger one last"
    for part, shape in enumerate(kinds):
        for name in ("forward_s", "backward_s", "weights_bytes", "activation_bytes", "tail_s"):
            own, single = getattr(mixed, name)[0, part], getattr(alone[shape], name)[0, 0]
            assert own == pytest.approx(single, rel=1e-3 if name == "tail_s" else 1e-12), (name, shape)


def test_a_pipeline_weighs_its_layers_one_by_one() -> None:
    cumulative = LayerLayout.of(MIXED).cumulative
    assert cumulative[5].tolist() == [5, 0]
    assert cumulative[6].tolist() == [5, 1]


def test_tensor_parallelism_divides_the_heads_of_every_layer() -> None:
    model = replace(GLOBAL, local_attention=LocalAttention(num_attention_heads=12))
    assert model.head_counts == (12, 16)
    rows = Columns.of(
        [
            Configuration(tensor_parallel_size=tp, data_parallel_size=8 // tp, stage_layers=(6,))
            for tp in (1, 2, 4, 8)
        ]
    )
    name = "tensor_parallel_size divides the attention heads"
    (rule,) = (one for one in rules_of(_problem(model)) if one.name == name)
    assert np.asarray(rule.violated(rows)).tolist() == [False, False, False, True]  # 8 divides 16, not 12
    assert "12 or 16 heads" in rule.reason


def test_tensor_parallelism_divides_the_mlps_of_layers_that_borrow_keys() -> None:
    problem = _problem(replace(ALIKE, borrowing_layers=2, borrowing_ffn_hidden_size=8196))  # 4 * 2049
    rows = Columns.of([Configuration(tensor_parallel_size=tp, stage_layers=(6,)) for tp in (1, 2, 4, 8)])
    (rule,) = (one for one in rules_of(problem) if one.name == "tensor_parallel_size divides the MLP width")
    assert np.asarray(rule.violated(rows)).tolist() == [False, False, False, True]
    assert "8192 or 8196" in rule.reason or "8196 or 8192" in rule.reason


def test_kinds_that_weigh_the_same_stand_in_the_same_order_on_every_machine() -> None:
    # 32 heads of 128 as 16 of 256, and 8 key/value heads as 4
    alike = LocalAttention(num_attention_heads=32, num_kv_heads=8, head_dim=128)
    model = replace(GLOBAL, local_attention=alike)
    assert len(set(model.parameters_by_layer())) == 1
    assert model.shapes() == (WHOLE, LOCAL)


def test_keys_that_no_layer_is_left_to_lend_are_refused() -> None:
    raw = model_to_mapping(replace(ALIKE, borrowing_layers=5))
    assert model_from_shape(raw).borrowing_layers == 5
    with pytest.raises(InvalidProblemError, match=r"no layer is left to borrow .*: 0 to 5"):
        model_from_shape({**raw, "borrowing_layers": 6})


def test_local_heads_that_their_keys_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(InvalidProblemError, match=r"local_attention\.num_kv_heads: 3 does"):
        replace(GLOBAL, local_attention=LocalAttention(num_kv_heads=3))
    with pytest.raises(InvalidProblemError, match="local layers next to global ones"):
        replace(GLOBAL, sliding_window=None, local_attention=LocalAttention(num_kv_heads=8))
    with pytest.raises(InvalidProblemError, match="is empty"):
        LocalAttention()


def test_layers_that_borrow_keys_have_queries_alone_and_embeddings_of_layers_a_table() -> None:
    model = replace(
        ALIKE, borrowing_layers=2, borrowing_ffn_hidden_size=16_384, layer_embedding_size=64,
        layer_vocab_size=1000,
    )  # fmt: skip
    own = 2048 * (2 * 16 * 256 + 2 * 4 * 256) + 3 * 2048 * 8192
    borrowing = 2048 * 2 * 16 * 256 + 3 * 2048 * 16_384
    both = 2 * 2048 * 64 + 3 * 2048  # a gate and a projection of 64, and three norms
    assert model.parameters_by_layer() == (*[own + both] * 4, *[borrowing + both] * 2)
    tables = 6 * 64 * (1000 + 2048) + 64
    assert model.embedding_parameters == 32_000 * 2048 + tables


def test_what_one_stage_looks_up_for_another_keeps_layers_on_one_stage() -> None:
    model = replace(GLOBAL, layer_embedding_size=64)
    name = "layers with separate embeddings or shared keys are on one stage"
    (rule,) = (one for one in rules_of(_problem(model)) if one.name == name)
    two = Configuration(stage_layers=(3, 3), pipeline_parallel_size=2)
    rows = Columns.of([Configuration(stage_layers=(6,)), two])
    assert np.asarray(rule.violated(rows)).tolist() == [False, True]


def test_borrowed_keys_are_kept_once() -> None:
    alone, borrowing = _prices(ALIKE), _prices(replace(ALIKE, borrowing_layers=2))
    kinds = LayerLayout.of(replace(ALIKE, borrowing_layers=2)).kinds
    assert [one.borrows for one in kinds] == [True, False]
    spared = alone.activation_bytes[0, 0] - borrowing.activation_bytes[0, 0]
    # Keys and values of 8 192 tokens: 4 heads of 256, 2 bytes each, whatever share of that is fitted.
    assert 0.5 < spared / (8192 * 2 * 2 * 4 * 256) < 1.5


# Four layers: attention with 4 and with 2 key/value heads, one MLP alone and one attention alone.
UNLIKE = ModelSpec(
    name="x", num_layers=4, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=16, num_kv_heads=4,
    head_dim=128, vocab_size=32_000, layer_ffn_sizes=(8192, 2816, 1024, 0), layer_kv_heads=(4, 2, 0, 4),
)  # fmt: skip


def test_layers_of_unlike_sizes_have_the_weights_of_their_own_blocks() -> None:
    def attention(kv_heads: int) -> int:
        return 2048 * 128 * (2 * 16 + 2 * kv_heads) + 2048  # and a norm

    def mlp(width: int) -> int:
        return 3 * 2048 * width + 2048

    weights = (attention(4) + mlp(8192), attention(2) + mlp(2816), mlp(1024), attention(4))
    assert UNLIKE.parameters_by_layer() == weights
    assert model_from_shape(model_to_mapping(UNLIKE)) == UNLIKE


def test_a_layer_of_unlike_sizes_costs_what_it_costs_in_a_model_of_such_layers() -> None:
    whole, profile = _problem(UNLIKE), default_profile(find_cluster("dgx-h100", num_nodes=1), "none")
    rows = Columns.of([Configuration(data_parallel_size=8, stage_layers=(4,))])
    mixed = price(whole, rows, profile)
    for index, shape in enumerate(LayerLayout.of(UNLIKE).kinds):
        alone = price(replace(whole, model=UNLIKE.shaped(shape)), rows, profile)
        assert mixed.forward_s[0, index] == pytest.approx(alone.forward_s[0, 0])
        assert mixed.activation_bytes[0, index] == pytest.approx(alone.activation_bytes[0, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_ffn_sizes": (8192,)}, "layer_ffn_sizes: 1 sizes for num_layers = 4"),
        ({"layer_kv_heads": (4, 2, 0, 3)}, "layer_kv_heads: 3 does not divide num_attention_heads = 16"),
        ({"layer_ffn_sizes": (8192, 2816, 0, 0)}, "layer 2 has neither attention nor an MLP"),
        ({"layer_kv_heads": (4,)}, "layer_kv_heads: 1 sizes for num_layers = 4"),
        ({"sliding_window": 512}, "sliding_window: is not supported where layers have different sizes"),
    ],
)
def test_sizes_that_fit_no_layers_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        replace(UNLIKE, **changes)  # type: ignore[arg-type]
