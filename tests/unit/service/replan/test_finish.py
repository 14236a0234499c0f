"""Ways to finish a job: their seconds add up, the batch is kept, what cannot be is said."""

from dataclasses import replace
from functools import cache

import pytest

from meshwright.launchers.resume import with_resume_files
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.replan.finish import replanned
from meshwright.service.replan.request import Changed, changed_job, read_replan_request
from meshwright.service.replan.ways import FinishOption, Replan
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Plan
from meshwright.solver.check import violations
from meshwright.solver.configuration import plan_id_of
from meshwright.solver.cost.objective import slowdown
from meshwright.solver.explain.remedies import first_plans
from meshwright.solver.problem import Problem, problem_digest
from tests.processes.pace import work_s

STEPS = {"steps_done": 1000, "steps_total": 5000, "saved_step": 900}


@cache
def running(most_zero: int = 1, batch: int = 256) -> tuple[Problem, Profile, Plan]:
    """Llama 3.1 8B on 8 nodes of 8 GPUs, 256 sequences a step, under the first plan."""
    problem = parse_problem(
        {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "num_nodes": 8},
         "workload": {"global_batch_size": batch, "seq_length": 8192}, "launcher": "megatron-lm",
         "search": {"bounds": {"zero_stage": [0, most_zero]}}}
    )  # fmt: skip
    profile = default_profile(problem.cluster, problem.launcher)
    found = first_plans(problem, profile, 1)
    assert found != "unknown"
    config, prediction = found[0]
    plan = Plan(
        plan_id=plan_id_of(problem_digest(problem), config), rank=1, config=config, prediction=prediction,
        objective_s=prediction.step_time_s,
    )  # fmt: skip
    return problem, profile, plan


def asked(**body: object) -> Changed:
    problem, _, plan = running()
    return changed_job(read_replan_request({**STEPS, **body}), problem, plan)


def answered(**body: object) -> Replan:
    return replanned(asked(**body), running()[1])


def way(found: Replan, kind: str) -> FinishOption:
    return next(one for one in found.ways if one.kind == kind)


ANY_LAYOUT = {"checkpoint": {"format": "torch_dist_fully_reshardable"}}


def test_the_seconds_of_every_way_add_up_and_are_ranked() -> None:
    found = answered(lost_nodes=1, spare_nodes=1, repair_s=3600.0, **ANY_LAYOUT)
    assert [one.finish_s for one in found.ways] == sorted(one.finish_s for one in found.ways)
    for one in found.ways:
        parts = (
            one.waiting_s,
            one.restart_s,
            one.resharding_s,
            one.lost_work_s,
            one.steps_s,
            one.interruptions_s,
        )
        assert one.finish_s == pytest.approx(sum(parts))
        assert one.finish_low_s < one.finish_s < one.finish_high_s


def test_waiting_costs_the_repair_and_lost_work_is_done_again() -> None:
    problem, _, plan = running()
    found, step_s = answered(lost_nodes=1, repair_s=7200.0), plan.prediction.step_time_s
    one = way(found, "wait for repair")
    assert (one.waiting_s, one.restart_s) == (7200.0, problem.options.reliability.restart_s)
    assert (found.lost_steps, found.remaining_steps) == (100, 4000)  # 1000 - 900, 5000 - 1000
    assert one.lost_work_s == pytest.approx(100 * step_s)
    assert one.steps_s == pytest.approx(4000 * step_s)
    assert one.interruptions_s == pytest.approx(4000 * step_s * (slowdown(problem, 64) - 1.0))


def test_new_layouts_keep_the_batch_fit_the_nodes_and_pass_the_independent_check() -> None:
    found = answered(lost_nodes=3, **ANY_LAYOUT)
    layouts = [one.layout for one in found.ways if one.kind == "new layout"]
    assert layouts
    for one in layouts:
        assert one.config.num_gpus <= 40  # 5 nodes of 8 are left
        assert one.config.global_batch_size == 256
        assert not list(violations(one.problem, running()[1], one.config))


def test_a_part_of_the_last_node_is_left_idle_where_a_job_ends_sooner_so() -> None:
    """99 sequences on 5 nodes have 33 replicas, or fewer of more ranks on 40 GPUs."""
    problem, profile, plan = running(batch=99)
    job = changed_job(read_replan_request({**STEPS, "lost_nodes": 3, **ANY_LAYOUT}), problem, plan)
    used = {one.layout.config.num_gpus for one in replanned(job, profile).ways if one.kind == "new layout"}
    assert any(gpus % 8 for gpus in used)


