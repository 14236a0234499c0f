"""What people read says what is proved, what is not, and what comes next."""

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB, TERA
from meshwright.service.report import formatting as figures
from meshwright.service.report.formatting import with_options, with_questions
from meshwright.service.report.table import to_csv
from meshwright.service.report.terminal import render_answer, render_own, render_prediction, short_id
from meshwright.service.verify.limits import unbuilt_words
from meshwright.solver.answer import Answer, Infeasibility, Remedy, SkippedLauncher
from meshwright.solver.problem import Problem
from tests.builders import (
    a_cluster,
    a_configuration,
    a_gpu,
    a_moe_model,
    a_plan,
    a_prediction,
    a_problem,
    an_answer,
    an_infeasible_answer,
)


def text_of(answer: Answer, problem: Problem | None = None, *, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(render_answer(answer, problem or a_problem(), width=width))
    return capture.get()


def test_the_question_stands_in_the_first_line() -> None:
    first = text_of(an_answer()).splitlines()[0]
    assert first.strip() == (
        "Llama 3.1 70B (70 553 706 496 parameters) · 16 × DGX H100 = 128 GPUs · "
        "batch 512 × 8192 tokens · bf16 · for megatron-lm"
    )


def test_the_certainty_follows_the_question() -> None:
    text = " ".join(text_of(an_answer()).split())
    assert (
        "megatron-lm Optimal under our cost model: the best of 184 320 configurations, "
        "proved to within 0.9 %."
    ) in text
    assert "Searched: tp, pp, vpp, cp, zero, mbs, recompute, rank order, split of layers; 3 912" in text


def test_a_profile_is_named_by_its_title_only_where_it_is_the_one_at_hand() -> None:
    problem = a_problem()
    here = default_profile(problem.cluster, problem.launcher)
    titled = an_answer(versions={"profile": here.version})
    assert "Profile: H100 SXM 80GB under megatron-core, from the catalog, not calibrated" in text_of(titled)
    assert "Profile: version 0123456789ab, not the catalog's" in text_of(
        an_answer(versions={"profile": "0123456789ab"})
    )


def test_an_answer_without_plans_claims_nothing() -> None:
    text = text_of(an_answer(status="unknown", plans=(), bound_step_time_s=None))
    assert "No plan was found in 184 320 configurations, and nothing is proved." in text
    assert "Next: give the search more time (--time-limit-s)" in text


def test_the_table_has_the_glossary_columns_in_mesh_order() -> None:
    heading = next(line for line in text_of(an_answer()).splitlines() if line.lstrip().startswith("# "))
    assert " ".join(heading.split()) == (
        "# tp pp vpp cp dp zero mbs recompute step tokens/s/GPU MFU* peak memory (stage) OOM risk"
    )


def test_a_row_shows_sizes_band_speed_and_the_heaviest_stage() -> None:
    row = next(line for line in text_of(an_answer()).splitlines() if "← best" in line)
    # 34.1 / 32.8 - 1 = 3.96 %; 1 - 31.5 / 32.8 = 3.96 %
    assert re.sub(r"\s+", " ", row).strip() == (
        "1 8 4 5 1 4 1 1 – 32.8 s ±4 % 999 46 % 45.0 of 79.0 GiB (0) <0.1 % ← best"
    )


def test_expert_parallelism_is_a_column_only_where_there_are_experts() -> None:
    assert " ep " not in text_of(an_answer())
    assert " ep " in text_of(an_answer(), a_problem(model=a_moe_model()))


def test_the_denominator_of_mfu_is_always_said() -> None:
    assert "* of 989 TFLOP/s dense bf16 per GPU, causal attention counted" in text_of(an_answer())
    old = a_problem(cluster=a_cluster(gpu=a_gpu(peak_flops={"fp16": 125.0 * TERA})))
    assert "dense fp16 per GPU" in text_of(an_answer(), old)


def test_time_and_memory_of_the_best_plan_are_split_by_cause() -> None:
    text = text_of(an_answer())
    assert "compute 27.6 │ tensor parallel 3.9 │ bubble 0.2 │ data parallel 0.8 │ optimizer 0.3 s" in text
    assert "memory of stage 0" in text
    assert "weights 4.1 │ gradients 8.2 │ optimizer 6.1 │ activations 24.5 │ context 2.0 GiB" in text


def test_only_the_profile_of_the_catalog_is_called_uncalibrated() -> None:
    problem = a_problem()
    here = default_profile(problem.cluster, problem.launcher).version
    assert "not calibrated on your cluster" in text_of(an_answer(versions={"profile": here}))
    assert "not calibrated" not in text_of(an_answer(versions={"profile": "0123456789ab"}))


def test_what_lies_outside_the_measurements_and_every_warning_is_said() -> None:
    plan = replace(a_plan(), prediction=a_prediction(extrapolated=("operators",)))
    text = text_of(an_answer(plan, warnings=("120 of 128 GPUs are used",)))
    assert "Outside the measured range: operators." in text
    assert "warning: 120 of 128 GPUs are used" in text


def test_the_next_command_uses_the_shortest_id_that_is_unique() -> None:
    plans = [a_plan(plan_id="7f3a90c1d2e4"), a_plan(rank=2, plan_id="7f3a91c1d2e4")]
    assert short_id(plans) == "7f3a90"
    assert "meshwright export 7f3a90 --save-dir run/" in text_of(an_answer(*plans))


def test_an_infeasible_answer_says_what_is_nearest_why_and_what_would_fit() -> None:
    text = text_of(an_infeasible_answer(), a_problem())
    assert text.startswith("infeasible: Llama 3.1 70B on 16 × DGX H100 = 128 GPUs. Nothing fits: each of")
    # 26 + 52 + 28 = 106; with 15 of activations 121
    assert (
        "nearest: tp 8 · pp 8 · zero 1 · mbs 1 · full recompute → stage 0 needs 121 of 79 GiB "
        "(weights, gradients and optimizer 106 GiB)"
    ) in text
    assert "because: memory: stage 0 of the nearest configuration is 42.0 GiB short" in text
    assert "smallest changes that fit: 32 nodes" in text


def test_limits_that_exclude_each_other_are_told_from_a_single_one() -> None:
    alone, pair = ("memory of 66.1 GiB a GPU",), ("pin a = 1", "pin b = 2")
    answer = replace(an_infeasible_answer(), infeasible=Infeasibility(reasons=(), conflicts=(alone, pair)))
    text = text_of(answer)
    assert "limiting factor: memory of 66.1 GiB a GPU" in text
    assert "cannot all be met: pin a = 1 + pin b = 2" in text


def test_infeasibility_is_claimed_for_the_gpus_that_were_searched_only() -> None:
    text = text_of(replace(an_infeasible_answer(), num_gpus_used=120))
    assert "128 GPUs with 120 of 128 GPUs. Nothing fits" in " ".join(text.split())


def test_control_characters_of_a_model_name_do_not_reach_the_terminal() -> None:
    model = a_moe_model()
    hostile = replace(model, display_name="evil\x1b[31m\x07name")
    assert "evil[31mname" in text_of(an_answer(), a_problem(model=hostile))


def test_each_change_that_fits_is_an_item_whose_lines_hang_below_its_first() -> None:
    plan = a_plan(recompute_granularity="full", recompute_layers=2)
    remedy = Remedy(
        change="32 nodes",
        config=plan.config,
        step_time_s=20.0,
        num_gpus=256,
        gpu_s_per_token=1.0,
        peak_memory_bytes=60 * GIB,
    )
    found = Infeasibility(reasons=(), remedies=(remedy, remedy))
    text = text_of(replace(an_infeasible_answer(), infeasible=found), width=60)
    items = text.partition("first:\n")[2].partition("  Searched")[0].splitlines()
    starts = [line[: len(line) - len(line.lstrip())] for line in items]
    assert set(starts) == {" " * 6, " " * 8}
    assert [line.split(":")[0] for line, start in zip(items, starts, strict=True) if len(start) == 6] == [
        "      32 nodes",
        "      32 nodes",
    ]


@pytest.mark.parametrize("width", [160, 120, 100, 90, 80, 60, 40, 20])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    plans = [a_plan(), a_plan(rank=2, recompute_granularity="full", recompute_layers=2)]
    for answer in (an_answer(*plans), an_infeasible_answer()):
        assert all(cell_len(line) <= width for line in text_of(answer, width=width).splitlines())


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(85, "MFU, tokens/s/GPU"), (82, "MFU, tokens/s/GPU, cp 1"), (40, "")],
)
def test_a_narrow_terminal_says_which_columns_it_leaves_out_and_keeps_the_risk(
    width: int, left_out: str
) -> None:
    text = text_of(an_answer(), width=width)
    assert f"(no room for {left_out}; --json has all)" in text or not left_out
    assert "OOM risk" in text


