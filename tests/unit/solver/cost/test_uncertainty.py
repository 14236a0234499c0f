from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import (
    Constants,
    Residual,
    default_profile,
    level_of,
    unidentified_constants,
)
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.residuals import features_of
from meshwright.solver.cost.uncertainty import (
    OF_EXPERTS,
    SHARES,
    catalog_spreads,
    extrapolated,
    log_time_sigma,
    moved_prices,
    shares_of,
)
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_configuration, a_gpu, a_model, a_moe_model, a_problem
from tests.problems.pricing import a_layout, a_profile
from tests.problems.pricing import a_problem as an_h100_problem

TINY = a_model(name="tiny", hidden_size=256, ffn_hidden_size=1024, num_attention_heads=4, num_kv_heads=4,
               head_dim=64, num_layers=80, vocab_size=1024)  # fmt: skip


def sigma(problem: Problem, configuration: Configuration) -> float:
    profile = default_profile(problem.cluster, problem.launcher)
    splits = np.array([configuration.stage_layers])
    return float(log_time_sigma(problem, Columns.of([configuration]), splits, profile)[0])


def shares(model: ModelSpec) -> dict[str, float]:
    problem, configuration = a_problem(model=model), a_configuration()
    profile = default_profile(problem.cluster, problem.launcher)
    splits = np.array([configuration.stage_layers])
    found = shares_of(problem, Columns.of([configuration]), splits, profile)
    return {name: float(value[0]) for name, value in found.items()}


def test_nothing_of_a_large_model_and_nearly_all_of_a_tiny_one_hangs_on_launches() -> None:
    assert shares(a_model())["launch"] < 0.05
    assert shares(TINY)["launch"] > 0.5


def test_a_tiny_model_is_predicted_with_a_wider_band() -> None:
    large = sigma(a_problem(), a_configuration())
    assert sigma(a_problem(model=TINY), a_configuration()) > 1.2 * large  # launches are most of its step


def test_one_gpu_waits_for_no_other_and_differs_by_its_chip_alone() -> None:
    config = Configuration(stage_layers=(8,))
    model, known = a_model(num_layers=8), catalog_spreads()["between"]
    (group,) = a_cluster(num_nodes=1).groups
    nodes = (replace(group, gpus_per_node=count, island_gpus=count) for count in (1, 2))
    one, two = (
        sigma(a_problem(model=model, cluster=replace(a_cluster(), groups=(node,))), config)
        for node in nodes
    )
    assert two**2 - one**2 == pytest.approx(known["dense"] ** 2 - known["one_gpu"] ** 2, rel=1e-3)


def test_a_framework_whose_launches_nobody_measured_has_a_wider_band_where_launches_bind() -> None:
    # of a step that hangs on launches alone: unidentified² instead of told²
    problem, configuration = a_problem(model=TINY), a_configuration()
    columns, splits = Columns.of([configuration]), np.array([configuration.stage_layers])
    told = default_profile(problem.cluster, problem.launcher)
    assert "floor_s" not in told.unidentified
    unidentified = replace(told, unidentified=("floor_s",))
    sigmas = [log_time_sigma(problem, columns, splits, known)[0] for known in (told, unidentified)]
    share, known = shares(TINY)["launch"], catalog_spreads()["uncalibrated"]
    added = (known["unidentified_launch"] ** 2 - known["launch"] ** 2) * share**2
    assert sigmas[1] ** 2 - sigmas[0] ** 2 == pytest.approx(added)
    assert added > 0


def test_experts_under_a_framework_whose_runs_had_none_have_a_wider_band() -> None:
    # unidentified² instead of identified², and nothing of a dense model
    def squares(model: ModelSpec) -> list[float]:
        problem, configuration = a_problem(model=model), a_configuration()
        columns, splits = Columns.of([configuration]), np.array([configuration.stage_layers])
        identified = replace(default_profile(problem.cluster, problem.launcher), unidentified=())
        both = (identified, replace(identified, unidentified=(OF_EXPERTS,)))
        return [float(log_time_sigma(problem, columns, splits, known)[0]) ** 2 for known in both]

    identified, unidentified = squares(a_moe_model())
    known = catalog_spreads()["uncalibrated"]
    assert unidentified - identified == pytest.approx(
        known["unidentified_experts"] ** 2 - known["experts"] ** 2
    )
    assert known["unidentified_experts"] > known["experts"]
    dense = squares(a_model())
    assert dense[0] == dense[1]


def test_constants_of_a_stack_that_its_runs_do_not_identify_are_unidentified() -> None:
    # Composer's runs are bound by kernels; those of Megatron-Core's tests by launches
    assert "floor_s" in unidentified_constants("fsdp")
    assert "gemm" not in unidentified_constants("fsdp")
    assert "floor_s" not in unidentified_constants("megatron-core")
    assert set(unidentified_constants("a stack that nobody ran")) == set(level_of(None).constants)