def test_until_the_repair_as_many_steps_are_done_as_there_is_time_for() -> None:
    problem, _, plan = running()
    found = answered(lost_nodes=1, repair_s=7200.0, **ANY_LAYOUT)
    both, alone = way(found, "new layout until repaired"), way(found, "new layout")
    assert both.afterwards is not None
    assert both.afterwards.config == plan.config
    first = both.layout.prediction.step_time_s
    before_s = alone.restart_s + alone.resharding_s + 100 * first
    count = int((7200.0 - before_s) / (first * slowdown(problem, both.layout.config.num_gpus)))
    assert both.steps_s == pytest.approx(count * first + (4000 - count) * plan.prediction.step_time_s)
    assert both.restart_s == 2 * alone.restart_s  # it stops once more to go back


def test_spare_nodes_take_the_places_of_lost_ones_where_there_are_enough() -> None:
    found = answered(lost_nodes=2, spare_nodes=2)
    assert found.ways[0].kind == "spare nodes"
    assert way(found, "spare nodes").layout.config == running()[2].config
    few = answered(lost_nodes=2, spare_nodes=1)
    assert "spare nodes: 2 needed, 1 idle" in few.refused


def test_a_slow_node_holds_up_every_step_unless_it_is_left_out() -> None:
    plan = running()[2]
    found = answered(slow_nodes={"3": 0.5})
    slow = way(found, "as it is").layout.prediction.step_time_s / plan.prediction.step_time_s
    assert 1.2 < slow <= 2.0  # half the pace: what computes takes twice as long, what communicates does not
    assert found.lost_steps == 0  # the job runs, and saves before it changes
    assert all(one.layout.config.num_gpus <= 56 for one in found.ways if one.kind == "new layout")


def test_slow_nodes_that_are_all_that_is_left_are_waited_with() -> None:
    found = answered(lost_nodes=7, slow_nodes={"3": 0.5})
    assert "new layout: slow_nodes: no node is left that keeps the usual pace" in found.refused
    assert way(found, "wait for repair").finish_s > 0.0


def test_more_nodes_are_used_where_that_is_sooner() -> None:
    found = answered(num_nodes=16, **ANY_LAYOUT)
    assert found.ways[0].kind == "new layout"
    assert found.ways[0].layout.config.num_gpus > 64
    assert way(found, "as it is").restart_s == 0.0


def test_a_format_that_holds_the_layout_fast_is_loaded_under_it_alone() -> None:
    running_config = running()[2].config
    usual = {"checkpoint": {"format": "torch_dist"}}  # Megatron-Core's: tensor and pipeline ranks stay
    found = answered(lost_nodes=4, **usual)
    for one in found.ways:
        assert one.layout.config.tensor_parallel_size == running_config.tensor_parallel_size
        assert one.layout.config.stage_layers == running_config.stage_layers
    bound = answered(lost_nodes=4, checkpoint={"format": "deepspeed"})
    assert all(one.kind == "wait for repair" for one in bound.ways)
    assert any("keeps the batch of 256 with the same" in text for text in bound.refused)


def test_what_megatron_fsdp_wrote_is_loaded_by_it_alone_and_the_other_way_round() -> None:
    problem, profile, plan = running(most_zero=3)
    for name, stages in (("fsdp_dtensor", {2, 3}), ("torch_dist_fully_reshardable", {0, 1})):
        body = {**STEPS, "lost_nodes": 4, "checkpoint": {"format": name}}
        found = replanned(changed_job(read_replan_request(body), problem, plan), profile)
        layouts = [one.layout.config for one in found.ways if one.kind == "new layout"]
        assert layouts
        assert {one.zero_stage for one in layouts} <= stages


def test_what_the_distributed_optimizer_saved_is_loaded_by_it_alone() -> None:
    problem, _, plan = running()
    assert plan.config.zero_stage == 1
    assert asked(lost_nodes=4, **ANY_LAYOUT).constraints == ("zero_stage > 0 or dp * cp == 1",)
    for one in answered(lost_nodes=4, **ANY_LAYOUT).ways:
        config = one.layout.config
        assert config.zero_stage == 1 or config.data_parallel_size * config.context_parallel_size == 1
    plain = replace(plan, config=replace(plan.config, zero_stage=0, zero_shard_size=1))
    body = {**STEPS, "lost_nodes": 4, **ANY_LAYOUT}
    assert changed_job(read_replan_request(body), problem, plain).format.zero_stages == (0, 0)

    bundle = ExportBundle(files={"megatron_args.sh": "MEGATRON_ARGS=(\n    --bf16\n)\n"})
    files = with_resume_files(
        bundle, "megatron-lm", plan, plain, saved_step=900, checkpoint_format="torch_dist_fully_reshardable"
    ).files
    assert (
        "    --use-distributed-optimizer --dist-ckpt-optim-fully-reshardable\n)\n"
        in files["megatron_args.sh"]
    )  # a single replica shards nothing, but it could not load the states otherwise
    assert "--ckpt-fully-parallel-load" in files["resume.sh"]
    for name, has_script in (("fsdp_dtensor", True), ("torch", False)):
        files = with_resume_files(
            bundle, "megatron-lm", plan, plain, saved_step=900, checkpoint_format=name
        ).files
        assert ("resume.sh" in files) == has_script