def test_a_very_narrow_terminal_gets_lines_instead_of_a_table() -> None:
    assert "1. tp 8 · pp 4 · vpp 5 · dp 4 · zero 1" in text_of(an_answer(), width=40)


def test_a_priced_configuration_has_no_rank_and_no_certificate() -> None:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as capture:
        console.print(
            render_prediction(
                a_configuration(), a_prediction(), a_problem(), width=160, profile="A profile"
            )
        )
    assert "–   8  4   5" in capture.get()
    assert "best" not in capture.get()
    assert "proved" not in capture.get()


def test_a_configuration_with_no_plan_next_to_it_is_one_sentence() -> None:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as capture:
        console.print(render_own(a_plan().config, a_plan().prediction, title="yours", width=160))
    (line,) = capture.get().splitlines()
    assert line.startswith("  yours  tp 8 · pp 4 · vpp 5 · dp 4 · zero 1")
    assert line.endswith("out-of-memory risk <0.1 %")


def test_a_priced_configuration_says_what_speaks_against_it() -> None:
    cluster = replace(a_cluster(), warnings=("links are assumed",))
    prediction = a_prediction(out_of_memory_probability=0.986, extrapolated=("operators",))
    console = Console(width=160, file=io.StringIO())
    with console.capture() as capture:
        console.print(
            render_prediction(
                a_configuration(),
                prediction,
                a_problem(cluster=cluster),
                width=160,
                profile="A profile",
                broken=["tp divides an island"],
            )
        )
    lines = [line.strip() for line in capture.get().splitlines()]
    assert lines[-5:] == [
        "Profile: A profile.",
        "Outside the measured range: operators.",
        "warning: links are assumed",
        "warning: breaks the rule that tp divides an island",
        "warning: out-of-memory probability is 98.6 %; the limit is 5.0 %",
    ]


