"""What to expect on clusters and models that the constants have not seen.

Both levels, the global one and the stack's, are fitted again without one cluster, model, GPU generation
or pair of GPU and framework at a time: reweighted Gauss-Newton solves from the shipped constants on, which
is where the fit with it ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.fit.evidence import MEMORY, Evidence, Linear, Quantity, fitted, linearised, solved
from benchmarks.fit.uncertainty import level_constants
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.profile import Constants, Profile, stack_constants, unidentified_constants
from meshwright.solver.accuracy import RunPrediction, validate
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.observations import Observation, ProfileOf
from meshwright.solver.configuration import BoolArray
from meshwright.solver.runs.table import Run

CLUSTER_WEIGHT = 60.0
_Z_80_PERCENT = 1.2816
# What a framework's launches take: facts of the framework, known before it runs on another GPU.
LAUNCH_FACTS = ("floor_s", "floor_moe", "floor_tensor", "floor_across", "fixed_s")
# What a run is left out with: runs that share the key or, of a tuple, any of its parts.
KeyOf = Callable[[Observation], str | tuple[str, ...]]
# Families of models by the words of their names, the first that is found: who built a model, where its
# architecture is the builder's own, else the architecture.
_FAMILIES = (
    ("gpt-oss", ("gpt-oss",)), ("llama", ("llama",)), ("qwen", ("qwen",)),
    ("deepseek", ("deepseek", "kimi", "moonlight")), ("mpt", ("mpt",)), ("nemotron", ("nemotron",)),
    ("grok", ("grok",)), ("mixture of Megatron-LM's tests", ("mlmci-moe",)),
    ("gpt", ("gpt", "bloom", "vtrain")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One left-out run."""

    run_id: str
    cluster: str
    stack: str
    log_error: float  # ln(measured / predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """What a stack's runs with other keys teach."""

    constants: Constants
    unidentified: tuple[str, ...]  # constants of the quantity that no such run identifies
    sigma: float | None  # of step times, where no run of the stack is left; None: the stack's own

    def known_to(self, profile: Profile, names: Sequence[str]) -> Profile:
        """Return the profile with these constants, and with an unknown stack's spread where it is one."""
        own = {name: getattr(self.constants, name) for name in names}
        others = tuple(name for name in profile.unidentified if name not in names)
        sigma = profile.log_time_sigma if self.sigma is None else self.sigma
        own["log_time_sigma"] = sigma
        return replace(
            profile,
            constants=replace(profile.constants, **own),
            log_time_sigma=sigma,
            unidentified=(*others, *self.unidentified),
        )


def blind_constants(
    evidence: Evidence, key_of: KeyOf, *, known: Sequence[str] = (), steps: int = 0
) -> dict[tuple[str, tuple[str, ...]], Blind]:
    """The constants of each (stack, key), both of whose levels were fitted on runs with other keys only.

    Args:
        evidence: the runs.
        key_of: what is left out.
        known: constants of a stack that stay as its runs of every key have them: facts of a framework that
            are known before it runs on another GPU.
        steps: Gauss-Newton steps with new prices; 0: one solve of the runs as linearised at the shipped
            constants.
    """
    levels = _Levels.of(evidence)
    parts = np.array([_parts(key_of(one)) for one in evidence.observations])
    wanted = sorted(
        {(stack, tuple(map(str, key))) for stack, key in zip(evidence.stacks, parts, strict=True)}
    )
    return {
        (stack, key): levels.without(
            np.asarray((parts != np.array(key)).all(axis=1)), stack, known=known, steps=steps
        )
        for stack, key in wanted
    }


