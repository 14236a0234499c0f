"""Which candidates are searched, and what an answer claims of them."""

from dataclasses import replace
from functools import cache

import pytest

from meshwright.launchers.registry import export
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer, Outlook, Plan
from meshwright.solver.clock import Watch
from meshwright.solver.explain.remedies import CUT
from meshwright.solver.planner.fewest_nodes import fewest
from meshwright.solver.planner.plan import _in_time, _of_batch, _of_model, ask
from meshwright.solver.problem import Problem, Progress
from meshwright.solver.search.search import search as search_alone
from meshwright.solver.space.enumerate import enumerate_space, searched_space
from tests.builders import a_cluster, a_model, a_plan, a_prediction, a_problem, an_answer
from tests.draws import some_of


def on_two_nodes(**options: object) -> Problem:
    """32 layers of Llama 3.1 8B, 1 024 sequences of 2 048 tokens: one usual slice, cp 1."""
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    limits: dict[str, object] = {"certify": "none", "top_k": 2, **options}
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=1024, **limits)
    return replace(problem, workload=replace(problem.workload, seq_length=2048))


def answered(problem: Problem) -> Answer:
    return ask(problem, default_profile(problem.cluster, problem.launcher))


def test_a_pin_and_the_same_constraint_have_the_same_best_plan() -> None:
    pinned = on_two_nodes(pin={"tensor_parallel_size": 8, "micro_batch_size": 64})
    said = on_two_nodes(pin={"tensor_parallel_size": 8}, constraints=("micro_batch_size == 64",))
    one, other = answered(pinned), answered(said)
    # slices of 1 024 tokens halve the activations: nothing is recomputed
    assert one.plans[0].config.context_parallel_size == 2
    assert one.plans[0].config == other.plans[0].config
    assert one.bound_step_time_s == pytest.approx(other.bound_step_time_s)
    assert (one.space, other.space) == ("every", "every")


def test_few_rows_are_searched_with_every_candidate_and_many_with_the_usual_ones() -> None:
    few, many = a_problem(cluster=a_cluster(num_nodes=1)), replace(a_problem(), launcher="none")
    assert searched_space(few, legal_only=True).every
    assert not searched_space(many, legal_only=True).every


def test_a_named_variable_has_every_candidate_where_the_usual_rows_are_more() -> None:
    # without a launcher 70B on 2 nodes has 1.04 million legal rows, with up to 16 sequences 0.87 million
    free = replace(a_problem(cluster=a_cluster(num_nodes=2)), launcher="none")
    named = replace(free, options=replace(free.options, bounds={"micro_batch_size": (1, 16)}))
    assert enumerate_space(named, legal_only=True).legal.sum() > 200_000
    assert [searched_space(one, legal_only=True).every for one in (free, named)] == [False, True]


def test_the_fewest_nodes_are_fewest_among_all_candidates() -> None:
    # 32 sequences at once under tp 4 on 8 GPUs: only slices of 1 024 tokens, shorter than usual, fit
    pin = {"micro_batch_size": 32, "tensor_parallel_size": 4}
    problem = on_two_nodes(gpus="fewest", forbid={"recompute_granularity": ("full",)}, pin=pin)
    answer = fewest(problem, default_profile(problem.cluster, problem.launcher))
    assert answer.plans[0].config.num_gpus == 8
    assert answer.plans[0].config.context_parallel_size == 2


def test_the_fewest_nodes_may_leave_a_part_of_one_idle() -> None:
    """35 sequences are 7 replicas; 8 GPUs share the small layers of one."""
    model = a_model(num_layers=4, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=8)
    cluster = a_cluster(num_nodes=2)
    problem = a_problem(model=model, cluster=cluster, batch=35, certify="none", top_k=1, gpus="fewest")
    answer = answered(problem)
    assert (answer.status, answer.plans[0].config.num_gpus) == ("optimal", 7)
    assert answer.notes["gpus"] == "fewest"


def test_tensor_ranks_that_hold_whole_sequences_may_be_fastest() -> None:
    model = a_model(num_layers=5, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=16)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=8, certify="none", top_k=1,
                        pin={"tensor_parallel_size": 4})  # fmt: skip
    workload = replace(problem.workload, seq_length=512)
    answer = answered(replace(problem, launcher="torchtitan", workload=workload))
    assert not answer.plans[0].config.sequence_parallel  # 32.3 ms; with it 33.5 ms
    assert answer.gap == pytest.approx(0.0, abs=1e-6)


