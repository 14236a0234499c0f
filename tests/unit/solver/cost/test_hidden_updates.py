"""SuperOffload and ZenFlow: updates on the host that run under passes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from meshwright.launchers.deepspeed.read import DEEPSPEED_READER
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.registry import export
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import ClusterSpec, host_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.checks import check_limits
from meshwright.solver.check import launcher_faults
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import outside_bytes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.planner import no_plan
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, SearchOptions
from meshwright.solver.space.launcher_rules import own_faults, workload_faults
from tests.builders import a_cluster, a_model, a_problem
from tests.draws import seldom

MODEL = a_model(num_layers=4, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32,
                num_kv_heads=32, head_dim=128, vocab_size=32000, gated_mlp=False)  # fmt: skip
WIDE = replace(MODEL, vocab_size=128_000)
LAYER, DP = 4 * 4096 * 4096 + 2 * 4096 * 16384 + 2 * 4096, 8
PINNED: dict[str, int | str] = {
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "micro_batch_size": 1, "offload": "optimizer",
}  # fmt: skip
SUPER: dict[str, Any] = {"super_offload": True}
ZENFLOW: dict[str, Any] = {"cpu_update_interval": 4.0}


def a_run(zero: int, micro: int = 1, offload: str = "optimizer") -> Configuration:
    return Configuration(
        data_parallel_size=DP, zero_stage=zero, zero_shard_size=DP, num_microbatches=micro,
        stage_layers=(4,), offload=offload,
    )  # fmt: skip


def asked(batch: int = DP, seq_length: int = 1024, **options: float) -> Problem:
    nodes = ClusterSpec(name="one node", groups=(replace(a_cluster().groups[0], num_nodes=1),))
    problem = a_problem(model=MODEL, cluster=nodes, batch=batch)
    work = replace(problem.workload, seq_length=seq_length, framework_options=options)
    return replace(
        problem, workload=work, launcher="deepspeed",
        options=SearchOptions(certify="none", top_k=1, allow=("offload",)),
    )  # fmt: skip


def prices(config: Configuration, problem: Problem) -> RowPrices:
    return price(problem, Columns.of([config]), default_profile(problem.cluster, "deepspeed"))


def update_s(config: Configuration, problem: Problem) -> float:
    return float(prices(config, problem).tail_breakdown_s["optimizer"][0, 0])


def parts(problem: Problem) -> tuple[float, float]:
    """Seconds of 4 bytes of a layer's shard over the link, and of its update by AdamW on the host."""
    host = host_of(problem.cluster.groups[0])
    shard = LAYER / DP
    return 4.0 * shard / host.link_bytes_per_s, 30.0 * shard / host.memory_bytes_per_s


def test_superoffload_shows_what_the_backward_pass_does_not_hide_and_weights_that_come_back() -> None:
    short, long = asked(seq_length=128, **SUPER), asked(seq_length=16384, **SUPER)
    link, update = parts(short)
    busy, scaled = link + update, update * 8 / 30  # gradients read and written again, by the rank itself
    under = float(prices(a_run(3), short).backward_s[0, 0])
    assert update_s(a_run(3), short) == pytest.approx(busy - under + link + scaled, rel=0.02)
    # a long pass hides all but the last of 20 groups
    assert update_s(a_run(3), long) == pytest.approx(busy / 20 + link + scaled, rel=0.02)
    assert update_s(a_run(3), asked(seq_length=16384)) > 0.9 * busy


def test_zenflow_waits_for_no_update_that_its_steps_hide_and_shares_the_copies_among_them() -> None:
    every, fourth = asked(seq_length=8192), asked(seq_length=8192, **ZENFLOW)
    link, update = parts(every)
    selected = 0.05 * 14.0 * LAYER / context_of(
        fourth, Columns.of([a_run(2)]), default_profile(fourth.cluster, "deepspeed")
    ).hbm_bytes_per_s  # fmt: skip
    scaled = update * 8 / 30
    added = (1 + 3 * 2) * link / 2  # 2-byte gradients go there four times, and come back three times
    assert update_s(a_run(2), fourth) == pytest.approx((2 * link + scaled + added) / 4 + selected, rel=0.02)
    # and the fp32 copy is read again, 4 bytes, to be cast for the GPU
    assert update_s(a_run(2), every) == pytest.approx(1.5 * link + update * (30 + 8 + 4) / 30, rel=0.02)


