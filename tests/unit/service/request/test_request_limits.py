"""Limits of a request: constraints, logical pins, and how many there may be."""

import pytest

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.requests.parse import parse_problem, problem_to_mapping

Request = dict[str, object]


def request(**search: object) -> Request:
    """Llama 3.1 70B on 16 DGX H100 with a part ``search``."""
    return {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 16},
        "workload": {"global_batch_size": 512, "seq_length": 8192},
        "search": search,
    }


def fault(raw: Request) -> FieldError:
    """The one fault of a request."""
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(raw)
    (found,) = caught.value.errors
    return found


def sentence(raw: Request) -> str:
    return fault(raw).sentence()


def test_a_fault_of_a_constraint_names_the_character_and_the_nearest_variable() -> None:
    search = {"constraints": ["zero_stage == 1", "tp_size * tensor_parallel <= 8"]}
    found = fault(request(**search))
    assert found.pointer == "/search/constraints/1"
    assert found.message == "character 1: tp_size is no variable"
    search = {"constraints": ["8 >= tensor_parallel * 2"]}
    assert "character 6" in sentence(request(**search))
    assert "Nearest: tensor_parallel_size" in sentence(request(**search))


def test_more_limits_than_a_mask_has_bits_are_refused() -> None:
    search = {"constraints": [f"micro_batch_size != {n}" for n in range(100, 124)],
              "pin": {"tensor_parallel_size": 8},
              "forbid": {name: [3] for name in ("micro_batch_size", "zero_stage", "data_parallel_size")},
              "bounds": {name: [1, 8] for name in ("zero_stage", "micro_batch_size", "num_microbatches",
                         "data_parallel_size", "context_parallel_size")}}  # fmt: skip
    assert "33 pins, prohibitions, bounds and constraints. Allowed: up to 32" in sentence(request(**search))


def test_a_logical_variable_is_pinned_to_true_or_false() -> None:
    problem = parse_problem(request(pin={"sequence_parallel": True}))
    assert problem.options.pin == {"sequence_parallel": True}
    assert "must be true or false" in sentence(request(pin={"sequence_parallel": 1}))
    assert "is not an integer" in sentence(request(pin={"zero_stage": True}))


def test_a_pinned_split_is_kept_apart_and_written_down_as_a_pin() -> None:
    split = [20, 20, 20, 20]
    problem = parse_problem(request(pin={"stage_layers": split, "zero_stage": 1}))
    assert problem.options.stage_layers == (20, 20, 20, 20)
    assert problem.options.pin == {"zero_stage": 1}
    assert parse_problem(problem_to_mapping(problem)) == problem


def test_a_pinned_split_that_nanotron_would_not_run_names_the_one_that_it_runs() -> None:
    # Llama 3 70B, as nanotron cannot state the rotary scaling of 3.1. It counts
    # 4 x 8192^2 + 3 x 28672 x 8192 = 973 M a layer and 128256 x 8192 = 1051 M for the head, 1.08 layers.
    # Shares of 81.08 / 4 = 20.27 are exceeded by layer 21, two (40.54) by 41, three (60.81) by 61.
    nanotron = {"launcher": "nanotron", "model": {"name": "llama-3-70b"}}
    own = parse_problem(request(pin={"stage_layers": [21, 20, 20, 19]}) | nanotron)
    assert own.options.stage_layers == (21, 20, 20, 19)
    refused = sentence(request(pin={"stage_layers": [20, 20, 20, 20]}) | nanotron)
    assert "nanotron splits the layers itself and does not make 20 20 20 20" in refused
    assert "Nearest: 21 20 20 19" in refused
    beyond = sentence(request(pin={"stage_layers": [1] * 80}) | nanotron)
    assert "does not make any split into 80 stages" in beyond
    assert "Allowed: fewer stages, so that each has a layer and the last one the output head" in beyond
    assert "Nearest: 3 2 2 2" in beyond


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ({"stage_layers": [40, 39]}, "2 chunks with 79 layers, but the model has 80"),
        ({"stage_layers": [80, 0]}, "one layer or more in every chunk"),
        ({"stage_layers": 4}, "must be a list of layers"),
        ({"zero_stage": [1]}, "must be one value"),
        ({"stage_layers": [1.5]}, "each an integer"),
        ({"zero_stage": None}, "must be an integer or a word"),
    ],
)
def test_what_is_no_split_is_refused(pin: dict[str, object], words: str) -> None:
    assert words in sentence(request(pin=pin))
