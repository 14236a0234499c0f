"""Exporter of FlagScale: a plan becomes the experiment, its training arguments and the hosts.

FlagScale's runner (flagscale/runner/runner_train.py) passes each name of ``system``, ``model`` and ``data``
of the training file to Megatron-LM as an argument. Stages on unlike node groups are its process meshes.
Names: FlagScale da4935ec and its patch of Megatron-LM 8479eb35 (0.15); ``flags.yaml`` lists what it adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import yaml

from meshwright.launchers import export as common
from meshwright.launchers.flagscale.meshes import (
    Hosts,
    crosses_hosts,
    hosts_of,
    is_heterogeneous,
    meshes_of_plan,
    returns_to_a_type,
)
from meshwright.launchers.megatron_core.names import SWITCHES_OF_ALL, environment, written_cut
from meshwright.launchers.megatron_lm import flags as megatron
from meshwright.launchers.rules import Rule, fault, refuse, refuse_first, runs_under, values_are_known
from meshwright.launchers.target import ExportBundle, Target
from meshwright.launchers.templates import filled, template
from meshwright.profiles.errors import FieldError
from meshwright.solver.problem import lacking_gpus, meshes_of

PRODUCT = "FlagScale, commit da4935ec"
EXPERIMENT_FILE, TRAIN_FILE, HOSTS_FILE = "experiment.yaml", "train_plan.yaml", "hostfile.txt"
OF_MODEL = ("Model", "Mixture of experts", "Multi-head latent attention")
_BY_MESHES = (
    "--pipeline-model-parallel-layout", "--tensor-model-parallel-size", "--recompute-granularity",
    "--recompute-method", "--recompute-num-layers", "--sequence-parallel", "--tp-comm-overlap",
)  # fmt: skip
FULL, BLOCK = 1, 1  # codes of the lists by stage: arguments.py, help of recompute-…-per-stage-micro-batch

# --------------------------------------------------------------------------------------------------
# Plans that FlagScale cannot run.


def replicas_are_alike(target: Target) -> Iterator[FieldError]:
    """Refuse unlike replicas: each mesh holds a part of the pipeline, never all of it."""
    if target.config.replicas:
        yield fault("replicas", "FlagScale has no replicas of different sizes", nearest="none")


def a_type_is_one_part_of_the_pipeline(target: Target) -> Iterator[FieldError]:
    """Require the stages of a node group to follow one another (FlagScale's RankMapper)."""
    for device in returns_to_a_type(meshes_of_plan(target)):
        yield fault(
            "stage_groups",
            f"the stages on {device} do not follow one another; FlagScale numbers ranks by device type",
            allowed="the stages of each node group together",
        )


def tensor_ranks_stay_on_a_host(target: Target) -> Iterator[FieldError]:
    """Refuse tensor-parallel ranks that span two hosts, which earlier meshes of other sizes can cause."""
    for mesh in crosses_hosts(target):
        yield fault(
            "stage_groups",
            f"{mesh.tensor_parallel_size} tensor-parallel ranks of {mesh.device} span two hosts: "
            "FlagScale numbers the ranks of a device type mesh by mesh",
            allowed="meshes that fill whole hosts, or equal sizes",
        )


def ends_are_split_alike(target: Target) -> Iterator[FieldError]:
    """Require one tensor-parallel size at both ends of tied embeddings or prediction layers.

    Source: FlagScale's pre_validate_args, "the first and last stage should have the same tp degree".
    """
    meshes, model = meshes_of_plan(target), target.model
    first, last = meshes[0].tensor_parallel_size, meshes[-1].tensor_parallel_size
    if first != last and (model.tied_embeddings or model.num_mtp_layers):
        yield fault(
            "stage_groups",
            f"first stage of tp {first}, last of tp {last}, with tied embeddings or prediction layers",
            allowed="one tensor_parallel_size for both",
            nearest=first,
        )


def counts_fit_the_stages(target: Target) -> Iterator[FieldError]:
    """Require a number of recomputed layers for each stage, up to its own layers."""
    config = target.config
    counts, split = config.stage_recompute_layers, config.stage_layers
    if not counts:
        return
    if len(counts) != len(split):
        yield fault("stage_recompute_layers", f"{len(counts)} entries for {len(split)} stages")
    for stage, (count, layers) in enumerate(zip(counts, split, strict=False)):
        if not 0 <= count <= layers:
            yield fault(
                f"stage_recompute_layers/{stage}", f"{count} of {layers} layers", allowed=f"0 to {layers}"
            )


def groups_have_the_gpus(target: Target) -> Iterator[FieldError]:
    """Require every stage's node group to have its GPUs, and the cluster to have unlike groups."""
    groups = target.problem.cluster.group_named
    unknown = {stage.group for stage in target.config.stage_groups} - groups.keys()
    if unknown or target.problem.cluster.is_homogeneous:
        yield fault(
            "stage_groups",
            "stages are placed on the node groups of a mixed cluster",
            allowed=", ".join(sorted(groups)),
        )
        return
    for name, (used, have) in lacking_gpus(target.problem, target.config).items():
        yield fault("stage_groups", f"needs {used} GPUs of {name}, which has {have}")


_OF_MESHES: tuple[Rule, ...] = (
    a_type_is_one_part_of_the_pipeline,
    tensor_ranks_stay_on_a_host,
    ends_are_split_alike,
    counts_fit_the_stages,
)


def refuse_meshes_first(target: Target) -> None:
    """Check a plan against the rules of FlagScale's meshes, or of Megatron-LM where all nodes are alike.

    Raises:
        RefusedExportError: rules are broken; every fault of every rule is in it.
    """
    if not target.config.is_placed:
        refuse_first(target, "flagscale", (counts_fit_the_stages,))
        return
    refuse((replicas_are_alike, groups_have_the_gpus), target)
    refuse(_OF_MESHES, target)
    for problem, mesh in meshes_of(target.problem, target.config):
        one = replace(target, problem=problem, plan=replace(target.plan, config=mesh))
        refuse((values_are_known,), one)
        refuse((runs_under("flagscale"),), one)


# --------------------------------------------------------------------------------------------------
# The training arguments.


def train_values(target: Target) -> dict[str, dict[str, object]]:
    """Return what the runner passes to Megatron-LM, in its three sections."""
    system, model = dict[str, object](), dict[str, object]()
    by_meshes = is_heterogeneous(target.config)
    for section in megatron.sections(_largest(target)):
        into = model if section.title in OF_MODEL else system
        into |= _values(section, left_out=_BY_MESHES if by_meshes else ())
    if by_meshes:
        system |= _sizes(target)
        config, meshes = target.config, meshes_of_plan(target)
        system["hetero"] = {
            "enable_hetero": True,
            "hetero_process_meshes": [size for mesh in meshes for size in mesh.sizes(config)],
            "hetero_device_types": [mesh.device for mesh in meshes],
            "hetero_current_device_type": meshes[0].device,  # the runner sets each host's
            "hetero_pipeline_layer_split": list(config.stage_layers),
        }
        system |= _recompute(target)
    for name in ("micro_batch_size", "global_batch_size", "seq_length"):
        model[name] = system.pop(name)
    system["logging"] = {"log_interval": 1, "log_throughput": True}
    model |= {"train_iters": "${oc.env:TRAIN_ITERS}", "lr": "${oc.env:LR}", "clip_grad": 1.0}
    data: dict[str, object] = {
        "data_path": "${oc.env:DATA_PATH}",
        "tokenizer": {
            "tokenizer_type": "${oc.env:TOKENIZER_TYPE}",
            "tokenizer_path": "${oc.env:TOKENIZER_PATH}",
        },
        "split": 1,
    }
    return {"system": system, "model": model, "data": data}


def _largest(target: Target) -> Target:
    """Return the target with the sequence parallelism of its largest mesh, for the flags of all meshes."""
    config, splits = target.config, _splits_sequences(target)
    return replace(
        target,
        plan=replace(
            target.plan,
            config=replace(config, sequence_parallel=splits, stage_groups=()),
        ),
    )


def _splits_sequences(target: Target) -> bool:
    """Return whether ranks of some mesh split sequences; FlagScale drops it for meshes of tp 1."""
    placed = any(one.tensor_parallel_size > 1 for one in target.config.stage_groups)
    return placed or target.config.sequence_parallel


def _values(section: megatron.Section, *, left_out: tuple[str, ...]) -> dict[str, object]:
    found = dict[str, object]()
    for one in section.flags:
        if one.name not in left_out:
            words = [
                int(word) if word.isascii() and word.removeprefix("-").isdecimal() else word
                for word in one.values
            ]
            found[one.name[2:].replace("-", "_")] = words if len(words) > 1 else words[0] if words else True
    return found


def _sizes(target: Target) -> dict[str, object]:
    """Return the sizes of the first mesh; FlagScale gives every rank those of its own."""
    found: dict[str, object] = {
        "tensor_model_parallel_size": meshes_of_plan(target)[0].tensor_parallel_size
    }
    splits = _splits_sequences(target)
    overlaps = splits and bool(megatron.facts(target).overlap_tensor) and not _has_single_ranks(target)
    return found | dict.fromkeys(["sequence_parallel"] * splits + ["tp_comm_overlap"] * overlaps, True)


def _has_single_ranks(target: Target) -> bool:
    """Return whether a mesh has tp 1, where FlagScale drops the sequence parallelism of overlap."""
    return any(mesh.tensor_parallel_size == 1 for mesh in meshes_of_plan(target))


def _recompute(target: Target) -> dict[str, object]:
    """Return the recomputation; with counts by stage, lists of stages, micro-batches and a value each."""
    config = target.config
    if config.recompute_granularity == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": list(megatron.facts(target).recomputed),
        }
    if config.recompute_granularity != "full":
        return {}
    counts = config.stage_recompute_layers
    every = not counts and config.recompute_layers >= max(config.stage_layers)
    largest = max(counts, default=config.recompute_layers)
    found: dict[str, object] = {
        "recompute_granularity": "full",
        "recompute_method": "uniform" if every else "block",
        "recompute_num_layers": 1 if every else largest,
    }
    if not counts:
        return found
    steps = config.num_microbatches
    lists = {
        "granularity": [FULL if count else 0 for count in counts],
        "method": [BLOCK] * len(counts),
        "num_layers": list(counts),
    }
    return found | {
        f"recompute_{name}_per_stage_micro_batch": [[1, steps, value] for value in values]
        for name, values in lists.items()
    }


