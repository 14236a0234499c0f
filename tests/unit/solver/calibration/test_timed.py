"""A profile with what was timed: layers exactly, constants fitted on operators and layers."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import Group, all_reduce_s
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measured.layers import MeasuredLayers
from meshwright.profiles.measured.profile import MeasuredProfile, Measurement, Timing
from meshwright.profiles.profile import Profile
from meshwright.solver.calibration.timed import with_measured
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import Gemm, gemm_seconds
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.price import price
from meshwright.solver.problem import Problem
from tests.problems.measured_profiles import MACHINE, SUBJECT, measured_profile
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

PROBLEM = a_problem()
SIZES = (1024, 2048, 4096, 8192)


def one(group: str, operator: str, kind: str, seconds: float, **shape: int) -> Measurement:
    return Measurement(
        task=f"{group}/{operator}/{sorted(shape.items())}",
        group=group,  # type: ignore[arg-type]
        operator=operator,
        kind=kind,
        shape=shape,
        timing=Timing(median_s=seconds, p10_s=seconds, p90_s=seconds, repeats=5),
    )


def a_measured(*measurements: Measurement, **machine: object) -> MeasuredProfile:
    subject = replace(SUBJECT, model=GPT, seq_length=2048)
    changes: dict[str, object] = {"gpu": "h100-sxm-80gb"} | machine
    made = replace(MACHINE, **changes)  # type: ignore[arg-type]
    return replace(measured_profile(*measurements), subject=subject, machine=made)


def gemms(profile: Profile, problem: Problem, slower: float) -> list[Measurement]:
    """Forward products that take ``slower`` times the table's seconds."""
    ctx = context_of(problem, Columns.of([a_layout()]), profile)
    found = []
    for size in SIZES:
        gemm = Gemm(m=np.full(1, float(size)), n=float(size), k=float(size))
        seconds = slower * float(gemm_seconds(ctx, [gemm], "bf16").forward[0])
        found.append(one("gemm", "mlp_up", "forward", seconds, m=size, n=size, k=size))
    return found


def layer(forward_s: float, *, tp: int = 1, micro_batch: int = 1) -> list[Measurement]:
    sizes = {"tensor_parallel_size": tp, "micro_batch_size": micro_batch, "seq_length": 2048}
    passes = {"forward": forward_s, "backward": 2.2 * forward_s}
    return [one("layer", "dense_layer", kind, seconds, **sizes) for kind, seconds in passes.items()]


def test_slower_products_lower_their_level_and_nothing_else() -> None:
    base = a_profile(PROBLEM)
    fitted = with_measured(PROBLEM, base, a_measured(*gemms(base, PROBLEM, 1.25)))
    # 1 / 1.25 of the rate
    assert fitted.constants.gemm / base.constants.gemm == pytest.approx(0.8)
    assert replace(fitted.constants, gemm=base.constants.gemm) == base.constants
    assert fitted.layers is None


def test_products_as_fast_as_the_tables_change_nothing() -> None:
    base = a_profile(PROBLEM)
    fitted = with_measured(PROBLEM, base, a_measured(*gemms(base, PROBLEM, 1.0)))
    assert fitted.constants.gemm == pytest.approx(base.constants.gemm, rel=1e-6)


def test_timed_layers_are_priced_as_they_were_timed_and_their_neighbours_alike() -> None:
    base = a_profile(PROBLEM)
    fitted = with_measured(PROBLEM, base, a_measured(*layer(60e-3), *layer(35e-3, tp=2)))
    rows = Columns.of([a_layout(), a_layout(tensor_parallel_size=4)])
    plain, prices = price(PROBLEM, rows, base), price(PROBLEM, rows, fitted)
    assert prices.forward_s[0, 0] == pytest.approx(60e-3, rel=1e-9)
    # tp 4 was not timed, yet it is as much slower than its price as tp 2, not as fast as the table
    assert prices.forward_s[1, 0] > 1.5 * plain.forward_s[1, 0]
    assert "2 timed layers" in fitted.title


