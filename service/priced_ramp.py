"""What the smaller batches of a growing batch cost: the same configuration with fewer micro-batches."""

from __future__ import annotations

from dataclasses import replace

from profiles.profile import Profile
from service.launch_input import Own
from solver.predictions import predicted
from solver.ramp_stages import ramp_stages


def ramp_notes(own: Own, profile: Profile) -> list[str]:
    """The step time of every batch before the last; none where the batch does not grow."""
    if not own.batch_ramp:
        return []
    options = replace(own.problem.options, batch_ramp=own.batch_ramp)
    *stages, _last = ramp_stages(replace(own.problem, options=options))
    notes = []
    for stage, (batch, end) in zip(stages, own.batch_ramp, strict=True):
        found = predicted(stage.problem, profile, stage.configuration(own.configuration))
        time = f"{stage.steps:,.0f} steps of {found.step_time_s:.3g} s"
        notes.append(f"until {end:,} tokens the batch is {batch}: {time}")
    return notes