def _parts(key: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of a key, any of which is enough to leave a run out."""
    return (key,) if isinstance(key, str) else key


@dataclass(frozen=True, slots=True, kw_only=True)
class _Levels:
    """Both levels' runs, and their residuals at the shipped constants."""

    evidence: Evidence
    whole: Linear  # of the runs that teach every stack, at the global constants
    own: dict[str, Linear]  # of each stack's runs, at its own
    blind: dict[tuple[bytes, int], Constants]  # global levels, by the runs that they learnt from

    @classmethod
    def of(cls, evidence: Evidence) -> _Levels:
        """Prices all runs once."""
        own = {
            stack: linearised(evidence.of_stack(stack), stack_constants(stack))
            for stack in sorted(set(evidence.stacks))
        }
        whole = linearised(evidence, stack_constants(None))
        return cls(evidence=evidence, whole=whole, own=own, blind={})

    def without(self, kept: BoolArray, stack: str, *, known: Sequence[str], steps: int) -> Blind:
        """A stack's constants from the runs that are kept, round a global level that saw no other."""
        shipped, names = stack_constants(stack), self.evidence.quantity.names
        general = self._general(kept, steps)
        centre = replace(shipped, **{n: getattr(general, n) for n in names if n not in known})
        mine = kept[np.array([own == stack for own in self.evidence.stacks])]
        own, widths = self.own[stack].take(mine), self.evidence.quantity.widths
        identified = set(known) - set(unidentified_constants(stack))
        if not steps or not mine.any():
            found = without_runs(self.own[stack], mine, centre)
        else:
            runs = self.evidence.of_stack(stack).at(mine)
            found = fitted(runs, centre, start=shipped, widths=widths, iterations=steps)
        identified |= {n for n, one in level_constants(found, own, widths).items() if one.identified} - set(
            known
        )
        unknown = self.evidence.quantity is not MEMORY and not mine.any()
        return Blind(
            constants=found,
            unidentified=tuple(name for name in names if name not in identified),
            sigma=stack_constants(None).log_time_sigma if unknown else None,
        )

    def _general(self, kept: BoolArray, steps: int) -> Constants:
        """The global level from the runs that are kept."""
        general, widths = stack_constants(None), self.evidence.quantity.global_widths
        if widths is None:
            return general
        centre = replace(general, **self.evidence.quantity.centres)
        at = kept.tobytes(), steps
        if at not in self.blind:
            teach = kept
            if steps:
                runs = self.evidence.at(teach)
                found = fitted(runs, centre, start=general, widths=widths, iterations=steps)
            else:
                found = solved(self.whole.take(teach), centre, widths)
            self.blind[at] = found
        return self.blind[at]


def without_runs(whole: Linear, kept: BoolArray, centre: Constants) -> Constants:
    """A stack's constants from some of its runs; the global ones where none is left."""
    if not kept.any():
        return centre
    return solved(whole.take(kept), centre, whole.quantity.widths)


def pair_of(one: Observation) -> str:
    """The key of leave-one-pair-out: a GPU under a framework, whoever set Megatron-Core's flags."""
    core = framework_facts(one.framework).stack == "megatron-core"
    return f"{one.problem.cluster.groups[0].gpu.slug} · {'megatron-core' if core else one.framework}"


def generation_of(one: Observation) -> str:
    """The key of leave-one-generation-out: a GPU's architecture."""
    return one.problem.cluster.groups[0].gpu.architecture


def cluster_of(one: Observation) -> str:
    """The key of leave-one-cluster-out."""
    return one.problem.cluster.name


def model_of(one: Observation) -> str:
    """The key of leave-one-model-out: a model's shape, whatever a source calls it."""
    model = one.problem.model
    experts = model.moe.num_experts if model.moe else 0
    return f"{model.num_layers}x{model.hidden_size}x{model.ffn_hidden_size}x{experts}"


def family_of(name: str) -> str:
    """Return the family of a model by its name, in whatever size and version."""
    return next((family for family, words in _FAMILIES if any(word in name for word in words)), name)


def stranger_of(one: Observation) -> tuple[str, str, str]:
    """The key of the harshest split: cluster, family of models and release are all left out together."""
    return cluster_of(one), family_of(one.problem.model.name), one.release


def profile_of_unknown_stack(evidence: Evidence) -> ProfileOf:
    """Uncalibrated profiles under global constants that never saw a run of the same stack.

    As any stack without a level of its own they take the global level's spread.
    """
    general = stack_constants(None)
    shared = evidence
    whole, stacks = linearised(shared, general), np.array(shared.stacks)
    widths = evidence.quantity.global_widths or evidence.quantity.widths
    centre = replace(general, **evidence.quantity.centres)
    blind = {s: solved(whole.take(stacks != s), centre, widths) for s in sorted(set(evidence.stacks))}

    def profile_of(one: Observation) -> Profile:
        profile = default_profile_of(one)
        found = blind.get(profile.framework.stack, general)
        names = evidence.quantity.names
        own = {name: getattr(found, name) for name in names}
        sigma = general.log_time_sigma
        constants = replace(profile.constants, **own, log_time_sigma=sigma)
        return replace(profile, constants=constants, log_time_sigma=sigma, unidentified=tuple(names))

    return profile_of


def blind_profile_of(
    evidence: Evidence,
    key_of: KeyOf,
    under: ProfileOf = default_profile_of,
    *,
    known: Sequence[str] = (),
    steps: int = 0,
) -> ProfileOf:
    """Uncalibrated profiles whose constants never saw a run with the same key.

    Args:
        evidence: what the constants are fitted on; only those of its quantity are replaced.
        key_of: what is left out.
        under: profiles whose other constants stay.
        known: as in ``blind_constants``.
        steps: as in ``blind_constants``.
    """
    blind, names = blind_constants(evidence, key_of, known=known, steps=steps), evidence.quantity.names

    def profile_of(one: Observation) -> Profile:
        profile = under(one)
        found = blind.get((profile.framework.stack, _parts(key_of(one))))
        return profile if found is None else found.known_to(profile, names)

    return profile_of


def left_out_log_errors(evidence: Evidence) -> list[LeftOut]:
    """Errors of every run when its cluster is left out."""
    errors = []
    for row in validate(evidence.runs, profile_of=blind_profile_of(evidence, cluster_of)).runs:
        pair = _measured_and_predicted(row, evidence.quantity)
        if pair is not None:
            errors.append(_left_out(row.run, pair[0] / pair[1]))
    return errors


def _measured_and_predicted(row: RunPrediction, quantity: Quantity) -> tuple[float, float] | None:
    """The two values of a row, where it has both."""
    measured = row.run.measured
    if row.prediction is None:
        return None
    if quantity is MEMORY:
        peaks = measured.peak_memory_bytes, row.predicted_peak_memory_bytes
        return (peaks[0], peaks[1]) if peaks[0] and peaks[1] else None
    return (measured.step_time_s, row.prediction.step_time_s) if measured.step_time_s else None


def _left_out(run: Run, ratio: float) -> LeftOut:
    """One error with where it belongs."""
    one = Observation.of(run)
    stack = default_profile_of(one).framework.stack if one else ""
    return LeftOut(run_id=run.run_id, cluster=run.cluster, stack=stack, log_error=float(np.log(ratio)))


def sigma_of(errors: Sequence[LeftOut]) -> float:
    """The sigma whose central 80 % hold 80 % of the errors, a cluster counting as 60 runs at most."""
    counts: dict[str, int] = defaultdict(int)
    for error in errors:
        counts[error.cluster] += 1
    sizes = np.abs([error.log_error for error in errors])
    weights = np.array([min(1.0, CLUSTER_WEIGHT / counts[error.cluster]) for error in errors])
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(share, 0.8)]) / _Z_80_PERCENT
