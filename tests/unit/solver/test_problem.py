"""What is kept of problems: by identity, of the last ones alone."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.problem import Problem, remembered
from tests.builders import a_problem


def test_what_is_found_of_a_problem_is_found_once_for_each_of_the_other_arguments() -> None:
    asked = list[tuple[int, bool]]()

    @remembered
    def batch_of(problem: Problem, wide: bool) -> int:
        asked.append((problem.workload.global_batch_size, wide))
        return problem.workload.global_batch_size * (1 + wide)

    first = a_problem()
    second = replace(first, workload=replace(first.workload, global_batch_size=96))
    size = first.workload.global_batch_size
    each = [batch_of(one, wide) for one in (first, second) for wide in (False, True)]
    assert each == [size, 2 * size, 96, 192]
    assert [batch_of(one, wide) for one in (first, second) for wide in (False, True)] == each
    assert asked == [(size, False), (size, True), (96, False), (96, True)]


def test_a_new_problem_at_the_address_of_an_old_one_is_another() -> None:
    """A problem that is known stays, so that no other has its identity; thousands come and go."""
    find = remembered(lambda problem: problem.workload.global_batch_size)
    first = a_problem()
    for batch in range(1, 2000):
        assert find(replace(first, workload=replace(first.workload, global_batch_size=batch))) == batch