def test_local_checkpoints_move_what_shared_storage_is_read_for() -> None:
    shared = way(answered(lost_nodes=1, spare_nodes=1), "spare nodes")
    local = way(answered(lost_nodes=1, spare_nodes=1, checkpoint={"place": "local"}), "spare nodes")
    assert local.moved_bytes == shared.moved_bytes > 0
    link = running()[0].cluster.groups[0].inter_node.bytes_per_s
    assert local.resharding_s * link * 8 >= local.moved_bytes  # 8 GPUs of the new node receive all of it


def test_an_unstated_checkpoint_is_half_an_interval_old() -> None:
    problem, _, plan = running()
    found = answered(lost_nodes=1, saved_step=None, steps_done=4000)
    stored = 14.0 * problem.model.num_parameters()
    interval_s = problem.options.reliability.interval_s(stored, 64)
    assert found.lost_steps == int(interval_s / 2 / plan.prediction.step_time_s)
    assert any("saved_step is not stated" in text for text in found.notes)


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        ({}, "/lost_nodes", "nothing changed"),
        ({"lost_nodes": 9}, "/lost_nodes", "9 nodes are lost, but the job had 8"),
        ({"lost_nodes": 8}, "/lost_nodes", "no node is left"),
        ({"lost_nodes": {"a100": 1}}, "/lost_nodes", "a100"),
        ({"slow_nodes": {"8": 0.5}}, "/slow_nodes/8", "the job has no such node"),
        ({"slow_nodes": {"9" * 5000: 0.5}}, "/slow_nodes/", "the job has no such node"),
        ({"slow_nodes": {"x": 0.5}}, "/slow_nodes/x", "the job has no such node"),
        ({"slow_nodes": {"3": 1e-300}}, "/slow_nodes/3", "0.001"),  # it is lost
        ({"lost_nodes": 1, "spare_nodes": 10**6}, "/spare_nodes", "too many in addition to the 7"),
        ({"lost_nodes": 1, "num_nodes": 3}, "/num_nodes", "can't be combined with lost_nodes"),
        ({"lost_nodes": 1, "steps_done": 9000}, "/steps_done", "more than the run has"),
        ({"lost_nodes": 1, "saved_step": 1001}, "/saved_step", "was not reached"),
        ({"lost_nodes": 1, "steps_total": None}, "/steps_total", "is required"),
        ({"lost_nodes": 1, "checkpoint": {"num_parameters": 70_000_000_000}}, "/checkpoint/num_parameters",
         "another model's"),
        ({"lost_nodes": 1, "checkpoint": {"num_layers": 80}}, "/checkpoint/num_layers", "another model's"),
        ({"lost_nodes": 1, "checkpoint": {"format": "dpc"}}, "/checkpoint/format", "dpc"),
    ],
)  # fmt: skip
def test_what_cannot_have_happened_is_refused(body: dict[str, object], pointer: str, says: str) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        asked(**body)
    assert fault.value.errors[0].pointer.startswith(pointer)
    assert says in str(fault.value)


def test_a_cluster_of_a_million_gpus_is_answered_within_bounds() -> None:
    began_s = work_s()
    found = answered(num_nodes=125_000, **ANY_LAYOUT)
    assert way(found, "as it is").layout.config == running()[2].config
    assert work_s() - began_s < 15


def test_a_padded_vocabulary_is_the_same_model() -> None:
    own = running()[0].model
    padded = own.num_parameters() + 2 * 256 * own.hidden_size  # embedding and head, 256 rows each
    assert asked(lost_nodes=1, checkpoint={"num_parameters": padded}).plan == running()[2]


def test_the_steps_of_a_run_follow_from_its_tokens() -> None:
    problem, _, plan = running()
    body = {"lost_nodes": 1, "steps_done": 10}
    tokens = {**_mapping(problem), "workload": {"global_batch_size": 256, "seq_length": 8192,
                                               "total_tokens": 256 * 8192 * 100 + 1}}  # fmt: skip
    job = changed_job(read_replan_request(body), parse_problem(tokens), plan)
    assert job.steps_total == 101  # the last one is not full


def _mapping(problem: Problem) -> dict[str, object]:
    return {"model": {"name": problem.model.name}, "cluster": {"name": "dgx-h100", "num_nodes": 8}}