def test_a_profile_of_many_layers_is_fitted_on_some_and_exact_on_all() -> None:
    batches = range(1, 62)
    timings = [one for b in batches for one in layer(1e-2 * b, micro_batch=b)]
    fitted = with_measured(PROBLEM, a_profile(PROBLEM), a_measured(*timings))
    prices = price(PROBLEM, Columns.of([a_layout(micro_batch_size=57)]), fitted)
    assert prices.forward_s[0, 0] == pytest.approx(0.57)


@pytest.mark.parametrize(
    ("machine", "message"),
    [({"kind": "cpu"}, "measured on a CPU"), ({"gpu": "l40s"}, "measured on l40s, not on h100-sxm-80gb")],
)
def test_another_machine_prices_nothing_here(machine: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        with_measured(PROBLEM, a_profile(PROBLEM), a_measured(*layer(6e-3), **machine))


def test_a_profile_of_nothing_that_is_priced_is_refused() -> None:
    message = one("collectives", "p2p", "forward", 1e-3, ranks=2, ranks_per_node=2, payload_bytes=2**20)
    with pytest.raises(InvalidProblemError, match="the profile contains no operation"):
        with_measured(PROBLEM, a_profile(PROBLEM), a_measured(message))


def test_timed_collectives_are_taken_as_they_were_timed() -> None:
    # 8 ranks of a node all-reduce 64 MiB in 2 ms: bus bytes 2 * 7 / 8 * 64 MiB, at 58.7 GB/s
    sizes = {"ranks": 8, "ranks_per_node": 8, "payload_bytes": 2**26}
    timing = one("collectives", "all_reduce", "forward", 2e-3, **sizes)
    collective = replace(timing, moved_bytes=2 * 7 / 8 * 2**26)
    base = a_profile(PROBLEM)
    fitted = with_measured(PROBLEM, base, a_measured(collective))
    assert fitted.constants == base.constants
    seconds = []
    for profile in (base, fitted):
        group = Group(np.array([8.0]), np.array([1.0]), profile.fabric)
        seconds.append(float(all_reduce_s(np.array([2.0**26]), group)[0]))
    fast_link = base.constants.fast_link
    assert seconds[1] == pytest.approx(2e-3 / fast_link + base.constants.collective_latency_s, rel=0.02)
    assert seconds[1] > 4 * seconds[0]


def test_only_sums_with_the_residual_set_the_memory_bandwidth() -> None:
    # 0.8 of the bandwidth that the tables have, and a rotary embedding in plain torch at a tenth of it
    base = a_profile(PROBLEM)
    ctx = context_of(PROBLEM, Columns.of([a_layout()]), base)
    moved = 4e8
    seconds = moved / (0.8 * ctx.hbm_bytes_per_s) + ctx.operators.launch_s
    residual = replace(one("memory_bound", "residual", "forward", seconds), moved_bytes=moved)
    rope = replace(one("memory_bound", "rope", "forward", 10.0 * seconds), moved_bytes=moved)
    fitted = with_measured(PROBLEM, base, a_measured(residual, rope))
    assert fitted.constants.hbm / base.constants.hbm == pytest.approx(0.8, rel=0.01)


def issued(measurements: list[Measurement], host_s: float) -> list[Measurement]:
    return [replace(one, timing=replace(one.timing, host_s=host_s)) for one in measurements]


def test_a_layer_that_a_host_issues_in_time_takes_what_the_gpu_takes() -> None:
    # 60 ms forward and 132 ms backward on the GPU; the host needs 1 ms for each
    fitted = with_measured(PROBLEM, a_profile(PROBLEM), a_measured(*issued(layer(60e-3), 1e-3)))
    prices = price(PROBLEM, Columns.of([a_layout()]), fitted)
    assert prices.forward_s[0, 0] == pytest.approx(60e-3, rel=1e-6)
    assert prices.backward_s[0, 0] == pytest.approx(132e-3, rel=1e-6)


def test_a_host_that_is_late_in_one_pass_makes_up_for_it_in_the_other() -> None:
    # 10 + 22 ms on the GPU; a host with 12 ms for each pass is late forward, yet 24 ms hide under 32. With
    # 16 ms for each the timed 32 ms hold what the GPU waited for it. With 50 ms it is all that counts
    for host_s, both_s in ((12e-3, 32e-3), (16e-3, 32e-3), (50e-3, 100e-3)):
        measured = a_measured(*issued(layer(10e-3), host_s))
        prices = price(
            PROBLEM, Columns.of([a_layout()]), with_measured(PROBLEM, a_profile(PROBLEM), measured)
        )
        assert prices.forward_s[0, 0] + prices.backward_s[0, 0] == pytest.approx(both_s, rel=1e-3)


def test_fewer_tokens_do_not_take_longer_to_issue() -> None:
    # sequences of 256 are an eighth of the 2048 that were timed: the host's 2 ms are left
    measured = a_measured(*issued(layer(2e-3), 1e-3))
    fitted = with_measured(PROBLEM, a_profile(PROBLEM), measured)
    short = replace(PROBLEM, workload=replace(PROBLEM.workload, seq_length=256))
    prices = price(short, Columns.of([a_layout()]), fitted)
    assert prices.forward_s[0, 0] + prices.backward_s[0, 0] == pytest.approx(2e-3, rel=0.02)


@pytest.mark.parametrize(
    ("options", "both_s"),
    [
        # a graph of the layer leaves 0.15 of its launches: 15 of 100 ms, which hide under 32
        ({"cuda_graph": "layer"}, 32e-3),
        # blocking launches come on top: four times the host's 100 ms
        ({"launch_blocking": True}, 432e-3),
    ],
)
def test_graphs_and_blocking_launches_count_where_issuing_was_timed(
    options: dict[str, str | int | float | bool], both_s: float
) -> None:
    problem = replace(PROBLEM, workload=replace(PROBLEM.workload, framework_options=options))
    measured = a_measured(*issued(layer(10e-3), 50e-3))
    prices = price(problem, Columns.of([a_layout()]), with_measured(problem, a_profile(problem), measured))
    assert prices.forward_s[0, 0] + prices.backward_s[0, 0] == pytest.approx(both_s, rel=1e-6)


def test_a_host_issues_additions_to_gradient_sums_only_where_the_framework_adds() -> None:
    adding = one("layer", "dense_layer", "accumulate", 4e-3, tensor_parallel_size=1, micro_batch_size=1)
    measured = a_measured(*issued([*layer(10e-3), adding], 3e-3))
    for accumulation_bytes, host_s in ((0.0, 6e-3), (10.0, 9e-3)):
        layers = MeasuredLayers.of(measured, accumulation_bytes=accumulation_bytes)
        assert layers is not None
        assert layers.issuing_s("dense", 1) == pytest.approx(host_s)


def test_a_head_that_was_timed_with_its_host_takes_what_was_timed_however_short() -> None:
    # 20 us forward and 40 us backward, less than the catalog's launches of a head
    timings = [one("layer", "head", "forward", 20e-6), one("layer", "head", "backward", 40e-6)]
    base = a_profile(PROBLEM)
    prices = price(PROBLEM, Columns.of([a_layout()]), with_measured(PROBLEM, base, a_measured(*timings)))
    assert prices.forward_s[0, -1] == pytest.approx(20e-6)
    assert prices.backward_s[0, -1] == pytest.approx(40e-6)


def test_a_timed_head_holds_the_additions_to_its_gradient_sums_once() -> None:
    timings = [one("layer", "head", kind, 30e-3) for kind in ("forward", "backward")]
    base = a_profile(PROBLEM)
    prices = price(PROBLEM, Columns.of([a_layout()]), with_measured(PROBLEM, base, a_measured(*timings)))
    assert prices.backward_s[0, -1] == pytest.approx(30e-3, rel=1e-4)