SLOW_NODES = [  # model, node groups, sequences, tokens of one
    ("opt-350m", {"gpu": "a100-sxm-40gb", "num_nodes": 4, "gpus_per_node": 1}, 8, 2048),
    ("opt-350m", {"gpu": "a100-sxm-40gb", "num_nodes": 8, "gpus_per_node": 2}, 32, 512),
    ("llama-3.1-8b", {"gpu": "l40s", "num_nodes": 16, "gpus_per_node": 2}, 128, 4096),
]


@pytest.mark.parametrize(("model", "nodes", "batch", "seq"), some_of(SLOW_NODES, each=3))
def test_no_pinned_shard_size_is_better_than_what_is_proved_without_the_pin(
    model: str, nodes: dict[str, str | int], batch: int, seq: int
) -> None:
    # Sizes between one GPU and all of them: no other layout has as many data-parallel ranks as they are.
    def asked(**search: object) -> Answer:
        problem = parse_problem(
            {
                "model": {"name": model},
                "cluster": {"groups": [nodes]},
                "workload": {"global_batch_size": batch, "seq_length": seq},
                "launcher": "accelerate",
                "search": {"certify": "none", "top_k": 1, **search},
            }
        )
        return search_alone(problem, default_profile(problem.cluster, problem.launcher))

    free = asked()
    assert (free.status, free.space) == ("optimal", "every")
    pinned = [asked(pin={"zero_shard_size": size}) for size in (2, 4, 8, 16, 32)]
    steps = [one.plans[0].prediction.step_time_s for one in pinned if one.plans]
    assert free.bound_step_time_s is not None
    assert free.bound_step_time_s <= min(steps) * (1 + 1e-9)
    assert free.plans[0].prediction.step_time_s <= min(steps) * (1 + 1e-9)


def test_an_answer_carries_the_exact_count_and_warns_beyond_the_models_positions() -> None:
    problem = on_two_nodes()
    short = replace(problem, model=replace(problem.model, max_position_embeddings=1024))
    answer = answered(short)
    # 32·(2·4096² + 2·4096·1024 + 3·4096·14336 + 2·4096) + 4096 + 2·128256·4096
    assert answer.model == {
        "name": short.model.name, "num_parameters": 8_030_261_248, "num_active_parameters": 8_030_261_248,
        "num_mtp_parameters": 0, "num_trainable_parameters": 8_030_261_248,
    }  # fmt: skip
    said = "seq_length 2048 is longer than the 1024 positions of Llama 3.1 70B"
    assert said in answer.warnings
    assert said not in answered(problem).warnings


def test_a_batch_too_small_for_its_gpus_is_named_in_one_sentence() -> None:
    problem = on_two_nodes()

    def warned(batch: int) -> list[str]:
        asked = replace(problem, workload=replace(problem.workload, global_batch_size=batch))
        return [one for one in answered(asked).warnings if "is small for" in one]

    (warning,) = warned(1)
    assert warning.startswith("batch 1 is small for 16 GPUs: ")
    assert warning.endswith(" % of #1's step stays the same with a larger batch (mostly optimizer)")
    assert warned(512) == []
    hurried = replace(answered(problem).plans[0], why=None)  # waits 1 s for a slower stage
    waiting = replace(hurried.prediction, step_time_s=1.5, time_breakdown_s={"bubble": 1.0})
    assert _of_batch([replace(hurried, prediction=waiting)]) == ()


# --------------------------------------------------------------------------------------------------
# A deadline of placed stages: plans of 30 and 45 s, whose runs take 12 and 18 days, no step under 20 s.


def running(step_s: float, days: float, rank: int) -> Plan:
    """A plan of that step on 128 GPUs, whose run takes so many days."""
    run = Outlook(num_gpus=128, goodput=0.99, checkpoint_interval_s=600.0, gpu_hours_per_token=1e-6,
                  energy_per_token_j=None, days=days, cost=None)  # fmt: skip
    return replace(a_plan(rank=rank), prediction=a_prediction(step_time_s=step_s), outlook=run)


def in_time(deadline_days: float, *plans: Plan, **proved: object) -> Answer:
    """What is left of the plans; no time to search for what would meet the deadline."""
    problem = replace(a_problem(deadline_days=deadline_days, total_tokens=10**12), launcher="none")
    answer = an_answer(*plans, bound_step_time_s=20.0, gap=1 / 3, **proved)
    return _in_time(problem, default_profile(problem.cluster, "none"), answer, Watch(time_limit_s=0.0))


def test_other_software_than_the_launcher_runs_today_is_said_of_its_prices() -> None:
    told = "times and memory are those of the software stack {}, not of today's {}"
    for launcher, stack, said in (
        ("torchtitan", "megatron-lm-2021", True), ("megatron-lm", "megatron-lm-2021", True),
        ("torchtitan", "fsdp1", False), ("torchtitan", None, False), ("none", "megatron-lm-2021", False),
    ):  # fmt: skip
        answer = _of_model(replace(on_two_nodes(), launcher=launcher, stack=stack), an_answer())
        assert (told.format(stack, launcher) in answer.warnings) is said


