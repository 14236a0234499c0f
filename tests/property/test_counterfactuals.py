"""What explanations say of a change is so when the changed configuration is predicted for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Why
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import moves_of
from meshwright.solver.explain.reasons import reasons_of
from meshwright.solver.explain.waterfall import waterfalls
from meshwright.solver.predict import predict, predicted
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.splits import even_split
from tests.draws import draws

MODELS = ("llama-3.1-8b", "mixtral-8x7b", "gpt-3-350m", "llama-3.1-70b")
CLUSTERS = ("dgx-h100", "dgx-a100")
LAUNCHERS = ("none", "megatron-lm", "torchtitan", "deepspeed", "accelerate")
Start = tuple[Problem, Profile, Configuration]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    workload = Workload(
        global_batch_size=draw(st.sampled_from((32, 96, 128, 192, 512))),
        seq_length=draw(st.sampled_from((1024, 4096, 8192))),
    )
    return Problem(
        model=find_model(draw(st.sampled_from(MODELS))),
        cluster=find_cluster(draw(st.sampled_from(CLUSTERS)), num_nodes=draw(st.sampled_from((1, 2, 4)))),
        workload=workload,
        launcher=draw(st.sampled_from(LAUNCHERS)),
    )


def starts(problem: Problem, seed: int, count: int = 6) -> list[Configuration]:
    """Legal configurations drawn evenly, good and bad ones, with even splits."""
    legal = enumerate_space(problem, legal_only=True).rows
    some = np.random.default_rng(seed).permutation(len(legal))[:count]
    columns, found = legal.take(some), []
    for row in range(len(columns)):
        one = columns.configuration(row, (problem.model.num_layers,))
        chunks = one.pipeline_parallel_size * one.virtual_pipeline_size
        split = even_split(problem.model.num_layers, chunks)
        found.append(columns.configuration(row, split))
    return found


def step_s(problem: Problem, profile: Profile, configuration: Configuration) -> float:
    """Predicted time of the whole global batch."""
    seconds = predict(problem, profile, configuration).step_time_s
    return seconds * problem.workload.global_batch_size / configuration.global_batch_size


def term_s(start: Start, term: str) -> float:
    """One term of the waterfall under the simulated step."""
    problem, profile, configuration = start
    (found,) = evaluate(problem, profile, [configuration], with_spread=True)
    return waterfalls(problem, [found], [predicted(problem, found).step_time_s])[0][term]


def changed_s(start: Start, words: str) -> list[float]:
    """Steps of the changes that are called so."""
    problem, profile, configuration = start
    moves = [moved for moved, called in moves_of(problem, configuration).items() if called == words]
    assert moves, words
    return [step_s(problem, profile, moved) for moved in moves]


def size(name: str, sign: int) -> Callable[[Start], Iterator[Start]]:
    """Every single change that makes a size smaller (-1) or larger (1)."""

    def tried(start: Start) -> Iterator[Start]:
        problem, profile, own = start
        for moved in moves_of(problem, own):
            if sign * (getattr(moved, name) - getattr(own, name)) > 0:
                yield problem, profile, moved

    return tried


def worked(**values: object) -> Callable[[Start], Iterator[Start]]:
    """Another workload, or other facts of the software."""

    def tried(start: Start) -> Iterator[Start]:
        problem, profile, own = start
        of_workload = {name: value for name, value in values.items() if name in ("precision", "optimizer")}
        facts = {name: value for name, value in values.items() if name not in of_workload}
        options = {**problem.workload.framework_options, **facts}
        workload = replace(problem.workload, framework_options=options, **of_workload)  # type: ignore[arg-type]
        yield replace(problem, workload=workload), profile, own

    return tried


def configured(**values: object) -> Callable[[Start], Iterator[Start]]:
    return lambda start: iter([(start[0], start[1], replace(start[2], **values))])  # type: ignore[arg-type]


def wide_heads(start: Start) -> Iterator[Start]:
    problem, profile, own = start
    model = problem.model
    factor = 128 // model.head_dim
    heads, kv_heads = model.num_attention_heads // factor, model.num_kv_heads // factor
    wide = replace(model, head_dim=128, num_attention_heads=heads, num_kv_heads=kv_heads)
    yield replace(problem, model=wide), profile, own


SAID: dict[str, Callable[[Start], Iterator[Start]]] = {
    "a smaller tp": size("tensor_parallel_size", -1),
    "a smaller cp": size("context_parallel_size", -1),
    "a smaller ep": size("expert_parallel_size", -1),
    "a smaller dp": size("data_parallel_size", -1),
    "a larger micro-batch": size("micro_batch_size", 1),
    "a smaller micro-batch": size("micro_batch_size", -1),
    "more chunks per rank (vpp)": size("virtual_pipeline_size", 1),
    "fewer chunks per rank": size("virtual_pipeline_size", -1),
    "fewer stages": size("pipeline_parallel_size", -1),
    "fewer recomputed layers": size("recompute_layers", -1),
    "a higher ZeRO stage": size("zero_stage", 1),
    "no recomputation": configured(recompute_granularity="none", recompute_layers=0),
    "sequence parallelism": configured(sequence_parallel=True),
    "fp8": worked(precision="fp8"),
    "8-bit optimizer states": worked(optimizer="adamw-8bit"),
    "flash attention (attention_kernel)": worked(attention_kernel="flash2"),
    "fused element-wise operators (elementwise_fused)": worked(elementwise_fused=True),
    "fused norms (norm_fused)": worked(norm_fused=True),
    "collectives overlapped with matrix products (overlap_tensor)": worked(overlap_tensor=True),
    "all-to-alls overlapped with compute (overlap_experts)": worked(overlap_experts=True),
    "transfers overlapped with compute (overlap_transfer)": worked(overlap_transfer=True),
    "gradient reduction overlapped with the backward pass (overlap_gradients)": worked(
        overlap_gradients=True
    ),
    "gradients reduced in bf16 (reduced_gradient_dtype)": worked(reduced_gradient_dtype="bf16"),
    "CUDA graphs (cuda_graph)": worked(cuda_graph="layer"),
    "heads of 128 instead of 64": wide_heads,
}


def check(start: Start, why: Why) -> int:
    """Hold every change that is named against its own prediction; how many were."""
    now_s, said = step_s(*start), 0
    for limit in why.limits:
        steps = changed_s(start, limit.change)
        assert limit.gain_s > 0.0
        assert any(now_s - one == pytest.approx(limit.gain_s, rel=1e-6) for one in steps), limit
        said += 1
    for loss in why.losses:
        if loss.change is not None:
            assert loss.step_change_s is not None
            assert loss.saves_s is not None
            assert loss.saves_s > 0.0
            near = [one for one in changed_s(start, loss.change)
                    if one - now_s == pytest.approx(loss.step_change_s, rel=1e-6, abs=1e-9)]  # fmt: skip
            assert near, loss
            said += 1
        for words in filter(None, loss.lowered_by.split(", ")):
            least = min(term_s(one, loss.term) for one in SAID[words](start))
            assert least < loss.seconds, (loss.term, words)
            said += 1
    return said


@settings(
    max_examples=draws(2, of_more=3),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(problems(), st.integers(0, 2**32 - 1))
def test_every_change_that_is_named_has_the_sign_that_is_said(problem: Problem, seed: int) -> None:
    profile = default_profile(problem.cluster, problem.launcher)
    found = starts(problem, seed)
    steps = [predict(problem, profile, one).step_time_s for one in found]
    for one, why in zip(found, reasons_of(problem, profile, found, steps), strict=True):
        check((problem, profile, one), why)


def test_a_limit_whose_change_is_faster_by_the_closed_form_alone_does_not_bind() -> None:
    """tp 2 and dp 4 leave one micro-batch of breadth-first stages: 3.6 s longer, not 0.12 s shorter."""
    problem = Problem(
        model=find_model("llama-3.1-70b"),
        cluster=find_cluster("dgx-h100", num_nodes=2),
        workload=Workload(global_batch_size=96, seq_length=1024),
        launcher="none",
    )
    profile = default_profile(problem.cluster, problem.launcher)
    one = Configuration(
        tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=2, virtual_pipeline_size=39,
        data_parallel_size=2, zero_stage=1, zero_shard_size=2, micro_batch_size=24, num_microbatches=2,
        pipeline_schedule="looped_bfs", recompute_granularity="selective",
        stage_layers=(*(1,) * 38, 2, 2, *(1,) * 38),
    )  # fmt: skip
    now_s = step_s(problem, profile, one)
    assert min(changed_s((problem, profile, one), "tp 2, dp 4")) - now_s > 3.0
    (why,) = reasons_of(problem, profile, [one], [now_s])
    assert "tp 2, dp 4" not in {limit.change for limit in why.limits}
    check((problem, profile, one), why)
