"""An allowed word adds plans and costs none, however many candidates a search goes through."""

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.variants import searched_together, variants_of
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.draws import draws

EXAMPLES = draws(1, of_more=4)
WORDS = (
    "offload", "weight_shards", "context_parallel_mode", "gradient_dtype", "reduce_bucket",
    "standalone_stages", "fp8", "adamw-bf16", "switches",
)  # fmt: skip
OBJECTIVES = ("step_time", "tokens_per_s_per_gpu", "gpu_hours_per_token", "energy_per_token")


@st.composite
def questions(draw: st.DrawFn) -> Problem:
    """A small model on up to 4 GPUs, whose best micro-batch is often an unusual one."""
    model = a_model(
        num_layers=draw(st.integers(1, 3)), hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=8,
        num_kv_heads=8, vocab_size=16000,
    )  # fmt: skip
    cluster = a_cluster(num_nodes=1, gpu=a_gpu(power_watts=700))
    each = draw(st.sampled_from([1, 2, 4]))
    group = replace(cluster.groups[0], gpus_per_node=each, island_gpus=each)
    problem = a_problem(
        model=model, cluster=replace(cluster, groups=(group,)), time_limit_s=600.0,
        certify=draw(st.sampled_from(["none", "cp-sat"])),
        batch=draw(st.sampled_from([49, 96, 98, 100])), top_k=draw(st.integers(1, 3)),
        objective=draw(st.sampled_from(OBJECTIVES)),
    )  # fmt: skip
    work = replace(problem.workload, seq_length=draw(st.sampled_from([256, 1536])))
    problem = replace(problem, workload=work)
    return replace(
        problem, launcher=draw(st.sampled_from(["megatron-lm", "megatron-bridge", "torchtitan"]))
    )


def allowing(problem: Problem, *words: str) -> Problem:
    return replace(problem, options=replace(problem.options, allow=(*problem.options.allow, *words)))


def asked(problem: Problem) -> Answer:
    return ask(problem, default_profile(problem.cluster, problem.launcher))


def value(answer: Answer) -> float:
    """The objective of the first plan; less is better."""
    claim = answer.objective
    assert claim is not None
    assert claim.value is not None
    return 1.0 / claim.value if claim.name == "tokens_per_s_per_gpu" else claim.value


def rows_of(problem: Problem) -> int:
    """All legal rows under all switches that one search ranks together."""
    profile = default_profile(problem.cluster, problem.launcher)
    groups = searched_together(variants_of(problem, profile))
    first = (group[0].problem for group in groups)
    every = [enumerate_space(one, legal_only=True, wide=True).num_legal for one in first]
    return max(rows * len(group) for rows, group in zip(every, groups, strict=True))


@given(questions(), st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_question_with_more_words_has_a_plan_as_good(problem: Problem, words: list[str]) -> None:
    """Also where the candidates are just few without them: the others are then the usual ones."""
    with patch("meshwright.solver.space.enumerate._FEW", rows_of(problem)):
        answer, best = asked(allowing(problem, *words)), value(asked(problem))
        for word in words:
            best = min(best, value(asked(allowing(problem, word))))
    assert value(answer) <= best * (1 + 1e-9)
    assert answer.status == "optimal"
    assert answer.gap is None or answer.gap >= 0.0
