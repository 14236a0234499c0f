"""Adapters that LLaMA-Factory trains in a vision tower that it does not freeze.

It adapts each linear layer whose path contains one of the names (0.9.5, model/model_utils/visual.py:196
patch_target_modules); ``all`` are the last names of linear layers outside the projector (misc.py:28
find_all_linear_modules). Projectors of inner layers count as the tower's (visual.py:391).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from meshwright.launchers.target import Target
from meshwright.profiles.adapters import class_targets, linear_names
from meshwright.profiles.errors import FieldError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.tower_modules import PROJECTOR, TOWER_TARGETS, tower_modules
from meshwright.profiles.towers import TOWER_PARTS, FrozenPart

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
) -> tuple[str, ...]:
    """Return the paths of the tower's and the projector's linear layers that have adapters.

    Args:
        model: the model, with a tower whose linear layers are known.
        targets: the layers of the language model that are adapted.
        frozen: the parts that switches freeze.
        named: further names, which no layer of the language model has.
    """
    known = tower_modules().get(model.tower.model_type) if model.tower else None
    if known is None or not freezes_parts(model):
        return ()
    words = {*class_targets(model, targets), *named}
    if targets == linear_names(model) and "vision" not in frozen:
        words |= {path.rpartition(".")[2] for path in known.names.values()}
    layers = (path for name in known.targets if name != PROJECTOR for path in known.paths(name))
    parts = {"vision": (*layers, *known.inner), "projector": known.projector}
    return tuple(
        path
        for part, paths in parts.items()
        for path in paths
        if part not in frozen and any(word in path for word in words)
    )


def tower_is_adapted_as_it_is_named(target: Target) -> Iterator[FieldError]:
    """Refuse adapters in a tower that no names and switches mean: it has no list of paths."""
    work, model = target.workload, target.problem.model
    known = tower_modules().get(model.tower.model_type) if model.tower else None
    if known is None or not work.adapted_parts:
        return
    language = tuple(name for name in work.lora_targets if name not in TOWER_TARGETS)
    frozen = [part for part in TOWER_PARTS if part not in work.adapted_parts]
    asked = [path for name in known.targets if name in work.lora_targets for path in known.paths(name)]
    found = adapted_paths(model, language, frozen)
    if sorted(asked) != sorted(found):
        yield FieldError(
            pointer="/workload/lora_targets",
            message=f"LLaMA-Factory would adapt {', '.join(found) or 'nothing of the tower'}",
            allowed="every linear layer of the language model and the tower, or the launchers trl, axolotl",
        )