def test_zenflow_updates_the_embedding_under_the_passes_of_all_layers() -> None:
    """A look-up takes no time that would hide an update: it runs under the layers, as any other does."""
    long, short = (
        replace(asked(seq_length=size, cpu_update_interval=2.0), model=WIDE) for size in (8192, 128)
    )
    host, weights = host_of(long.cluster.groups[0]), 128_000 * 4096
    config = Columns.of([a_run(2)])

    def of_embedding(problem: Problem) -> tuple[float, float]:
        """Seconds beyond copies and selected gradients, of the embedding and of the whole rank."""
        found = prices(a_run(2), problem)
        ctx = context_of(problem, config, default_profile(problem.cluster, "deepspeed"))
        copied = (2.0 * 4.0 + 3.0 * 2.0) / host.link_bytes_per_s + 8.0 / host.memory_bytes_per_s
        each = copied / 2 / DP + 0.05 * 14.0 / float(ctx.hbm_bytes_per_s)
        optimizer_s = found.tail_breakdown_s["optimizer"][0]
        total = 4.0 * optimizer_s[0] + optimizer_s[1:].sum() - each * WIDE.num_parameters()
        return float(optimizer_s[1] - each * weights), float(total)

    computed_s = 30.0 * WIDE.num_parameters() / DP / host.memory_bytes_per_s
    assert of_embedding(long) == pytest.approx((0.0, 0.0), abs=1e-3 * computed_s)
    found = prices(a_run(2), short)
    passes_s = found.forward_s[0] + found.backward_s[0]
    waits_s = computed_s / 2.0 - (4.0 * passes_s[0] + passes_s[1:].sum())
    assert waits_s > 0.0
    assert of_embedding(short)[1] == pytest.approx(waits_s, rel=0.02)


def test_zenflow_keeps_selected_gradients_on_the_gpu_and_a_second_set_on_the_host() -> None:
    plain, late = asked(), asked(**ZENFLOW)
    gpu = [float(prices(a_run(2), one).optimizer_bytes[0, 0]) for one in (plain, late)]
    assert gpu == pytest.approx([0.0, 8.0 * 0.05 * LAYER], rel=0.01)
    host = [
        float(outside_bytes(
            context_of(one, Columns.of([a_run(2)]), default_profile(one.cluster, "deepspeed")),
        ).host[0])
        for one in (plain, late)
    ]  # fmt: skip
    assert host[1] - host[0] == pytest.approx(8.0 * MODEL.num_parameters() / DP, rel=0.01)


@pytest.mark.parametrize(
    ("options", "config", "legal"),
    [
        (SUPER, a_run(3), True),
        (SUPER, a_run(3, 4), True),
        (SUPER, a_run(2), False),
        (SUPER, a_run(3, offload="none"), False),
        (SUPER, a_run(3, offload="optimizer+parameters"), False),
        (ZENFLOW, a_run(2), True),
        (ZENFLOW, a_run(3), False),
        (ZENFLOW, a_run(2, 4), False),
        (ZENFLOW, a_run(2, offload="none"), False),
        (ZENFLOW | {"optimizer_offload_fraction": 0.5}, a_run(2), False),
        (SUPER | ZENFLOW, a_run(3), False),
        (SUPER | ZENFLOW, a_run(2), False),
    ],
)
def test_rules_and_check_refuse_rows_that_deepspeed_runs_otherwise(
    options: dict[str, Any], config: Configuration, legal: bool
) -> None:
    problem = asked(batch=config.global_batch_size, **options)
    able = launcher_capabilities("deepspeed")
    assert (own_faults(problem, able, [config]) == [[]]) == legal
    assert (list(launcher_faults(problem, config)) == []) == legal