# --------------------------------------------------------------------------------------------------
# The experiment, the hosts, and the script that starts FlagScale's runner on one of them.


def experiment_values(target: Target) -> dict[str, object]:
    """Return the experiment: the runner, its hosts and their environment."""
    hosts = hosts_of(target)
    slots = max(count for one in hosts for count in one.slots)
    wanted = (*environment(target, megatron.facts(target)), *common.common_environment(target))
    envs: dict[str, object] = {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(slots))),  # run_node counts them
        **{one.name: one.value for one in wanted if one.value is not None and not one.is_expression},
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    return {
        "defaults": [f"{TRAIN_FILE.removesuffix('.yaml')}@train", "_self_"],
        "experiment": {
            "exp_name": f"meshwright-{target.plan.plan_id}",
            "exp_dir": "${oc.env:EXP_DIR}",
            "task": {"type": "train", "backend": "megatron", "entrypoint": "flagscale/train/train_gpt.py"},
            "runner": {
                "type": "ssh",
                "backend": "torchrun",
                "hostfile": "${oc.env:HOSTFILE}",
                "rdzv_backend": "static",
                "nnodes": sum(len(one.slots) for one in hosts),
            },
            "envs": envs,
        },
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }


def hostfile(hosts: list[Hosts], names: Sequence[str] = ()) -> str:
    """Return the hosts as FlagScale's parse_hostfile reads them; without names, some to be replaced."""
    lines = [f"slots={count} type={one.device}" for one in hosts for count in one.slots]
    known = names or [f"host{number}" for number in range(len(lines))]
    return "".join(f"{name} {line}\n" for name, line in zip(known, lines, strict=True))


