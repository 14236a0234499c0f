"""Sailor's measured layers and links, as they are committed for benchmarks."""

from pathlib import Path

import pytest

from meshwright.profiles.measured.layers import MeasuredLayers
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import read_request
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem

FOLDER = Path(__file__).parents[3] / "benchmarks" / "data" / "sailor"
FILES = sorted(FOLDER.glob("*.json"))


def asked(**part: object) -> Problem:
    request = read_request(
        model="opt-350m", cluster=str(FOLDER / "cluster.yaml"), global_batch_size="64", seq_length=2048
    )
    return parse_problem({**request, "launcher": "accelerate", **part})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_a_measured_profile_of_a_catalog_model(path: Path) -> None:
    profile = read_measured_profile(path)
    layers = MeasuredLayers.of(profile)
    assert layers is not None
    assert layers.has_part("dense", profile.subject.model)
    assert path.stem == f"{profile.subject.model.name}-{profile.machine.gpu}"


def test_the_mixed_cluster_is_planned_with_the_layers_of_the_gpu_that_sets_the_pace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = asked(workload={"global_batch_size": 64, "seq_length": 2048, "precision": "fp16"})
    slow, fast = (group.gpu.slug for group in problem.cluster.groups[::-1])
    assert (slow, fast) == ("v100-sxm-16gb", "a100-sxm-40gb")
    both = [FOLDER / f"opt-350m-{gpu}.json" for gpu in (fast, slow)]
    profile = profile_for(problem, both)
    assert profile.layers is not None
    pace = "a100-sxm-40gb was measured, but every stage runs at the speed of v100-sxm-16gb"
    assert pace in capsys.readouterr().err
    # links as measured: 6.0 and 5.8 GB/s of a node for its four GPUs
    assert profile.group.inter_node.bytes_per_s == pytest.approx(5.787e9 / 4, rel=1e-3)
    assert profile.group.measured is not None
    layout = Configuration(data_parallel_size=32, num_microbatches=2, stage_layers=(24,))
    prediction = predict(problem, profile, layout)
    # two micro-batches of 24 layers: 2 * 24 * (7.317 + 17.2) ms = 1.18 s, and both ends
    assert 1.1 < prediction.time_breakdown_s["compute"] < 1.6