def test_long_lines_go_on_further_to_the_right_and_break_between_terms() -> None:
    lines = text_of(an_answer(), width=100).splitlines()
    assert lines[1].startswith("  ")  # the header goes on
    memory = next(number for number, line in enumerate(lines) if "memory of stage" in line)
    column = lines[memory].index("weights")
    assert lines[memory].endswith("│")
    assert lines[memory + 1][:column].isspace()
    assert lines[memory + 1][column:].startswith("context")


def test_a_footnote_of_mfu_stands_only_below_its_column() -> None:
    for width, has_mfu in ((160, True), (85, False), (40, False)):
        text = " ".join(text_of(an_answer(), width=width).split())
        assert ("dense bf16 per GPU" in text) == has_mfu
        assert "± is the 80 % interval" in text


def test_recompute_is_written_by_what_it_replays() -> None:
    written = [
        figures.recompute(a_configuration(recompute_granularity=kind, recompute_layers=layers))
        for kind, layers in (("none", 0), ("selective", 0), ("full", 2), ("full", 4))  # chunks of 4
    ]
    assert written == ["–", "selective", "full ×2", "full"]


def test_causes_that_would_print_as_zero_are_summed_up() -> None:
    # 0.04 + 0.03 = 0.07 rounds to 0.1
    assert figures.times({"compute": 12.0, "a": 0.04, "b": 0.03}, 12.07) == "compute 12.0 │ rest 0.1 s"
    assert figures.times({"compute": 0.25, "optimizer": 0.002}, 0.252) == "compute 250 │ optimizer 2 ms"


@given(st.floats(min_value=1e-4, max_value=1e5))
def test_written_seconds_are_within_half_a_per_cent(value_s: float) -> None:
    number, unit = figures.seconds(value_s).split()
    read_s = float(number) * (1.0 if unit == "s" else 1e-3)
    assert read_s == pytest.approx(value_s, rel=0.005, abs=6e-6)


