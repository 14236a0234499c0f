"""What was measured here is what a prediction is made of."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_gpu, usual_group
from meshwright.profiles.measured.profile import write_measured_profile
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.main import app
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.problem import Problem, Workload
from tests.problems.measured_profiles import TINY

GPU = "h100-sxm-80gb"


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two shards of the tiny model, layers and operators, measured on this machine's CPU."""
    model, out = tmp_path / "tiny.json", tmp_path / "p.json"
    model.write_text(json.dumps(model_to_mapping(TINY)))
    words = f"profile --model {model} --seq-length 32 --tp 1,2 --quick --device cpu --out {out}"
    assert not app(words.split(), standalone_mode=False)
    return out


def test_a_layer_measured_here_is_predicted_as_it_was_measured(measured: Path) -> None:
    cluster = ClusterSpec(name="one", groups=(usual_group(find_gpu(GPU), 1),))
    problem = Problem(model=TINY, cluster=cluster, workload=Workload(global_batch_size=8, seq_length=32))
    with pytest.raises(InvalidProblemError, match="measured on a CPU"):
        profile_for(problem, measured)
    profile = read_measured_profile(measured)
    as_gpu = replace(profile, machine=replace(profile.machine, kind="cuda", gpu=GPU))
    write_measured_profile(measured, as_gpu)
    prices = price(problem, Columns.of([Configuration(stage_layers=(2,))]), profile_for(problem, measured))
    (forward,), (backward,), (added,) = (
        profile.find("layer", "dense_layer", kind, tensor_parallel_size=1)
        for kind in ("forward", "backward", "accumulate")
    )
    assert prices.forward_s[0, 0] == pytest.approx(forward.timing.median_s, rel=1e-9)
    # Megatron-Core adds a gradient up in 6 bytes a weight, the timed addition moves 10
    passed_s = backward.timing.median_s + 0.6 * added.timing.median_s
    assert prices.backward_s[0, 0] == pytest.approx(passed_s, rel=1e-9)