@pytest.mark.parametrize("launcher", ["deepspeed", "megatron-lm", "none", "any"])
def test_a_share_of_selected_gradients_without_zenflow_is_refused(launcher: str) -> None:
    share: dict[str, Any] = {"selected_gradient_share": 0.5}

    def refused(problem: Problem) -> list[str]:
        try:
            check_limits(replace(problem, launcher=launcher))
        except InvalidProblemError as fault:
            return [one.pointer for one in fault.errors]
        return []

    pointer = "/workload/framework_options/selected_gradient_share"
    assert pointer in refused(asked(**share))
    assert pointer not in refused(asked(**share, **ZENFLOW))
    searched = SearchOptions(allow=("offload", "cpu_update_interval"))
    assert pointer not in refused(replace(asked(**share), options=searched))


@seldom
def test_a_search_over_both_finds_the_best_plan_of_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brute force: each pair of settings as a request of its own."""
    # why a setting has no plan takes longer than its search
    monkeypatch.setattr(no_plan, "with_reasons_of_none", lambda _problem, _profile, answer, _watch: answer)
    problem = asked(seq_length=2048)
    problem = replace(problem, options=replace(problem.options, pin=PINNED))
    profile = default_profile(problem.cluster, "deepspeed")
    allow = ("offload", "super_offload", "cpu_update_interval")
    found = ask(replace(problem, options=replace(problem.options, allow=allow)), profile)
    every = []
    for early, steps in product((False, True), (1.0, 4.0, 16.0)):
        stated = {"super_offload": early, "cpu_update_interval": steps}
        one = ask(replace(problem, workload=replace(problem.workload, framework_options=stated)), profile)
        every += [plan.prediction.step_time_s for plan in one.plans[:1]]
    assert len(every) == 4, "neither, SuperOffload, and two intervals of ZenFlow"
    assert found.plans[0].prediction.step_time_s == pytest.approx(min(every))
    assert min(every) < 0.9 * every[0]


def test_states_in_bf16_take_four_bytes_a_weight_and_no_copy() -> None:
    """Of a shard: weight and gradient 2 bytes each, two moments of 2; else a copy and two moments of 4."""
    bytes_of = {}
    for name in ("adamw", "adamw-pure-bf16"):
        problem = asked()
        problem = replace(problem, workload=replace(problem.workload, optimizer=name))
        found = prices(a_run(3, offload="none"), problem)
        parts = (found.weights_bytes, found.gradients_bytes, found.optimizer_bytes)
        bytes_of[name] = [float(part[0, 0]) / (LAYER / DP) for part in parts]
    assert bytes_of["adamw"] == pytest.approx([2, 2, 4 + 4 + 4])
    assert bytes_of["adamw-pure-bf16"] == pytest.approx([2, 2, 2 + 2])


@pytest.mark.parametrize(("zero", "offload", "precision", "legal"), [
    (3, "none", "bf16", True), (2, "none", "bf16", False), (3, "optimizer", "bf16", False),
    (3, "none", "fp16", False),
])  # fmt: skip
def test_states_in_bf16_need_whole_shards_on_the_gpu(
    zero: int, offload: str, precision: str, legal: bool
) -> None:
    config = a_run(zero, offload=offload)
    problem = asked(batch=config.global_batch_size)
    work = replace(problem.workload, optimizer="adamw-pure-bf16", precision=precision)
    problem = replace(problem, workload=work)
    able = launcher_capabilities("deepspeed")
    faults = [*workload_faults(problem, able), *own_faults(problem, able, [config])[0]]
    assert (faults == []) == legal


@pytest.mark.parametrize(("options", "zero"), [(SUPER, 3), (ZENFLOW, 2)])
def test_written_files_are_read_as_the_same_run(options: dict[str, Any], zero: int) -> None:
    pinned = PINNED | {"zero_stage": zero}
    problem = asked(seq_length=2048, **options)
    problem = replace(problem, options=replace(problem.options, pin=pinned))
    (plan,) = ask(problem, default_profile(problem.cluster, "deepspeed")).plans
    files = dict(export(plan, problem, "deepspeed").files)
    written = json.loads(files["ds_config.json"])
    assert (written["gradient_clipping"] == 0.0) == ("super_offload" in options)
    source = Source(name="ds_config.json", text=files["ds_config.json"], files=files)
    read = DEEPSPEED_READER.read(source, Overrides(model=MODEL, num_gpus=DP, values={"seq_length": 2048}))
    for name, value in options.items():
        assert read.workload.framework_options[name] == value
    assert read.configuration == plan.config