def test_the_band_counts_the_layers_that_each_stage_recomputes() -> None:
    problem, plain = a_problem(), a_configuration()
    every = replace(plain, recompute_granularity="full", recompute_layers=max(plain.stage_layers))
    profile = default_profile(problem.cluster, problem.launcher)
    columns, splits = Columns.of([every]), np.array([plain.stage_layers])
    alike = shares_of(problem, columns, splits, profile)
    assert shares_of(problem, columns, splits, profile, splits) == alike
    none = shares_of(problem, columns, splits, profile, 0 * splits)
    assert none["launch"][0] != alike["launch"][0]
    assert none["network"][0] > alike["network"][0]  # the same traffic in a shorter step


def test_a_gpu_that_nobody_measured_widens_the_band_by_its_own_doubt() -> None:
    strange = a_gpu(slug="my-own-gpu", architecture="hopper")
    unmeasured = a_problem(cluster=a_cluster(gpu=strange))
    assert not default_profile(unmeasured.cluster, "megatron-lm").gpu_operators.measured

    def without_shares(problem: Problem) -> float:
        """The variance apart from what hangs on launches and network, which GEMMs of another speed move."""
        profile = default_profile(problem.cluster, "megatron-lm")
        plain, known = a_configuration(), catalog_spreads()["uncalibrated"]
        shares = shares_of(problem, Columns.of([plain]), np.array([plain.stage_layers]), profile)
        unidentified = {name: SHARES[name] in profile.unidentified for name in shares}
        hung = [
            (known[f"unidentified_{name}" if unidentified[name] else name] * share[0]) ** 2
            for name, share in shares.items()
        ]
        return sigma(problem, plain) ** 2 - float(sum(hung))

    added = without_shares(unmeasured) - without_shares(a_problem())
    assert added == pytest.approx(catalog_spreads()["uncalibrated"]["unmeasured_gpu"] ** 2)


def test_the_slower_the_network_the_larger_its_share() -> None:
    problem, configuration = a_problem(), a_configuration(tensor_parallel_size=4, data_parallel_size=8)
    profile = default_profile(problem.cluster, problem.launcher)
    columns, splits = Columns.of([configuration]), np.array([configuration.stage_layers])
    share = shares_of(problem, columns, splits, profile)["network"][0]
    worse = replace(profile.constants, network=profile.constants.network / 1.01)
    slower = shares_of(problem, columns, splits, replace(profile, constants=worse))["network"][0]
    assert 0.0 < share < 1.0
    assert slower > share


def test_every_share_hangs_on_constants_that_exist() -> None:
    names = set(Constants.__dataclass_fields__)
    assert names.issuperset(SHARES.values())


def beyond(problem: Problem, *configurations: Configuration) -> list[tuple[str, ...]]:
    return extrapolated(problem, Columns.of(list(configurations)), a_profile(problem))


def test_shapes_within_the_tables_are_not_marked() -> None:
    assert beyond(an_h100_problem(a_model(), seq_length=8192), a_layout(stage_layers=(80,))) == [()]


def test_a_sequence_longer_than_any_measured_one_is_named() -> None:
    # the H100's attention was measured up to 16 384 tokens; 4 ranks share them, so products stay small
    problem = an_h100_problem(a_model(), seq_length=131_072)
    assert beyond(problem, a_layout(stage_layers=(80,), context_parallel_size=4)) == [("attention",)]


def test_more_tokens_than_any_measured_product_had_are_named_in_their_row_alone() -> None:
    # 8 x 8 192 = 65 536 rows; the table ends at 32 768
    rows = (a_layout(stage_layers=(80,)), a_layout(stage_layers=(80,), micro_batch_size=8))
    assert beyond(an_h100_problem(a_model(), seq_length=8192), *rows) == [(), ("gemm",)]


def test_a_gpu_that_nobody_measured_says_so() -> None:
    other = a_gpu(slug="x", architecture="cdna3", peak_flops={"bf16": 1e15})
    problem = an_h100_problem(a_model(), cluster=a_cluster(num_nodes=4, gpu=other))
    assert beyond(problem, a_layout(stage_layers=(80,))) == [("operators",)]


def test_a_calibrated_profile_is_priced_once_more_not_twice_for_its_interval() -> None:
    problem, columns = a_problem(), Columns.of([a_configuration()])
    plain = default_profile(problem.cluster, problem.launcher)
    residual = Residual(
        points=(tuple(features_of(problem, a_configuration())),), weights=(0.0,), precision=((1.0,),),
        amplitude=0.1, length=1.0, trend_amplitude=0.1, trend_length=4.0, noise=0.03, scale=1.0,
    )  # fmt: skip
    known = replace(plain, residual=residual)
    rows = [len(moved_prices(problem, columns, one).straggler) for one in (plain, known)]
    assert rows == [3, 2], "itself, slower launches and, uncalibrated, a slower network"
