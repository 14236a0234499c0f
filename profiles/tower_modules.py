"""What transformers' classes call the linear layers of vision towers, and how adapters name them.

``TOWER_TARGETS`` are names of ``lora_targets``: layers of the tower as Llama's are called, behind
``vision.``, and all products of the projector together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.towers import FrozenPart

IN_TOWER, PROJECTOR = "vision.", "projector"
_LAYERS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOWER_TARGETS = (*(f"{IN_TOWER}{name}" for name in _LAYERS), PROJECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerModules:
    """The linear layers of one type's tower; paths of modules in the class, with 0 for every number."""

    layers: str  # of the tower's layers
    names: Mapping[str, str]  # our name of a layer's linear layer: its path there
    projector: tuple[str, ...]  # of the products of the projector, in order
    inner: tuple[str, ...] = ()  # of those that project what inner layers yield

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the names that adapters have for them."""
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