NEEDS = (
    ("FLAGSCALE_DIR", "a checkout of FlagScale da4935ec, with its Megatron-LM unpatched in third_party"),
    ("HOSTS", "the hosts, separated by blanks, in the order of hostfile.txt"),
    ("DATA_PATH", "the prefix of an indexed data set"),
    ("TOKENIZER_TYPE", "for instance HFTokenizerFS"),
    ("TOKENIZER_PATH", "the folder of the tokenizer"),
    ("TRAIN_ITERS", "the number of steps"),
    ("LR", "the learning rate"),
)


def start_script(head: str, target: Target) -> str:
    """Return the script that starts FlagScale's runner."""
    hosts, lines, first = hosts_of(target), list[str](), 0
    for one in hosts:
        last = first + len(one.slots) - 1
        where = f"{first}" if first == last else f"{first} to {last}"
        lines.append(f"#   {where}: {common.printable(one.gpu[:200])}")
        first = last + 1
    values = {
        "NEEDS": "\n".join(_needed(name, hint, target.host_names) for name, hint in NEEDS),
        "ORDER": "\n".join(lines),
        "NODES": str(first),
        "HOSTS_FILE": HOSTS_FILE,
        "EXPERIMENT": EXPERIMENT_FILE,
    }
    return "#!/usr/bin/env bash\n" + head + filled(template("flagscale/launch.sh"), values)


