"""Checkpoints on this machine: format, step, and size of the model; read without torch.

torch.distributed.checkpoint and Megatron-Core's distributed checkpoints keep a pickled ``.metadata``:
names, sizes and places of all tensors. It is read with stand-ins for every class that it names, so that
nothing of what a pickle may name is imported or called.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from meshwright.profiles.documents import shown_path
from meshwright.profiles.errors import InvalidProblemError

_MOST_BYTES = 2**30  # of a .metadata file; those of 16 384 ranks have some hundred MiB
_STEP = re.compile(r"(?:iter_|step-|step_|global_step|checkpoint-)(\d{1,12})$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_OPTIMIZER = re.compile(r"(?:^|\.)(?:optimizer|optim|exp_avg|exp_avg_sq|optimizer_state)(?:\.|$)")
# Weights and states of accelerate under FSDP, each a checkpoint of its own, the states last
# (accelerate/utils/fsdp_utils.py, save_fsdp_model and save_fsdp_optimizer).
_WEIGHTS, _STATES = "pytorch_model_fsdp_0", "optimizer_0"
_BOUND = "dp_group_idx"  # Megatron-Core 0.19, DistributedOptimizer: states as buffers of one layout


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint."""

    format: str
    step: int | None  # None: not in the name of its folder
    num_parameters: int
    num_layers: int | None  # None: not in the names of its tensors

    def request(self) -> dict[str, object]:
        """Return the mapping of a request."""
        layers = {} if self.num_layers is None else {"num_layers": self.num_layers}
        return {"format": self.format, "num_parameters": self.num_parameters, **layers}


def read_checkpoint(folder: Path) -> FoundCheckpoint:
    """Read a checkpoint, or the newest one in a folder.

    Raises:
        InvalidProblemError: there is none with tensors that can be listed.
    """
    path = _whole(folder) or _newest(folder)
    if path is None:
        raise InvalidProblemError.of(
            "--checkpoint",
            f"{shown_path(folder)} holds no whole checkpoint: no .metadata in it or in its step folders",
            allowed="torch DCP, Megatron-Core's torch_dist",
        )
    tensors = _tensors(path / ".metadata")
    weights = {
        name: size for name, size in tensors.items() if not _OPTIMIZER.search(name) and prod(size) > 1
    }
    if not weights:
        raise InvalidProblemError.of("--checkpoint", f"{shown_path(path)} holds no weights")
    return FoundCheckpoint(
        format=_format(path, tensors), step=_step(path),
        num_parameters=sum(map(prod, weights.values())), num_layers=_layers(weights),
    )  # fmt: skip


def _whole(folder: Path) -> Path | None:
    """Return where a folder has the ``.metadata`` of its weights; None: an incomplete checkpoint."""
    if (folder / ".metadata").is_file():
        return folder
    parts = (folder / _WEIGHTS, folder / _STATES)
    return parts[0] if all((part / ".metadata").is_file() for part in parts) else None


def _newest(folder: Path) -> Path | None:
    """Return where the step folder of the highest number that holds a whole checkpoint keeps its weights.

    ms-swift keeps Megatron-Core's folder within one of its own: ``checkpoint-4/iter_0000004``.
    """
    found = {}
    for saved in (*folder.glob("*"), *folder.glob("checkpoint-*/iter_*")):
        step, path = _STEP.search(saved.name), _whole(saved)
        if step and path:
            found[int(step[1])] = path
    return found[max(found)] if found else None


def _step(path: Path) -> int | None:
    """Return the step in the name of a checkpoint's folder; for accelerate's weights, of its parent."""
    named = path.absolute()
    step = _STEP.search((named.parent if named.name == _WEIGHTS else named).name)
    return int(step[1]) if step else None


def _format(path: Path, tensors: Mapping[str, tuple[int, ...]]) -> str:
    """Return the format: Megatron-Core records its backend; anything else is torch's own."""
    try:
        backend = json.loads((path / "metadata.json").read_text(encoding="utf-8"))["sharded_backend"]
    except (OSError, ValueError, LookupError, TypeError):
        return "dcp"
    if backend == "fsdp_dtensor":
        return "fsdp_dtensor"
    bound = any(_BOUND in name for name in tensors)
    return "torch_dist" if bound else "torch_dist_fully_reshardable"


def _layers(weights: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the layers that weights' names count; Megatron-Core stacks them in the first dimension."""
    numbers = [int(found[1]) for name in weights if (found := _LAYER.search(name))]
    if numbers:
        return max(numbers) + 1
    stacked = {size[0] for name, size in weights.items() if "decoder.layers." in name}
    return stacked.pop() if len(stacked) == 1 else None


class _StandIn:
    """An object of any class of a pickle: keeps what it was made of, does nothing."""

    arguments: tuple[Any, ...]
    state: Mapping[str, Any]

    def __new__(cls, *arguments: object) -> _StandIn:  # noqa: PYI034 - pickles call it without __init__
        self = super().__new__(cls)
        self.arguments, self.state = arguments, {}
        return self

    def __init__(self, *_arguments: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.state = state if isinstance(state, dict) else {}

    def __setitem__(self, _key: object, _value: object) -> None: ...

    def append(self, _value: object) -> None: ...


class _Inert(pickle.Unpickler):
    """Reads a pickle without importing or calling what it names."""

    def find_class(self, module_name: str, global_name: str) -> type:
        """Return a class of its own for every name."""
        return type(global_name, (_StandIn,), {"__module__": module_name})


def _tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the tensors that a ``.metadata`` lists, by name.

    Raises:
        InvalidProblemError: it lists none, or is not such a file.
    """
    try:
        with path.open("rb") as handle:
            content = io.BytesIO(handle.read(_MOST_BYTES))
        state = _Inert(content).load().state["state_dict_metadata"]
        found = {str(name): _size(one) for name, one in state.items()}
        return {name: size for name, size in found.items() if size is not None}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pickle.UnpicklingError, EOFError):
        raise InvalidProblemError.of(
            "--checkpoint", f"{shown_path(path)} is not a .metadata file of torch.distributed.checkpoint"
        ) from None


def _size(entry: _StandIn) -> tuple[int, ...] | None:
    """Return the size of a tensor's entry; None: the entry is of something else."""
    size = entry.state.get("size")
    if not isinstance(size, _StandIn):
        return None
    return tuple(int(length) for length in size.arguments[0])
