"""The mutants that ``make bench ARGS=mutants`` tries still fit the code."""

import pytest

from tests.mutants.mutants import MUTANTS, Mutant
from tests.processes.warm import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_changes_stands_once_in_its_file(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
