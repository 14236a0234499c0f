"""Faults of values say what is allowed, and say it once."""

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.launchers.reading.documents import Found
from meshwright.service.launchers.reading.fields import Fields
from meshwright.service.launchers.reading.given import given_flags
from meshwright.service.launchers.reading.shell import Word


@pytest.mark.parametrize("text", ["--micro-batch-size -1", "--micro-batch-size 0", "--micro-batch-size"])
def test_a_size_begins_at_1_whatever_is_wrong_with_it(text: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        given_flags([Word(word, 1) for word in text.split()])
    assert (caught.value.errors[0].allowed or "").startswith("1 to ")


def test_a_value_that_is_asked_for_twice_is_one_fault() -> None:
    fields = Fields("a.yaml", {"num_machines": Found(0, 4)})
    assert [fields.integer("num_machines", 1) for _ in range(2)] == [1, 1]
    assert len(fields.faults) == 1
