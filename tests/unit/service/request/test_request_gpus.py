"""Limits and precisions that the GPUs of the request cannot give."""

from collections.abc import Mapping

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.parse import parse_problem

REQUEST: Mapping[str, object] = {
    "model": {"name": "llama-3.1-70b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 16},
    "workload": {"global_batch_size": 512, "seq_length": 8192},
}


def refusal(**parts: object) -> str:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem({**REQUEST, **parts})
    (error,) = caught.value.errors
    return error.sentence()


def test_bounds_that_need_more_gpus_than_there_are_say_so_not_that_the_batch_is_wrong() -> None:
    assert refusal(search={"bounds": {"data_parallel_size": [129, 256]}}) == (
        "search.bounds.data_parallel_size: data_parallel_size >= 129 needs 129 of 128 GPUs. "
        "Allowed: from 1 to 128. Nearest: 128"
    )


def test_pins_and_bounds_count_together() -> None:
    # 8 * 20 = 160; 128 / 8 = 16
    limits = {"pin": {"tensor_parallel_size": 8}, "bounds": {"data_parallel_size": [20, 32]}}
    assert refusal(search=limits) == (
        "search.bounds.data_parallel_size: tensor_parallel_size = 8 (pinned) × data_parallel_size >= 20 "
        "needs 160 of 128 GPUs. Allowed: from 1 to 16. Nearest: 16"
    )


@pytest.mark.parametrize(
    ("gpu", "precision", "words"),
    [
        ("v100-sxm-32gb", "bf16", "v100-sxm-32gb has no bf16. Allowed: fp16. Nearest: fp16"),
        ("a100-sxm-80gb", "fp8", "a100-sxm-80gb has no fp8. Allowed: bf16, fp16. Nearest: bf16"),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_refused(gpu: str, precision: str, words: str) -> None:
    cluster = {"groups": [{"gpu": "h100", "num_nodes": 1}, {"gpu": gpu, "num_nodes": 2}]}
    workload = {"global_batch_size": 64, "seq_length": 2048, "precision": precision}
    assert refusal(cluster=cluster, workload=workload) == f"workload.precision: {words}"


def test_a_precision_recipe_that_a_gpu_lacks_is_refused_before_a_search() -> None:
    options = {"precision_recipe": "nvfp4"}
    workload = {"global_batch_size": 64, "seq_length": 2048, "framework_options": options}
    words = refusal(cluster={"name": "dgx-h100", "num_nodes": 1}, workload=workload, launcher="none")
    at = "workload.framework_options.precision_recipe"
    assert words.startswith(f"{at}: nvfp4 needs fp4, which h100-sxm-80gb lacks. Allowed: none, fp8-delayed")


def test_an_unknown_framework_option_names_the_nearest() -> None:
    workload = {"global_batch_size": 64, "seq_length": 2048, "framework_options": {"gradient_dtyp": "bf16"}}
    words = refusal(cluster={"name": "dgx-h100", "num_nodes": 1}, workload=workload)
    assert "Did you mean gradient_dtype" in words
