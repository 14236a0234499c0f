"""Which layers of a vision tower a launcher's files give adapters, and what they cannot say.

LLaMA-Factory adapts each linear layer whose path contains one of the names (0.9.5,
model/model_utils/visual.py:196 patch_target_modules); ``all`` are the last names of linear layers outside
the projector (misc.py:28 find_all_linear_modules). Projectors of inner layers count as the tower's
(visual.py:391).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator

from meshwright.profiles.adapters import (
    ALL_LINEAR,
    adapts_every,
    class_targets,
    language_names,
    linear_names,
    names_every,
)
from meshwright.profiles.capabilities import Capabilities
from meshwright.profiles.errors import FieldError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.tower_modules import PROJECTOR, TOWER_TARGETS, modules_of
from meshwright.profiles.towers import TOWER_PARTS, FrozenPart
from meshwright.solver.problem import Problem

# Types with parts that it freezes (visual.py:274-434), of those whose linear layers are known: of others it
# adapts whatever peft finds under a name.
_TYPES = ("internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def freezes_parts(model: ModelSpec) -> bool:
    """Return whether switches freeze the parts of a model's tower, and its linear layers are known."""
    return model.tower is not None and model.tower.model_type in _TYPES


def adapted_paths(
    model: ModelSpec,
    targets: tuple[str, ...],
    frozen: Collection[FrozenPart],
    named: Iterable[str] = (),
    *,
    every: bool = False,
) -> tuple[str, ...]:
    """Return the paths of the tower's and the projector's linear layers that have adapters.

    Args:
        model: the model, with a tower whose linear layers are known.
        targets: the layers of the language model that are adapted.
        frozen: the parts that switches freeze.
        named: further names, which no layer of the language model has.
        every: all linear layers are asked for by one word, the tower's with the language model's.
    """
    known = modules_of(model.tower)
    if known is None or not freezes_parts(model):
        return ()
    words = {*class_targets(model, targets), *named}
    if every and "vision" not in frozen:
        words |= {path.rpartition(".")[2] for path in known.names.values()}
    layers = (path for name in known.targets if name != PROJECTOR for path in known.paths(name))
    parts = {"vision": (*layers, *known.inner), "projector": known.projector}
    return tuple(
        path
        for part, paths in parts.items()
        for path in paths
        if part not in frozen and any(word in path for word in words)
    )


def tower_adapter_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield adapters in a tower that the launcher's files cannot ask for, or ask for besides."""
    work, model = problem.workload, problem.model
    if model.tower is None or not work.lora_rank:
        return
    if able.adapts_towers == "words" and work.adapted_parts:
        yield from _named_faults(problem)
    if able.all_is_towers(model) and work.image_tokens is not None and names_every(work.lora_targets):
        yield FieldError(
            pointer="/workload/lora_targets",
            message=f"{able.launcher} also adapts the tower if you adapt all linear layers",
            allowed="a list of layers",
            nearest=json.dumps(language_names(model)),
        )


def _named_faults(problem: Problem) -> Iterator[FieldError]:
    """Refuse adapters in a tower that LLaMA-Factory's names and freeze switches can't select."""
    work, model = problem.workload, problem.model
    known = modules_of(model.tower)
    if known is None:
        return
    language = tuple(name for name in work.lora_targets if name not in TOWER_TARGETS)
    frozen = [part for part in TOWER_PARTS if part not in work.adapted_parts]
    asked = [path for name in known.targets if name in work.lora_targets for path in known.paths(name)]
    found = adapted_paths(model, language, frozen, every=adapts_every(model, language))
    if sorted(asked) != sorted(found):
        every = {*adapted_paths(model, linear_names(model), (), every=True)}
        reached = (name for name in known.targets if {*known.paths(name)} <= every)
        yield FieldError(
            pointer="/workload/lora_targets",
            message="LLaMA-Factory selects layers by name, so LLaMA-Factory would adapt "
            f"{', '.join(found) or 'nothing of the tower'} instead",
            allowed="every linear layer of the language model and of the tower",
            nearest=json.dumps((*ALL_LINEAR, *reached)),
            tip="--launcher trl",
        )
