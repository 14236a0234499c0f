"""Dynamic context parallelism: each document is split over only as many ranks as it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.launchers.reading.base import Source
from meshwright.launchers.registry import export
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.service.requests.launch_files import own_of_files
from meshwright.solver.check import launcher_faults
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.launcher_rules import option_faults, own_faults
from tests.launchers.cases import plan
from tests.unit.solver.planner.test_variants import answered

(GROUP,) = find_cluster("dgx-h100").groups
CLUSTER = replace(find_cluster("dgx-h100"), groups=(replace(GROUP, num_nodes=1),))
SEQ = 32768
HYBRID = model_from_config({"model_type": "falcon_h1"}, name="falcon-h1")  # attention next to Mamba 2
LONG = SequenceLengths(percentiles=((0.0, 4000), (50.0, 6000), (100.0, SEQ)))
ROW = Configuration(
    context_parallel_size=4, data_parallel_size=2, num_microbatches=8, zero_stage=1, zero_shard_size=8,
    recompute_granularity="full", recompute_layers=32, stage_layers=(32,),
)  # fmt: skip


def asked(lengths: SequenceLengths | None = LONG, *, dynamic: bool = True, **changes: object) -> Problem:
    options = {"dynamic_context_parallel": dynamic} if dynamic else {}
    workload = Workload(global_batch_size=16, seq_length=SEQ, lengths=lengths, framework_options=options)
    return Problem(
        model=find_model("llama-3.1-8b"), cluster=CLUSTER, launcher="megatron-lm",
        workload=replace(workload, **changes),  # type: ignore[arg-type]
    )  # fmt: skip


def step_s(problem: Problem, config: Configuration = ROW) -> float:
    return predict(problem, default_profile(CLUSTER, "megatron-lm"), config).step_time_s


def all_of(tokens: int) -> SequenceLengths:
    return SequenceLengths(histogram=((tokens, 1.0),))


def test_documents_of_the_whole_sequence_pass_as_under_fixed_context_parallelism() -> None:
    assert step_s(asked(all_of(SEQ))) == pytest.approx(step_s(asked(all_of(SEQ), dynamic=False)))


def test_documents_that_one_rank_holds_pass_as_without_context_parallelism() -> None:
    """Four documents of 8192 tokens a sequence on cp 4: each rank has one of them to itself."""
    alone = replace(ROW, context_parallel_size=1, data_parallel_size=8)
    plain = asked(None, dynamic=False, global_batch_size=64, seq_length=SEQ // 4)
    assert step_s(asked(all_of(SEQ // 4))) == pytest.approx(step_s(plain, alone))


def test_ranks_that_differ_wait_and_the_longest_documents_still_need_all_of_them() -> None:
    profile = default_profile(CLUSTER, "megatron-lm")
    fixed, dynamic = (predict(asked(dynamic=on), profile, ROW) for on in (False, True))
    assert dynamic.peak_memory_bytes == fixed.peak_memory_bytes
    assert 0.0 < dynamic.time_breakdown_s["context_parallel"] < fixed.time_breakdown_s["context_parallel"]
    assert dynamic.time_breakdown_s["unequal_lengths"] > 0.0
    assert sum(dynamic.time_breakdown_s.values()) == pytest.approx(dynamic.step_time_s)


@pytest.mark.parametrize(
    "change",
    [
        {"context_parallel_size": 1}, {"context_parallel_size": 6}, {"pipeline_parallel_size": 2},
        {"context_parallel_mode": "all_to_all"}, {"expert_parallel_size": 2}, {"micro_batch_size": 2},
        {"zero_stage": 2},
    ],
)  # fmt: skip
def test_what_megatron_lm_excludes_is_illegal_by_rule_and_by_check(change: dict[str, object]) -> None:
    config = replace(ROW, **change)  # type: ignore[arg-type]
    (faults,) = own_faults(asked(), launcher_capabilities("megatron-lm"), [config])
    assert any(fault.startswith("dynamic_context_parallel deals out") for fault in faults)
    assert any(
        fault.startswith("dynamic context parallelism") for fault in launcher_faults(asked(), config)
    )


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (asked(None), "needs the lengths of packed documents, and none are stated"),
        (asked(replace(LONG, batching="padding")), "documents, and batching is padding"),
        (replace(asked(), launcher="megatron-bridge"), "no data loader of this launcher"),
        (replace(asked(), model=find_model("deepseek-v3")), "it needs a model with no latent attention"),
        (replace(asked(), model=HYBRID, launcher="none"), "a model that has only self-attention layers"),
        (replace(asked(), model=HYBRID), "it needs a model with self-attention alone"),
    ],
)  # fmt: skip
def test_where_it_cannot_run_it_is_refused_by_name(problem: Problem, says: str) -> None:
    found = [*option_faults(problem, launcher_capabilities(problem.launcher))]
    (fault,) = (one for one in found if one.pointer.endswith("/dynamic_context_parallel"))
    assert says in fault.message
    assert fault.allowed


def test_the_search_takes_it_where_it_is_allowed_and_faster() -> None:
    """Nine in ten documents fit on one of four ranks."""
    problem = asked(replace(LONG, percentiles=((0.0, 4000), (90.0, 6000), (100.0, SEQ))), dynamic=False)
    pin = {"context_parallel_size": 4}
    options = replace(problem.options, pin=pin, certify="none")
    fixed, found = (
        answered(replace(problem, options=replace(options, allow=allow))).plans[0]
        for allow in ((), ("dynamic_context_parallel",))
    )
    assert found.workload["dynamic_context_parallel"] == "true"
    assert found.prediction.step_time_s < fixed.prediction.step_time_s


def exported() -> dict[str, str]:
    return dict(export(plan(ROW), asked(), "megatron-lm").files)


def read(files: dict[str, str], lengths: SequenceLengths) -> float:
    request = {
        "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"lengths": lengths.to_mapping()},
    }
    source = Source(name="launch.sh", text=files["launch.sh"], files=files)
    own = own_of_files(request, source)
    assert own.configuration == ROW
    assert own.problem.workload.framework_options["dynamic_context_parallel"] is True
    return step_s(own.problem)


def test_its_files_state_the_tokens_of_a_rank_and_are_read_as_they_were_priced() -> None:
    files = exported()
    for line in ("--hybrid-context-parallel", f"--max-seqlen-per-dp-cp-rank {SEQ // 4}",
                 "--calculate-per-token-loss", "--sft"):  # fmt: skip
        assert line in files["megatron_args.sh"]
    assert read(files, LONG) == pytest.approx(step_s(asked()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((f"rank {SEQ // 4}", "rank 4096"), "4096 is not supported with --hybrid-context-parallel"),
        ((f"--max-seqlen-per-dp-cp-rank {SEQ // 4}", ""), "is required with --hybrid-context-parallel"),
        (("--calculate-per-token-loss", ""), "needs --calculate-per-token-loss"),
    ],
)
def test_files_that_megatron_lm_refuses_or_that_are_not_priced_name_the_flag(
    change: tuple[str, str], says: str
) -> None:
    files = exported()
    files["megatron_args.sh"] = files["megatron_args.sh"].replace(*change)
    with pytest.raises(InvalidProblemError, match=says):
        read(files, LONG)


def packed(lengths: SequenceLengths) -> float:
    options = {"dynamic_context_parallel": True, "dynamic_context_packing": True}
    return step_s(replace(asked(lengths, framework_options=options), launcher="none"))


def test_packed_documents_cost_one_micro_batch_on_one_rank() -> None:
    """Sixteen documents of 2048 tokens a sequence on cp 4: each rank has a pass of four of them."""
    alone = replace(ROW, context_parallel_size=1, data_parallel_size=8, micro_batch_size=4)
    plain = asked(None, dynamic=False, global_batch_size=256, seq_length=SEQ // 16)
    assert packed(all_of(SEQ // 16)) == pytest.approx(step_s(replace(plain, launcher="none"), alone))


def test_packing_helps_short_documents_and_changes_nothing_for_those_that_fill_a_rank() -> None:
    single = replace(asked(all_of(SEQ // 4)), launcher="none")
    assert packed(all_of(SEQ // 4)) == pytest.approx(step_s(single))
    short = replace(asked(all_of(SEQ // 32)), launcher="none")
    assert packed(all_of(SEQ // 32)) < step_s(short)


@pytest.mark.parametrize(
    ("launcher", "options", "says"),
    [
        ("none", {"dynamic_context_packing": True}, "it does nothing without dynamic_context_parallel"),
        (
            "megatron-lm", {"dynamic_context_packing": True, "dynamic_context_parallel": True},
            "only Megatron-LM's dev branch can",
        ),
    ],
)  # fmt: skip
def test_packing_without_dynamic_sizes_or_that_no_release_has_is_refused(
    launcher: str, options: dict[str, object], says: str
) -> None:
    problem = replace(asked(framework_options=options), launcher=launcher)
    found = [*option_faults(problem, launcher_capabilities(launcher))]
    (fault,) = (one for one in found if one.pointer.endswith("/dynamic_context_packing"))
    assert says in fault.message
    assert fault.allowed