def _needed(name: str, hint: str, hosts: Sequence[str]) -> str:
    """Return the line that asks for a variable; hosts that are in order need not be given."""
    if name == "HOSTS" and hosts:
        return f'HOSTS="${{HOSTS:-{" ".join(hosts)}}}"  # in this order: links between them differ'
    return common.required(name, f"set it to {hint}")


def export(target: Target) -> ExportBundle:
    """Return the experiment, the training arguments, the hosts and the script that starts them."""
    refuse_meshes_first(target)
    warnings = list(found_warnings(target))
    head = common.header(target, warnings, PRODUCT)
    files = {
        EXPERIMENT_FILE: head + _text(experiment_values(target)),
        TRAIN_FILE: head + _text(train_values(target)),
        HOSTS_FILE: head + hostfile(hosts_of(target), target.host_names),
        common.TORCHRUN_FILE: start_script(head, target),
    }
    takes = (("EXP_DIR", "a folder experiment in this one; all hosts must see it"),)
    start = common.StartCommand(program="run.py", needs=NEEDS, takes=takes, starts_all=True)
    return common.with_readme(target, files, product=PRODUCT, start=start, warnings=warnings)


class _FlowDumper(yaml.SafeDumper):
    """Writes each list on one line."""


_FlowDumper.add_representer(
    list, lambda dumper, found: dumper.represent_sequence("tag:yaml.org,2002:seq", found, flow_style=True)
)


def _text(values: object) -> str:
    return yaml.dump(values, Dumper=_FlowDumper, sort_keys=False, width=100, default_flow_style=False)


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of FlagScale from the plan, and the parts that the plan leaves open."""
    known, unlike = megatron.facts(target), is_heterogeneous(target.config)
    lost = unlike and _splits_sequences(target) and _has_single_ranks(target)
    written = (*SWITCHES_OF_ALL, "attention_kernel", "flash_attention", *written_cut(target, known))
    yield from common.applying(
        megatron.padding_warning(target),
        (
            unlike,
            "hetero_process_meshes lists tp, cp, ep, dp and pp of each mesh, as this commit reads them",
        ),
        (
            lost and known.overlap_tensor,
            "tp_comm_overlap is left out: it needs sequence parallelism, and one mesh has tp 1",
        ),
        (
            len(hosts_of(target)) > 1,
            (
                "the meshes communicate over NCCL. For devices without NCCL, set "
                "hetero_use_cpu_communication"
            ),
        ),
        common.unwritten_options(target, written),
        megatron.kernel_warning(known),
    )
