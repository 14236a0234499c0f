"""The launcher of a request that names none: the first that can express it, in the order for its kind.

``PREFERENCES`` is the whole choice: each kind of question, the launchers that come first for it, and why.
Every other launcher follows as the catalog lists it, those with files that build the model before those
that run a user's own script. Of these the ones that compile it come first: eager modules take half as long
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwright.profiles.adapters import ALL_LINEAR
from meshwright.profiles.capabilities import launcher_capabilities, launchers_in_order
from meshwright.profiles.errors import FieldError
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.switches import switches
from meshwright.profiles.vendors import vendor_of
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import (
    own_options_stated,
    pin_faults,
    problem_faults,
    with_recipe,
)
from meshwright.solver.space.placed_limits import placed_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The launchers that come first for one kind of question."""

    why: str  # completes "trl, for …"
    asked: Callable[[Problem], bool]
    launchers: tuple[str, ...]


def _places(problem: Problem) -> bool:
    return not problem.cluster.is_homogeneous


def _tunes_on_nodes(problem: Problem) -> bool:
    return problem.workload.lora_rank > 0 and problem.cluster.num_nodes > 1


def _tunes(problem: Problem) -> bool:
    of_trainers, of_megatron = (
        {*launcher_capabilities(name).optimizers} for name in (_TRAINERS[0], "megatron-lm")
    )
    words = {problem.workload.optimizer, *problem.options.allow}
    return problem.workload.lora_rank > 0 or bool(words & (of_trainers - of_megatron))


def _on_one_gpu(problem: Problem) -> bool:
    return problem.cluster.num_gpus == 1


_TRAINERS = ("trl", "llama-factory-accelerate", "axolotl", "accelerate")


def _compares(problem: Problem) -> bool:
    return problem.workload.sample_word != "sequence"


def _states_own_options(problem: Problem) -> bool:
    return next(own_options_stated(problem.workload), None) is not None


