"""Every planned model type that transformers has: our count beside that of the model it builds."""

from __future__ import annotations

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import FAMILIES
from tests.torch.drawn_configs import cases, known_types

DRAWS = 2
KNOWN = sorted(set(FAMILIES) & known_types())


@pytest.mark.parametrize("model_type", KNOWN)
def test_a_drawn_config_has_as_many_parameters_as_the_model_that_transformers_builds(
    model_type: str,
) -> None:
    equal = 0
    for config, count, _why in cases(model_type, DRAWS):
        if count is None:  # the library refuses its own draw
            continue
        try:
            ours = model_from_config(config, name=model_type).num_parameters()
        except InvalidProblemError:  # a switch that is not priced
            continue
        assert ours == count, config
        equal += 1
    assert equal, "at least one config of the type is planned"


def test_only_types_of_remote_code_are_missing_from_the_library() -> None:
    assert set(FAMILIES) - known_types() == {"kimi_k2"}
