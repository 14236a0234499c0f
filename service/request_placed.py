"""Limits on what the search that places stages on unlike node groups does not vary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profiles.errors import FieldError
from service.json_input import pointer
from solver.options import SearchOptions
from solver.problem import Problem

# Sizes and words that ``solver.mixed`` does not vary: its rows have no other value.
PLACED_ONLY: Mapping[str, int | str] = {
    "virtual_pipeline_size": 1,
    "expert_tensor_parallel_size": 1,
    "offload": "none",
    "context_parallel_mode": "ring",
    "rank_order": "tp-cp-dp-pp",
}


def placed_limit_faults(problem: Problem) -> Iterator[FieldError]:
    """A pin, prohibition or bound that leaves none of a variable's values is not searched: it is refused.

    Else the answer would be that nothing fits, proved, in a space that never held what was asked for.
    """
    values: dict[str, tuple[int | str, ...]] = {name: (only,) for name, only in PLACED_ONLY.items()}
    values["pipeline_schedule"] = ("none", "1f1b")
    values["recompute_layers"] = (0, problem.model.num_layers)  # all of a stage's, or none
    for name, every in values.items():
        for section in _emptied(problem.options, name, every):
            allowed = ", ".join(map(str, every))
            yield FieldError(
                pointer=pointer("search", section, name),
                message=f"only {allowed} is searched where stages are placed on node groups",
                allowed=allowed,
                nearest=str(every[0]),
            )


def _emptied(options: SearchOptions, name: str, every: tuple[int | str, ...]) -> Iterator[str]:
    """The sections whose limit none of the values keeps."""
    if name in options.pin and options.pin[name] not in every:
        yield "pin"
    if set(every) <= set(options.forbid.get(name, ())):
        yield "forbid"
    if name in options.bounds:
        low, high = options.bounds[name]
        if not any(isinstance(value, int) and low <= value <= high for value in every):
            yield "bounds"