# In order: the first kind that a question is of decides.
PREFERENCES = (
    Preference(
        why="different node types: it places stages on them",
        asked=_places,
        launchers=("flagscale",),
    ),
    Preference(
        why="options that few launchers have: its files state them",
        asked=_states_own_options,
        launchers=("axolotl", "llama-factory-accelerate"),
    ),
    Preference(
        why="training on preferences: it has trainers for pairs of answers",
        asked=_compares,
        launchers=_TRAINERS,
    ),
    Preference(
        why="adapters on several nodes: it splits the model over them",
        asked=_tunes_on_nodes,
        launchers=("ms-swift", *_TRAINERS),
    ),
    Preference(
        why="fine-tuning: it starts from a transformers checkpoint without conversion",
        asked=_tunes,
        launchers=(*_TRAINERS, "ms-swift"),
    ),
    Preference(
        why="one GPU: transformers' trainer needs no mesh there",
        asked=_on_one_gpu,
        launchers=(*_TRAINERS, "deepspeed"),
    ),
)  # fmt: skip
_USUAL = Preference(
    why="training over many GPUs: it has every kind of parallelism",
    asked=lambda _: True,
    launchers=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherChoice:
    """The launcher of a question that names none, and why."""

    launcher: str
    why: str  # completes "trl, for …"; empty: it is the first that can
    refused: tuple[tuple[str, str], ...] = ()  # launchers that come before it, each with its first fault
    able: bool = True  # False: no launcher can, ``none`` included

    @property
    def reasons(self) -> str:
        """Return what the launchers lack that come before it."""
        lacks = dict[str, list[str]]()
        for name, why in self.refused:
            lacks.setdefault(why.removeprefix(f"{name} "), []).append(name)
        return "; ".join(f"{why}: {', '.join(names)}" for why, names in lacks.items())

    @property
    def sentence(self) -> str:
        """Return the launcher and why, with what those before it lack where none of them can."""
        if self.why:
            return f"{self.launcher}, for {self.why}"
        if self.launcher == "none":
            return f"none, without launch files: no launcher can ({self.reasons})"
        return f"{self.launcher}, the first that can ({self.reasons})"


def bound(problem: Problem, launcher: str) -> Problem:
    """Return a question under a launcher with the names that are asked for, and its recipe of 8 bits."""
    every = {*ALL_LINEAR} <= {*problem.workload.lora_targets}
    under = problem.under(launcher) if every else replace(problem, launcher=launcher)
    work = with_recipe(under.workload, under.workload.precision, launcher_capabilities(launcher))
    return replace(under, workload=work)


def as_asked_of_any(problem: Problem) -> Problem:
    """Return a question as one that names no launcher, where its own adapts the layers that it does anyway.

    Others would then adapt theirs, so that names of layers keep none of them from it.
    """
    work, able = problem.workload, launcher_capabilities(problem.launcher)
    if not work.lora_rank or work.lora_targets != able.default_targets(problem.model):
        return problem
    return replace(problem, launcher="any", workload=replace(work, lora_targets=ALL_LINEAR))


def launcher_faults(problem: Problem, launcher: str) -> Iterator[FieldError]:
    """Yield what keeps a launcher from the question, whatever the configuration."""
    able, own = launcher_capabilities(launcher), bound(problem, launcher)
    yield from problem_faults(own, able)
    yield from pin_faults(own, able)
    yield from placed_faults(own)
    yield from _options_of_others(own)


def _options_of_others(problem: Problem) -> Iterator[FieldError]:
    """Yield stated options of switches that other launchers alone have: here they would do nothing."""
    for option, value in problem.workload.framework_options.items():
        settings = [
            one
            for switch in switches().values()
            for one in switch.settings
            if one.options.get(option) == value
        ]
        if settings and not any(problem.launcher in one.launchers for one in settings):
            yield FieldError(
                pointer=f"/workload/framework_options/{option}",
                message=f"{problem.launcher} has no {option} {str(value).lower()}",
            )


def launchers_able(problem: Problem) -> tuple[str, ...]:
    """Return the launchers that can express a question, in their order for it, without ``none``."""
    names = (name for name in preferred(problem)[1] if name != "none")
    return tuple(name for name in names if next(launcher_faults(problem, name), None) is None)


def without_files(problem: Problem, choice: LauncherChoice) -> Iterator[str]:
    """Yield why a question gets no launch files, and which launcher writes them without one of its options.

    The launcher is named as an option, for ``none`` may be stated.
    """
    if choice.launcher != "none" or not choice.refused:
        return
    faults = dict(choice.refused)
    for words, other in _without_an_option(as_asked_of_any(problem)):
        name = chosen_launcher(other).launcher
        if name in faults and name != "none":
            yield f"no launch files: {faults[name]}. {words}, --launcher {name} writes them"
            return
    yield f"no launch files: {choice.refused[0][1]}, and no other launcher can"


def _without_an_option(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield a question without each of the options that launchers may lack, with what to change."""
    work, options = problem.workload, problem.options
    for name, value in options.pin.items():
        pins = {other: pinned for other, pinned in options.pin.items() if other != name}
        yield f"Without --pin {name}={value}", replace(problem, options=replace(options, pin=pins))
    if work.precision != "bf16" and all("bf16" in group.gpu.peak_flops for group in problem.cluster.groups):
        stated = {
            name: value for name, value in work.framework_options.items() if name != "precision_recipe"
        }
        in_bf16 = replace(work, precision="bf16", framework_options=stated)
        yield "With --precision bf16", replace(problem, workload=in_bf16)
    if work.optimizer != "adamw":
        yield "With --optimizer adamw", replace(problem, workload=replace(work, optimizer="adamw"))
    for name in work.framework_options:
        stated = {other: value for other, value in work.framework_options.items() if other != name}
        other = replace(problem, workload=replace(work, framework_options=stated))
        yield f"Without --framework-options {name}", other


def started_otherwise(problem: Problem) -> str:
    """Return the launcher that the same program is where it must be started otherwise, else its own."""
    own, other = problem.launcher, launcher_capabilities(problem.launcher).other_start
    cannot = other and next(launcher_faults(problem, own), None) is not None
    return other if cannot and next(launcher_faults(problem, other), None) is None else own


def preferred(problem: Problem) -> tuple[Preference, tuple[str, ...]]:
    """Return the kind that a question is of, and all launchers in their order for it."""
    kind = next((one for one in PREFERENCES if one.asked(problem)), _USUAL)
    vendors = {vendor_of(group.gpu) for group in problem.cluster.groups}
    rest = launchers_in_order()
    if vendors <= _COMPILED_FOR:
        rest = tuple(sorted(rest, key=_runs_eagerly))
    return kind, tuple(dict.fromkeys((*kind.launchers, *rest)))


# Whose GPUs torch.compile writes Triton kernels for; Gaudi and Ascend have back ends of their own
_COMPILED_FOR = {"nvidia", "amd"}


def _runs_eagerly(launcher: str) -> tuple[bool, bool]:
    """Return whether a launcher builds no model itself, and whether it runs modules uncompiled then."""
    able = launcher_capabilities(launcher)
    runs_any, has_files = "any" in able.model_facts, launcher != "none"
    compiles = has_files and framework_facts(able.framework).elementwise_fused
    return runs_any, runs_any and not compiles


def chosen_launcher(problem: Problem) -> LauncherChoice:
    """Return the launcher of a question, whichever launcher its problem names."""
    kind, order = preferred(problem)
    refused = list[tuple[str, str]]()
    for name in order:
        fault = next(launcher_faults(problem, name), None)
        if fault is None:
            expected = name in kind.launchers or (kind is _USUAL and name == order[0])
            why = kind.why if expected else ""
            return LauncherChoice(launcher=name, why=why, refused=tuple(refused))
        refused.append((name, fault.message))
    return LauncherChoice(launcher=order[0], why="", refused=tuple(refused), able=False)
