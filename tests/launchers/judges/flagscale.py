"""FlagScale on a CPU: its hostfile, its own arguments, its numbering of ranks, and what it asks of meshes.

No package index has FlagScale: FLAGSCALE names a checkout. Its arguments are declared in a patch of
Megatron-LM's parser, from which they are read; Megatron-LM's own arguments are that launcher's to judge. A
stand-in for torch knows a rank, and the device of every rank, as the hostfile gives them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package
sys.path.append(str(Path(__file__).parent))
from protocol import Case, Seen, serve
from stand_ins import StandIns

CHECKOUT = Path(os.environ["FLAGSCALE"])
PATCH = "flagscale/backends/Megatron-LM/megatron/training/arguments.py.patch"
sys.path.insert(0, str(CHECKOUT))
StandIns(("flagscale.train",), ("aiohttp", "tqdm", "torch"))

from flagscale.runner.utils import flatten_dict_to_args, parse_hostfile  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

arguments = importlib.import_module("flagscale.train.arguments")
parallel_context = importlib.import_module("flagscale.train.hetero.parallel_context")


class Ranks:
    """What is asked of ``torch.distributed``: one rank of a job, and the device types of all."""

    def __init__(self, rank: int, devices: list[str]) -> None:
        """Begin as a rank."""
        self.rank, self.devices = rank, devices

    def is_initialized(self) -> bool:
        """The process group is there."""
        return True

    def get_rank(self) -> int:
        """Its own rank."""
        return self.rank

    def get_world_size(self) -> int:
        """All ranks."""
        return len(self.devices)

    def all_gather_object(self, found: list[Any], _own: object) -> None:
        """What every rank says of itself."""
        found[:] = [{"rank": rank, "device_type": device} for rank, device in enumerate(self.devices)]


def declared() -> argparse.ArgumentParser:
    """The arguments that FlagScale adds, as its patch declares them."""
    added = [line[1:] for line in (CHECKOUT / PATCH).read_text().splitlines() if line.startswith("+")]
    text = "\n".join(added)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    (hetero,) = re.findall(r"^def _add_hetero_args\(parser\):\n(?:(?: +.*)?\n)+", text + "\n", re.MULTILINE)
    found: dict[str, Any] = {}
    exec(hetero, found)  # noqa: S102 - a function of theirs
    parser = found["_add_hetero_args"](parser)
    refined = re.findall(
        r"group\.add_argument\('--recompute-[a-z-]+-per-stage-micro-batch', nargs='\*', type=str", text
    )
    for line in refined:
        exec(textwrap.dedent(line) + ")", {"group": parser})  # noqa: S102 - the same
    parser.add_argument("--use-partial-reduce-for-shared-embedding", action="store_true")
    return parser


# What Megatron-LM's parser has for the arguments that are read here and not in the file.
DEFAULTS = {
    "standalone_embedding_stage": False, "untie_embeddings_and_output_weights": False,
    "use_distributed_optimizer": False, "mtp_num_layers": None,
    "num_layers_per_virtual_pipeline_stage": None, "virtual_pipeline_model_parallel_size": None,
    "sequence_parallel": False, "recompute_granularity": None, "recompute_method": None,
}  # fmt: skip


def judge(case: Case) -> Seen:
    """What FlagScale makes of the first rank of each process mesh."""
    files = case["files"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostfile.txt"
        path.write_text(files["hostfile.txt"])
        hosts = parse_hostfile(str(path))
    devices = [one["type"] for one in hosts.values() for _ in range(one["slots"])]
    text = re.sub(r"\$\{oc\.env:(\w+)\}", r"\1", files["train_plan.yaml"])
    train = OmegaConf.to_container(OmegaConf.create(text))
    words = [word for part in ("system", "model") for word in flatten_dict_to_args(train[part])]
    own, _ = declared().parse_known_args(words)
    assert own.enable_hetero, "stages on one kind of device are Megatron-LM's to judge"
    plain = {name: value for part in ("system", "model") for name, value in train[part].items()}
    assert len(devices) == case["world_size"], f"{len(devices)} slots for {case['world_size']} ranks"
    return seen_of(DEFAULTS | plain | vars(own), devices)


def seen_of(values: dict[str, Any], devices: list[str]) -> Seen:
    """The plan as FlagScale understood it."""
    flat = values["hetero_process_meshes"]
    sizes = [tuple(flat[at : at + 5]) for at in range(0, len(flat), 5)]
    first, placed, seen = 0, [], dict[str, Any]()
    for number, (tp, cp, _ep, dp, pp) in enumerate(sizes):
        args, mapper = at_rank(values, devices, first)
        ranks = mapper.to_physical_ranks([*range(first, first + tp * cp * dp * pp)])
        here = {devices[rank] for rank in ranks}
        wanted = values["hetero_device_types"][number]
        assert here == {wanted}, f"mesh {number} of {wanted} has ranks on {sorted(here)}"
        placed += [[wanted, args.tensor_model_parallel_size]] * args.pipeline_model_parallel_size
        own = {
            "data_parallel_size": args.data_parallel_size,
            "context_parallel_size": args.context_parallel_size,
            "expert_parallel_size": args.expert_model_parallel_size,
            "micro_batch_size": args.micro_batch_size,
            "num_microbatches": args.global_batch_size // (args.data_parallel_size * args.micro_batch_size),
            "stage_layers": [*args.hetero_pipeline_layer_split],
            **replayed(args),
        }
        assert not seen or seen == own, f"mesh {number} differs from the first: {own}"
        seen, first = own, first + tp * cp * dp * pp
    assert first == len(devices), f"{first} ranks in meshes of {len(devices)}"
    return {**seen, "pipeline_parallel_size": len(placed), "placed": placed}


def at_rank(values: dict[str, Any], devices: list[str], logical: int) -> tuple[Any, Any]:
    """Arguments and numbering of a rank of the meshes, validated."""
    args = types.SimpleNamespace(**values)
    world = Ranks(0, devices)
    parallel_context.torch.distributed = arguments.torch.distributed = world
    mapper = parallel_context.RankMapper(args)
    (world.rank,) = mapper.to_physical_ranks([logical])
    args.hetero_current_device_type = devices[world.rank]  # as the runner writes it for each host
    own = arguments.FSTrainArguments(args, rank_mapper=mapper)
    own.pre_validate_args()
    own.post_validate_args()
    return args, mapper


def replayed(args: Any) -> Seen:
    """Recomputed layers of each stage, the same in every micro-batch."""
    by_stage = args.recompute_num_layers_per_stage_micro_batch
    if not by_stage:
        return {}
    assert all(len(set(one)) == 1 for one in by_stage), by_stage
    return {"replayed_by_stage": [one[0] for one in by_stage]}


if __name__ == "__main__":
    serve(judge)