def test_csv_has_one_line_a_plan_and_units_in_its_names() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([a_plan(), a_plan(rank=2)]))))
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert rows[0]["step_time_s"] == "32.8"
    assert rows[0]["stage_layers"] == " ".join(["4"] * 20)


def test_a_calibrated_profile_is_named_and_not_called_uncalibrated() -> None:
    answer = an_answer(notes={"profile": "A100 SXM 80 GB under megatron-core, calibrated on 16 runs"})
    text = " ".join(text_of(answer).split())
    assert "Profile: A100 SXM 80 GB under megatron-core, calibrated on 16 runs." in text
    assert "not calibrated" not in text


def test_launchers_without_a_plan_are_listed_with_their_reasons() -> None:
    skipped = (
        SkippedLauncher(launcher="nanotron", reasons=("nanotron cannot express experts",)),
        SkippedLauncher(launcher="accelerate", reasons=("no pipeline", "no ZeRO 1")),
    )
    lines = text_of(an_answer(skipped_launchers=skipped)).splitlines()
    at = lines.index("  Launchers without a plan:")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [
        "nanotron: nanotron cannot express experts",
        "accelerate: no pipeline; no ZeRO 1",
    ]
    assert "without a plan" not in text_of(an_answer())


def test_a_first_plan_that_verify_cannot_build_is_stated() -> None:
    sharded = a_plan(zero_stage=2, pipeline_parallel_size=1, virtual_pipeline_size=1)
    words = unbuilt_words(sharded, a_problem())
    assert words.startswith("#1 cannot be built by meshwright verify: Megatron-FSDP")
    assert unbuilt_words(a_plan(), a_problem()) == ""
    shown = text_of(an_answer(sharded))
    assert "#1 cannot be built by meshwright verify" in shown


def test_a_plan_that_needs_a_package_is_marked_with_its_name() -> None:
    extra = replace(a_plan(plan_id="b" * 12, rank=2), needs=("HybridEP",), ranked=False)
    shown = text_of(an_answer(a_plan(), extra))
    assert "needs HybridEP" in shown
    assert "are the next best" not in shown
    row = to_csv((a_plan(), extra)).splitlines()
    assert row[0].endswith("needs,ranked")
    assert [line.rsplit(",", 2)[1:] for line in row[1:]] == [["", "true"], ["HybridEP", "false"]]


def test_a_warning_names_a_field_as_the_reader_can_state_it() -> None:
    warning = "#11 needs HybridEP: 2.68 s instead of 2.82 s; search.allow: switches ranks such plans, too"
    assert with_options(warning).endswith("; --allow switches ranks such plans, too")
    said = "; “Also try: switches” (--allow switches) ranks such plans, too"
    assert with_questions(warning).endswith(said)
    for plain in ("", "a warning without a field"):
        assert with_options(plain) == with_questions(plain) == plain


def test_a_piece_that_is_longer_than_a_line_breaks_behind_the_indent() -> None:
    stages = "2 stages on H100 (tensor 1), 1 stage on L40S (tensor 1) and 2 stages on A100 (tensor 2)"
    line = "run    " + figures.pieces(f"tensor 2 · {stages}", "·")
    text = figures.wrapped(line, 80, indent=2, hang=7).plain
    assert all(len(line) <= 80 for line in text.splitlines())
    assert [line[:9].strip() for line in text.splitlines()] == ["run", ""]


@pytest.mark.parametrize("width", range(40, 121))
def test_no_line_ends_within_an_option_that_can_be_pasted(width: int) -> None:
    """Each value starts with its option's name, so that a line without the name is cut within it."""
    said = [
        "A global batch of 32 would save 17 % (results): --global-batch-size 32.",
        "To accept the risk of the closest edits, add --max-oom-probability 0.42 to your own command.",
        "Placing stages on node groups is faster: use --launcher flagscale --allow gradient_dtype.",
        "Megatron-Bridge 4 %, 16-bit Adam states 4 % and bf16 gradients 3 %: meshwright explain --levers.",
    ]
    for text in said:
        lines = figures.wrapped(text, width, indent=2).plain.split("\n")
        assert " ".join(line.strip() for line in lines) == text
        assert not [line for line in lines if re.search(r"(?:--[a-z-]+[a-z]|\bmeshwright)$", line.rstrip())]
        assert max(map(len, lines)) <= width