def test_plans_in_time_move_up_and_the_gap_is_that_of_the_first_of_them() -> None:
    # of 18 and 12 days, 15 are allowed: the second plan alone, (30 - 20) / 30 from the bound
    answer = in_time(15.0, running(45.0, 18.0, 1), running(30.0, 12.0, 2))
    (plan,) = answer.plans
    assert (plan.rank, plan.prediction.step_time_s, answer.status) == (1, 30.0, "optimal")
    assert answer.gap == pytest.approx(1 / 3)
    assert answer.objective is not None
    assert (answer.objective.value, answer.objective.bound) == (30.0, 20.0)
    assert answer.warnings[-1].startswith("1 of the 2 fastest plans miss the deadline")


def test_plans_that_are_all_in_time_stay_as_they_are() -> None:
    plans = running(30.0, 12.0, 1), running(45.0, 18.0, 2)
    answer = in_time(18.0, *plans)
    assert (answer.plans, answer.gap, answer.warnings) == (plans, 1 / 3, ())


def test_a_deadline_is_missed_for_certain_where_the_fastest_step_that_can_be_misses_it() -> None:
    # 30 s are 12 days, so 20 s are 8; one GPU fails less often than 128: 8 * 1.00942 / 1.00984 = 7.9967
    plans = running(45.0, 18.0, 1), running(30.0, 12.0, 2)
    first = running(30.0, 12.0, 1), running(45.0, 18.0, 2)
    for some in (plans, first):
        sure, unsure = (in_time(days, *some) for days in (7.99, 8.0))
        assert (sure.status, sure.certified_by) == ("infeasible", ("exact-dp", "cp-sat")), some
        assert (unsure.status, unsure.certified_by) == ("unknown", ())
    assert in_time(7.99, *first, status="feasible").status == "unknown", "the bound is not proved"


def test_a_missed_deadline_is_told_with_the_days_of_the_soonest_plan() -> None:
    # 12.01 days are offered as 12.1: a deadline of 12.0 would be missed again
    answer = in_time(5.0, running(45.0, 18.0, 1), running(30.0, 12.01, 2))
    said = answer.infeasible
    assert said is not None
    assert said.reasons == ("deadline: the fastest plan takes 12.0 days on 128 GPUs, 5 are allowed", CUT)
    assert said.changes == ("a deadline of 12.1 days",)
    assert said.remedies[0].config == running(30.0, 12.01, 2).config
    assert (answer.plans, answer.gap, answer.objective) == ((), None, None)


def test_reports_of_several_variants_tell_of_one_search() -> None:
    # bf16 is searched behind fp8: the best plan stays, time goes on, and a bound is that of both
    problem = a_problem(
        model=a_model(num_layers=4),
        cluster=a_cluster(num_nodes=1),
        batch=64,
        allow=("fp8",),
        certify="none",
    )
    told = list[Progress]()
    answer = ask(problem, default_profile(problem.cluster, problem.launcher), on_progress=told.append)
    times = [one.elapsed_s for one in told]
    best = [one.incumbent_step_time_s for one in told]
    since = next(at for at, step_s in enumerate(best) if step_s is not None)
    assert times == sorted(times)
    assert [step_s or 0.0 for step_s in best[since:]] == sorted(
        (one or 0.0 for one in best[since:]), reverse=True
    )
    assert [one.stage for one in told].count("done") == 1
    assert told[-1].incumbent_step_time_s == answer.plans[0].prediction.step_time_s
    assert told[-1].bound_step_time_s == answer.bound_step_time_s


def with_offload(**options: object) -> Problem:
    """16 layers on a node, bf16 or fp8, with anything that may leave the GPU."""
    return a_problem(
        model=a_model(num_layers=16),
        cluster=a_cluster(num_nodes=1),
        batch=64,
        allow=("fp8", "offload"),
        certify="none",
        **options,
    )


@cache
def answered_with_offload() -> Answer:
    return answered(with_offload())


def test_the_first_plan_is_of_the_faster_precision_and_near_the_best() -> None:
    seen, problem = list[Progress](), with_offload()
    answer = ask(problem, default_profile(problem.cluster, problem.launcher), on_progress=seen.append)
    first = next(one.incumbent_step_time_s for one in seen if one.incumbent_step_time_s is not None)
    assert answer.plans[0].workload["precision"] == "fp8"
    assert first <= 1.1 * answer.plans[0].prediction.step_time_s


