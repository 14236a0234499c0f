"""The default answer: five facts, then what differs between the first plans."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.library import find_model
from meshwright.service.report.standings import standings_of
from meshwright.service.report.summary import mail_lines, summary_of, title_words, warning_words
from meshwright.service.report.terminal import render_summary
from meshwright.service.report.verdict import verdict_of
from meshwright.solver.answer import Answer, Lever, ObjectiveClaim, Odds, Reference
from meshwright.solver.problem import Problem
from tests.builders import (
    a_cluster,
    a_configuration,
    a_gpu,
    a_plan,
    a_prediction,
    a_problem,
    an_answer,
    an_infeasible_answer,
)
from tests.problems.mixed_clusters import a_group, a_mixed_problem

RECIPE = Reference(
    name="Megatron-Bridge's recipe",
    source="recipes/llama/llama3.py",
    config=a_configuration(),
    prediction=a_prediction(step_time_s=45.9),
    speedup=1.4,  # 45.9 / 32.8
)
BF16 = Lever(
    change="bf16 gradients",
    config=a_configuration(),
    step_time_s=30.8,
    num_gpus=128,
    gpu_s_per_token=9.4e-4,
    peak_memory_bytes=0,
    kind="gradient_dtype",
    settings={"search.allow": ["gradient_dtype"]},
    saves=0.06,  # 1 - 30.8 / 32.8
    effect="gradients are summed in bf16: numerics",
)


def lines_of(answer: Answer, problem: Problem | None = None, width: int = 120) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(render_summary(answer, problem or a_problem(), width=width))
    return [line.rstrip() for line in capture.get().splitlines()]


def fact(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(f"  {label}"))


def test_an_answer_states_run_speed_fit_certainty_and_what_would_help_in_this_order() -> None:
    plans = [a_plan(), a_plan(rank=2, plan_id="b", data_parallel_size=8, pipeline_parallel_size=2)]
    lines = lines_of(an_answer(*plans, reference=RECIPE, levers=(BF16,)))
    assert lines[0] == "Llama 3.1 70B on 128 × H100 (Megatron-LM, bf16, batch 512 × 8192)"
    labels = [line[2:9].strip() for line in lines[1:] if line[2:9].strip() and line.startswith("  ")]
    assert labels[:5] == ["run", "speed", "fits", "sure", "more"]
    # 999 tokens/s of each of 128 GPUs: 127 872, and the band 31.5 to 34.1 s
    assert fact(lines, "speed") == (
        "  speed  32.8 s a step, 32 to 34 s likely · 128,000 tokens/s · 46 % MFU · "
        "1.4 × Megatron-Bridge's recipe"
    )
    assert fact(lines, "fits") == "  fits   45.0 of 79.0 GiB a GPU, out-of-memory risk under 0.1 %"
    more = fact(lines, "more")
    assert more.startswith("  more   bf16 gradients would save 6 % (numerics)")
    assert more.endswith("--allow gradient_dtype")


def test_a_reference_that_cannot_run_is_said_to_and_compared_with_nothing() -> None:
    answer = an_answer(reference=replace(RECIPE, problems=("it needs 91 of 79 GiB",)))
    assert "Megatron-Bridge's recipe cannot run here" in fact(lines_of(answer), "speed")
    assert "× Megatron" not in " ".join(lines_of(answer))
    assert "cannot run: it needs 91 of 79 GiB" in summary_of(answer, a_problem()).headline


def test_a_rule_of_thumb_that_nothing_divides_for_names_the_batch_and_the_gpus() -> None:
    config = replace(RECIPE.config, num_microbatches=RECIPE.config.num_microbatches + 1)
    why = "no usual layout divides a batch of 512 over 24 GPUs"
    answer = an_answer(reference=replace(RECIPE, config=config, problems=(why,)))
    assert why in " ".join(" ".join(lines_of(answer)).split())


def test_a_launcher_that_cannot_express_the_model_is_given_no_command_to_export() -> None:
    plain = fact(lines_of(an_answer()), "run")
    other = replace(a_problem(), model=find_model("gemma-3-4b"), launcher="megatron-bridge")
    assert "meshwright export" in plain
    assert "meshwright export" not in fact(lines_of(an_answer(), other), "run")


def test_only_what_differs_between_plans_has_a_column() -> None:
    same_mesh = [
        a_plan(rank=size, plan_id=str(size), micro_batch_size=size, num_microbatches=128 // size)
        for size in (1, 2)
    ]
    assert lines_of(an_answer(*same_mesh))[-3].split() == ["#", "micro-batch"]
    other = [
        a_plan(),
        a_plan(rank=2, plan_id="2", context_parallel_size=2, data_parallel_size=2, num_microbatches=256),
    ]
    assert lines_of(an_answer(*other))[-3:] == [
        "  #  layout",
        "  1  tp8 pp4×5 dp4",
        "  2  tp8 pp4×5 cp2 dp2",
    ]
    assert not any(line.startswith("  #") for line in lines_of(an_answer()))


def test_one_gpu_has_no_letters() -> None:
    alone = a_cluster(num_nodes=1)
    group = replace(alone.groups[0], gpus_per_node=1, island_gpus=1)
    problem = replace(a_problem(batch=4), cluster=replace(alone, groups=(group,)))
    sizes: dict[str, Any] = dict.fromkeys(
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1
    )
    plan = a_plan(
        **sizes, virtual_pipeline_size=1, zero_stage=0, zero_shard_size=1, micro_batch_size=4,
        stage_layers=(80,), recompute_granularity="full", recompute_layers=80,
        pipeline_schedule="none",
    )  # fmt: skip
    line = lines_of(an_answer(plan), problem)[1]
    assert line.startswith("  run    one GPU · micro-batch 4 · full recomputation   meshwright export 1")


@pytest.mark.parametrize(("plans", "advised"), [(1, False), (2, False), (3, True)])
def test_who_has_three_plans_is_advised_to_run_three(plans: int, advised: bool) -> None:
    found = [a_plan(rank=rank, plan_id=str(rank), micro_batch_size=rank) for rank in range(1, plans + 1)]
    assert ("meshwright tune" in " ".join(lines_of(an_answer(*found)))) is advised


def test_plans_as_good_as_the_first_are_named() -> None:
    found = [
        replace(a_plan(rank=rank, plan_id=str(rank)), odds=Odds(best_probability=0.3, regret_p90=0.1))
        for rank in (1, 2, 3)
    ]
    assert "Best of 184,320 under our model, tied with #2 and #3 within its error." in " ".join(
        " ".join(lines_of(an_answer(*found))).split()
    )


def test_a_gpu_is_named_as_shortly_as_a_request_may_name_it() -> None:
    small = a_cluster(num_nodes=2, gpu=a_gpu(slug="a100-sxm-40gb", display_name="A100 SXM 40 GB"))
    assert title_words(a_problem(cluster=small)).startswith("Llama 3.1 70B on 16 × A100 40 GB (")
    assert title_words(a_problem()).startswith("Llama 3.1 70B on 128 × H100 (")


def test_nothing_fits_in_fourteen_lines() -> None:
    lines = lines_of(an_infeasible_answer(), width=80)
    assert len(lines) <= 14
    assert lines[1].strip().startswith("Nothing fits")


def test_an_offload_that_only_the_host_lacks_memory_for_is_named_with_the_number() -> None:
    answer = an_infeasible_answer()
    found = answer.infeasible
    assert found is not None
    assert found.nearest is not None
    near = replace(found.nearest, lacks_outside={"host memory": 6 * 2**30})
    lines = lines_of(replace(answer, infeasible=replace(found, nearest=near)), width=120)
    (host,) = (line.strip() for line in lines if line.startswith("  host"))
    assert host.startswith("host   6.0 GiB more host memory a GPU would do for ")
    assert not any(line.startswith("  host") for line in lines_of(answer, width=120))


def test_report_and_page_lead_with_the_comparison_and_have_the_facts_for_a_mail() -> None:
    answer = an_answer(reference=RECIPE, levers=(BF16,))
    verdict = verdict_of(answer, a_problem())
    assert verdict.against == "32.8 s a step, 1.4 × as fast as Megatron-Bridge's recipe (45.9 s)."
    facts = {fact.label: fact.text for fact in summary_of(answer, a_problem()).facts}
    assert (verdict.sentence, verdict.certainty) == (facts["run"], facts["sure"])
    assert [offer.option for offer in verdict.offers] == ["--allow gradient_dtype"]
    assert verdict.mail == tuple(mail_lines(summary_of(answer, a_problem())))
    questions = [line.partition("?")[0] for line in verdict.mail[2:]]
    assert questions == [
        "What do I run", "How fast is it", "Does it fit", "How sure is it", "What would help"
    ]  # fmt: skip


def test_a_page_says_warnings_and_changes_as_a_terminal_does() -> None:
    assert warning_words("cluster.groups.0.gpu: h100: assuming SXM") == "h100: assuming SXM"
    answer = an_infeasible_answer()
    assert answer.infeasible is not None
    answer = replace(answer, infeasible=replace(answer.infeasible, remedies=(BF16,)))
    ((change, option, plan),) = verdict_of(answer, a_problem()).remedies
    assert (change, option) == ("Bf16 gradients", "--allow gradient_dtype")
    assert "--" not in plan


def test_the_table_of_a_page_has_the_settings_in_which_its_plans_differ() -> None:
    graph = {"cuda_graph": "full_iteration"}
    plans = (
        replace(a_plan(), workload=graph),
        replace(
            a_plan(rank=2, plan_id="b", micro_batch_size=2), workload=graph | {"recompute_modules": "mlp"}
        ),
    )
    table = standings_of(an_answer(*plans), a_problem(), set())
    settings = [one.title for one in table.headings if one.kind == "size" or one.title == "with"]
    assert settings == ["mbs", "with"]
    assert [row.entries[-1][0] for row in table.rows] == ["", "recompute modules mlp"]
    assert table.note.endswith("Each plan has: CUDA graph full iteration.")


def test_changes_that_save_little_share_a_line() -> None:
    some = [replace(BF16, change=name, kind=name, saves=saves) for name, saves in
            (("a", 0.3), ("b", 0.2), ("c", 0.1), ("d", 0.06), ("launcher trl", 0.02))]  # fmt: skip
    offers = summary_of(an_answer(levers=tuple(some)), a_problem()).offers
    assert [one.words for one in offers] == [
        "a would save 30 % (numerics)", "b would save 20 % (numerics)", "c would save 10 % (numerics)",
        "d 6 % and TRL 2 % less",
    ]  # fmt: skip
    assert offers[-1].option == "meshwright explain --levers"
    (alone,) = summary_of(an_answer(levers=(replace(BF16, saves=0.02),)), a_problem()).offers
    assert alone.option == "--allow gradient_dtype"


def test_fewer_nodes_come_with_their_step_where_that_is_longer() -> None:
    def offered(step_time_s: float) -> str:
        answer = an_answer(
            a_plan(), notes={"gpus": "fewest"}, levers=(replace(BF16, step_time_s=step_time_s),)
        )
        (offer,) = summary_of(answer, a_problem()).offers
        return offer.words

    assert offered(40.0).endswith("would save 6 % of the nodes with a step of up to 40.0 s (numerics)")
    assert offered(30.0).endswith("would save 6 % of the nodes (numerics)")


def test_what_a_change_saves_is_called_energy_where_that_ranks() -> None:
    limit = replace(
        BF16, change="a power limit", kind="power_limit_w", effect="steps take longer",
        settings={"search.allow": ["power_limit_w"]},
    )  # fmt: skip
    claim = ObjectiveClaim(name="energy_per_token", unit="J/token", value=2.3, bound=2.3, gap=0.0)
    (offer,) = summary_of(an_answer(objective=claim, levers=(limit,)), a_problem()).offers
    assert offer.words == "a power limit would save 6 % of the energy (steps take longer)"


@pytest.mark.parametrize(
    ("counts", "listed"),
    [((), ""), ((16,), ""), ((1, 2, 4), "1,2,4"), (tuple(range(1, 33)), "1,5,9,13,17,21,25,29,32")],
)
def test_the_best_of_several_numbers_of_nodes_says_how_to_see_each(
    counts: tuple[int, ...], listed: str
) -> None:
    problem = a_problem()
    problem = replace(problem, options=replace(problem.options, num_nodes=counts))
    notes = summary_of(an_answer(), problem).notes
    assert [one.replace("\u00a0", " ") for one in notes if "numbers of nodes" in one] == (
        [f"The best of all numbers of nodes. A line for each: --sweep num_nodes={listed}"] if listed else []
    )


@pytest.mark.parametrize(("groups", "limits", "how"), [
    ((a_group(nodes=3),), (), "--num-nodes 1:3 with --gpu or --cluster searches all"),
    ((a_group(), a_group(nodes=2, slug="slow")), (), '--constraint "num_gpus <= 4" searches those'),
    ((a_group(), a_group(nodes=2, slug="slow")), ("num_gpus <= 4",), ""),
])  # fmt: skip
def test_where_fewer_nodes_may_be_better_the_answer_says_how_to_search_them(
    groups: tuple[NodeGroup, ...], limits: tuple[str, ...], how: str
) -> None:
    problem = a_mixed_problem(groups, objective="energy_per_token", constraints=limits)
    notes = [one.replace("\u00a0", " ") for one in summary_of(an_answer(), problem).notes]
    said = [one for one in notes if "may be better by this objective" in one]
    assert said == ([f"Fewer than 3 nodes may be better by this objective: {how}"] if how else [])
