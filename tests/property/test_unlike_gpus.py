"""An operator of a mesh over two GPU types takes as long as on the slower type alone, at least."""

from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_gpu, gpu_names
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.compute import core_attention, gemm_seconds, layer_gemms
from meshwright.solver.cost.context import PassSeconds, context_of
from tests.draws import draws

MODELS = ("llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-3-27b", "mamba-2.8b")
KINDS = {"gpt-oss-20b": "moe", "qwen3-30b-a3b": "moe"}


def operators_s(request: dict[str, Any], gpus: tuple[str, ...]) -> list[PassSeconds]:
    """Products and attention of a layer on a node of each of two GPUs, split by tensor parallelism."""
    groups = [{"gpu": gpu, "num_nodes": 2 // len(gpus)} for gpu in gpus]
    problem = parse_problem({**request, "cluster": {"groups": groups}})
    profile = default_profile(problem.cluster, "none")
    ranks = Columns.of([Configuration(tensor_parallel_size=size) for size in (1, 2, 4, 8)])
    ctx = context_of(problem, ranks, profile)
    gemms = layer_gemms(ctx, KINDS.get(request["model"]["name"], "dense"))  # type: ignore[arg-type]
    return [gemm_seconds(ctx, gemms, ctx.linear_precision), core_attention(ctx)]


@pytest.mark.parametrize("seed", range(draws(10)))
def test_a_mesh_waits_for_its_slower_gpus_in_every_operator(seed: int) -> None:
    random = Random(seed)
    node = [name for name in gpu_names() if find_gpu(name).architecture != "cpu"]
    one, other = random.sample(node, 2)
    request = {
        "model": {"name": random.choice(MODELS)},
        "workload": {
            "global_batch_size": 64,
            "seq_length": random.choice((256, 4096, 32768)),
            "precision": random.choice(("bf16", "fp16", "fp8")),
        },
        "launcher": "none",
    }
    try:
        alone = [operators_s(request, (gpu,)) for gpu in (one, other)]
    except InvalidProblemError:
        pytest.skip("one of them has no such precision")
    for mesh, first, second in zip(operators_s(request, (one, other)), *alone, strict=True):
        slower = first.or_longer(second)
        assert (mesh.forward >= (1.0 - 1e-12) * slower.forward).all()
        assert (mesh.backward >= (1.0 - 1e-12) * slower.backward).all()
    turned = operators_s(request, (other, one))
    for mesh, again in zip(operators_s(request, (one, other)), turned, strict=True):
        np.testing.assert_allclose(mesh.forward, again.forward, rtol=1e-12)