def test_a_search_that_is_stopped_keeps_the_plan_that_was_found_without_offload() -> None:
    seen, problem = list[Progress](), with_offload()
    profile = default_profile(problem.cluster, problem.launcher)
    answer = ask(problem, profile, on_progress=seen.append,
                 should_stop=lambda: any(one.incumbent_step_time_s for one in seen))  # fmt: skip
    assert (answer.status, answer.bound_step_time_s, answer.gap) == ("feasible", None, None)
    shown_s = [one.incumbent_step_time_s for one in seen if one.incumbent_step_time_s is not None]
    assert answer.plans[0].prediction.step_time_s <= shown_s[0]
    whole = answered_with_offload()
    ids = {plan.config: plan.plan_id for plan in whole.plans}
    assert all(ids.get(plan.config, plan.plan_id) == plan.plan_id for plan in answer.plans)
    assert whole.plans[0].prediction.step_time_s <= answer.plans[0].prediction.step_time_s


def test_what_is_found_without_offload_changes_no_answer() -> None:
    one = answered_with_offload()
    other = answered(with_offload(forbid={"offload": ("optimizer@nvme",)}))  # no opening for it
    assert [plan.prediction.step_time_s for plan in one.plans] == pytest.approx(
        [plan.prediction.step_time_s for plan in other.plans]
    )
    assert one.status == other.status == "optimal"


def test_a_bound_on_the_step_is_not_reported_where_another_objective_ranks() -> None:
    # 4 nodes have the shortest step, 1 node the most tokens a GPU: their gap said nothing of either
    plain = a_problem(
        model=a_model(num_layers=4),
        cluster=a_cluster(num_nodes=4),
        batch=64,
        allow=("fp8",),
        certify="none",
    )
    options = replace(plain.options, objective="tokens_per_s_per_gpu", num_nodes=(1, 4))
    problem = replace(plain, options=options)
    told = list[Progress]()
    ask(problem, default_profile(problem.cluster, problem.launcher), on_progress=told.append)
    assert told[-1].stage == "done"
    assert {(one.bound_step_time_s, one.gap) for one in told} == {(None, None)}


def test_nodes_that_fit_the_model_and_meet_the_deadline_are_offered_where_one_node_does_neither() -> None:
    # 70.6e9 weights of 16 bytes are 2 times 8 * 65 GiB; 6 * 70.6e9 * 2e11 FLOPs are 62 days of 8 * 1979e12
    problem = a_problem(
        cluster=a_cluster(num_nodes=1), batch=64, deadline_days=60.0, total_tokens=2 * 10**11, top_k=1
    )
    said = ask(problem, default_profile(problem.cluster, problem.launcher)).infeasible
    assert said is not None
    (remedy,) = said.remedies
    assert remedy.kind == "nodes"
    tokens_per_s = 64 * 8192 / remedy.step_time_s
    assert 2e11 / tokens_per_s < 60 * 86_400


@pytest.mark.parametrize(
    ("launcher", "groups", "sizes", "words"),
    [  # 2 replicas of 2 × 5 GPUs are 20 of 24: torchrun starts 4 on the last node, ms-swift 8; of 2 × 4, 16
        ("megatron-lm", [("h100", 3, 8)], (2, 5), None),
        ("ms-swift", [("h100", 3, 8)], (2, 5), "20 GPUs don't fill nodes of 8"),
        ("ms-swift", [("h100", 3, 8)], (2, 4), None),
        ("megatron-lm", [("rtx-3060", 1, 2), ("rtx-3090", 1, 1)], (), "nodes have 1 and 2 GPUs"),
    ],
)
def test_plans_whose_ranks_no_launch_file_can_start_say_so(
    launcher: str, groups: list[tuple[str, int, int]], sizes: tuple[int, ...], words: str | None
) -> None:
    pins = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=False))
    problem = parse_problem(
        {
            "model": {"name": "qwen3-0.6b"},
            "cluster": {
                "groups": [
                    {"gpu": gpu, "num_nodes": nodes, "gpus_per_node": each} for gpu, nodes, each in groups
                ]
            },
            "workload": {"global_batch_size": 20 if len(groups) == 1 else 12, "seq_length": 1024},
            "launcher": launcher,
            "search": {"pin": {**pins, "context_parallel_size": 1}, "top_k": 1, "certify": "none"},
        }
    )
    answer = answered(problem)
    (plan,) = answer.plans
    said = [one for one in answer.warnings if "no launch files" in one]
    assert len(said) == (words is not None)
    if words is None:
        assert export(plan, problem, launcher).files
    else:
        assert words in said[0]
        with pytest.raises(RefusedExportError, match="nodes"):
            export(plan, problem, launcher)
