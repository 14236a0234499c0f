"""A fact about a layer is stated once: whatever is asked of a layer follows from its list of operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from meshwright.launchers.target import Target
from meshwright.profiles.adapters import SINGLE_TARGETS, adapter_parameters, single_layers
from meshwright.profiles.collectives.collectives import Group
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.layers import build, mixing
from meshwright.profiles.layers.operators import Matrix, Operator
from meshwright.profiles.measure.shard import Shard
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.service.verify.priced import rank_flops, rank_matrices
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.parameters import copied_embedding, layer_weights
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, assemble
from meshwright.solver.explain.roofline import rooflines_of
from meshwright.solver.explain.waterfall import waterfalls
from tests.launchers.plans import CASES

STAGED = next(
    case
    for case in CASES["megatron-bridge"].values()
    if case.config.pipeline_parallel_size > 1 and case.model.moe is None and case.model.mla is None
)


def answers(target: Target) -> dict[str, object]:
    """Return what the product states of a model's layers and of its head, by the question."""
    problem, model = target.problem, target.model
    profile, columns = default_profile(problem.cluster, problem.launcher), Columns.of([target.config])
    prices = price(problem, columns, profile)
    (evaluated,) = evaluate(problem, profile, [target.config])
    shard = Shard(
        model=model, tensor_parallel_size=2, expert_parallel_size=1, micro_batch_size=1, seq_length=512
    )
    return {
        "parameters": model.num_parameters(),
        "FLOPs of a token": model.model_flops_per_token(4096),
        "weights of a layer on a rank": float(
            layer_weights(context_of(problem, columns, profile), "dense").dense[0]
        ),
        "seconds of a layer": float(prices.forward_s[0, 0]),
        "seconds of the head": float(prices.forward_s[0, -1]),
        "bytes of the head's weights": float(prices.weights_bytes[0, -1]),
        "bytes of logits": float(prices.head_workspace_bytes[0]),
        "bytes of the embedding's weights": float(prices.weights_bytes[0, -2]),
        "seconds of exchanges at the ends": float(prices.breakdown_s["tensor_parallel"][0, -2:].sum()),
        "roofline": [
            (one.name, one.flops) for one in rooflines_of(problem, profile, target.config)[0].points
        ],
        "matrices to verify": rank_matrices(target)[0],
        "FLOPs to verify": rank_flops(target),
        "adapters": adapter_parameters(model, 16, SINGLE_TARGETS),
        "linear layers": sorted(single_layers(model, "dense")),
        "products to measure": [one.operator for one in shard.gemms()],
        "losses of matrix products": waterfalls(problem, [evaluated])[0]["gemm_efficiency"],
    }


def changed_by(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {question for question, answer in before.items() if after[question] != answer}


def with_model(target: Target, model: ModelSpec) -> Target:
    return replace(target, problem=replace(target.problem, model=model))


OF_THE_HEAD = {"seconds of the head", "bytes of the head's weights", "bytes of logits"}
OF_THE_ENDS = {"bytes of the embedding's weights", "seconds of exchanges at the ends"}


def test_a_further_product_of_attention_reaches_every_question_from_its_builder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = answers(STAGED)
    attention = mixing.attention

    def with_low_rank_gate(model: ModelSpec) -> Iterator[Operator]:
        first, *others = attention(model)
        down = Matrix(name="g_a_proj", inputs=model.hidden_size, outputs=64, split="nothing")
        up = Matrix(name="g_b_proj", inputs=64, outputs=model.num_attention_heads * model.v_head_dim)
        yield first
        yield Operator(
            name="gate_down", title="gate down", block="attention", matrices=(down,), rows="latent"
        )
        yield Operator(name="gate_up", title="gate up", block="attention", matrices=(up,), inner=True)
        yield from others

    monkeypatch.setattr(build, "attention", with_low_rank_gate)
    gated = replace(STAGED.model, source="another model, which has built no layer yet")
    assert changed_by(before, answers(with_model(STAGED, gated))) == {*before} - OF_THE_HEAD - OF_THE_ENDS


def test_ranks_of_the_vocabulary_reach_every_question_about_the_head_from_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = answers(STAGED)

    def every_rank(ctx: Context) -> Group:
        size = ctx.t * ctx.p
        return Group(size, np.ones_like(size), ctx.fabric)

    monkeypatch.setattr(Context, "vocabulary_group", property(every_rank))
    changed = changed_by(before, answers(STAGED))
    assert {
        *OF_THE_HEAD,
        *OF_THE_ENDS,
        "roofline",
        "FLOPs to verify",
        "losses of matrix products",
    } <= changed
    assert not changed & {"parameters", "FLOPs of a token", "seconds of a layer"}


def test_ends_that_every_stage_shares_are_divided_uncopied_and_priced_by_stages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tied = with_model(STAGED, replace(STAGED.model, tied_embeddings=True))
    columns = Columns.of([tied.config])

    profile = default_profile(tied.problem.cluster, tied.problem.launcher)

    def stated() -> tuple[bool, bool, bool, bool]:
        facts = replace(profile.framework)  # has read nothing yet
        ctx = context_of(tied.problem, columns, replace(profile, framework=facts))
        copied = bool(copied_embedding(ctx)[0] > 0)
        return bool(ctx.ends_apart[0]), copied, facts.priced_by_stages, facts.priced_by_chunks

    assert stated() == (True, True, False, False)
    monkeypatch.setattr(FrameworkFacts, "ends_are_shared", True)
    assert stated() == (False, False, True, True)


def test_what_every_rank_has_lengthens_each_chunk_of_a_step_once_in_each_pass() -> None:
    # .001 s forward and .002 s backward more in each of p v chunks: a rank of v chunks takes .003 v more
    problem, config = STAGED.problem, STAGED.config
    columns, layout = Columns.of([config]), LayerLayout.of(problem.model)
    prices = price(problem, columns, default_profile(problem.cluster, problem.launcher))
    longer = replace(
        prices,
        every_forward_s=prices.every_forward_s + 0.001,
        every_backward_s=prices.every_backward_s + 0.002,
    )
    split = np.array([config.stage_layers])
    before, after = (assemble(each, columns, layout, split) for each in (prices, longer))
    assert after.chunk_forward_s == pytest.approx(before.chunk_forward_s + 0.001)
    assert after.chunk_backward_s == pytest.approx(before.chunk_backward_s + 0.002)
    more = 0.003 * config.virtual_pipeline_size
    assert after.rank_time_s == pytest.approx(before.rank_time_s + more)
    assert prices.every_s == pytest.approx(2.0 * prices.transfer_s)  # today a message each way alone
