"""Linear layers of vision towers: their module paths in transformers, and their ``lora_targets``.

``vision.`` in front of one of Llama's names selects this layer in every layer of the tower. ``projector``
selects all linear layers of the projector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.towers import FrozenPart, TowerSpec

IN_TOWER, PROJECTOR = "vision.", "projector"
_LAYERS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOWER_TARGETS = (*(f"{IN_TOWER}{name}" for name in _LAYERS), PROJECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerModules:
    """The module paths of one model type's tower and projector; 0 stands for every number."""

    layers: str  # path of the list of the tower's layers
    names: Mapping[str, str]  # path within a layer, by the target's name without ``vision.``
    projector: tuple[str, ...]  # paths of its linear layers, in order
    inner: tuple[str, ...] = ()  # paths of the projector of inner layers (Qwen3-VL's deepstack)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the ``lora_targets`` of the tower and its projector."""
        return (*(f"{IN_TOWER}{name}" for name in _LAYERS if name in self.names), PROJECTOR)

    def paths(self, target: str) -> tuple[str, ...]:
        """Return the paths that one of ``targets`` stands for."""
        if target == PROJECTOR:
            return (*self.projector, *self.inner)
        return (f"{self.layers}.0.{self.names[target.removeprefix(IN_TOWER)]}",)


@cache
def tower_modules() -> Mapping[str, TowerModules]:
    """Return the towers with linear layers that are all known, by the type of the whole config."""
    raw = yaml.load((CATALOG / "tower_modules.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)
    return {
        name: TowerModules(
            layers=row["layers"],
            names=row["names"],
            projector=tuple(row["projector"]),
            inner=tuple(row.get("inner", ())),
        )
        for name, row in raw["types"].items()
    }


def modules_of(tower: TowerSpec | None) -> TowerModules | None:
    """Return where the linear layers of a tower lie; None: there is no tower, or they are not known."""
    return None if tower is None else tower_modules().get(tower.model_type)


def tower_layers_of(targets: Iterable[str]) -> tuple[str, ...]:
    """Return the layers of the tower among the targets of adapters, as Llama's are called."""
    return tuple(name.removeprefix(IN_TOWER) for name in targets if name.startswith(IN_TOWER))


def parts_of(targets: Iterable[str]) -> Iterator[FrozenPart]:
    """Yield the parts of a tower that targets of adapters name."""
    named = {*targets}
    if tower_layers_of(named):
        yield "vision"
    if PROJECTOR in named:
        yield "projector"
