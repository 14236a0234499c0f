"""Reader of FlagScale's experiments: the experiment's YAML, its training arguments, and the hostfile.

FlagScale da4935ec: the runner (runner/runner_train.py _get_args_megatron) takes ``system``, ``model``
and ``data`` as arguments of Megatron-LM, whatever they are nested in; a later one counts. Its
parse_hostfile (runner/utils.py) reads the hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath

from meshwright.launchers.flags import flag_names, flags_of
from meshwright.launchers.megatron_core.names import layout, spelled
from meshwright.launchers.megatron_core.read import core_names, flag_of, take, text_of
from meshwright.launchers.megatron_lm.read import launch_file
from meshwright.launchers.megatron_lm.read_forks import respell
from meshwright.launchers.reading.base import LaunchFile, Overrides, Reader, Source, refused
from meshwright.launchers.reading.commands import World, commands_beside, given_to_several, options_of
from meshwright.launchers.reading.documents import (
    LocatedValue,
    document_of,
    looks_like_document,
    names_held,
)
from meshwright.launchers.reading.fields import is_placeholder
from meshwright.launchers.reading.given import Given, Value
from meshwright.launchers.reading.known import known_of
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.values import Word, unknown_fault, unknown_in
from meshwright.solver.configuration import Configuration, StageGroup

NAME = "flagscale"
Document = Mapping[str, LocatedValue]
_SECTIONS = ("system", "model", "data")
_HOST = re.compile(r"^(\S+)\s+slots=(\d+)(?:\s+type=(\S+))?")  # runner/utils.py parse_hostfile
_SIZES_OF_A_MESH = 5
_BY_STAGE = "_per_stage_micro_batch"
_MESHES, _TYPES, _SPLIT = "hetero_process_meshes", "hetero_device_types", "hetero_pipeline_layer_split"
_SWITCH = "enable_hetero"
_LARGEST_FACTOR = 1000
_COUNTS = f"recompute_num_layers{_BY_STAGE}"
_ON = f"recompute_granularity{_BY_STAGE}"


@dataclass(frozen=True, slots=True)
class _StatedMesh:
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    device: str


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    experiment, training = _documents(source)
    over = _of_command(source, overrides)
    experiment = {
        **experiment,
        **{name: one for name, one in over.items() if name.startswith("experiment.")},
    }
    own = {name.removeprefix("train."): one for name, one in over.items() if name.startswith("train.")}
    training = {**training, **own}
    _require_training(source, experiment, overrides)
    values, given = _arguments(_interpolated(training, experiment), overrides)
    for name, one in over.items():
        said = shown(text_of(one.value))
        given.note(f"line {one.line} of the command: {shown(name)} is {said}, not the file's")
    _list_others(given, experiment)
    meshes = _meshes(values) if _MESHES in values else []
    hosts = _started(given, experiment, _hosts(source))
    world = _world(experiment, hosts)
    if meshes:
        _take_meshes(given, values, meshes)
        pp, dp = sum(one.pp for one in meshes), meshes[0].dp
        alike = max(one.tp for one in meshes) * meshes[0].cp * dp * pp
        world, overrides = World(processes=alike), replace(overrides, num_gpus=None)
    respell(given)
    given.refuse_slips(core_names())
    _take_width(given, values)
    known = known_of(source, overrides)
    found = launch_file(NAME, given, replace(known.overrides, num_gpus=overrides.num_gpus), world,
                        name=source.name)  # fmt: skip
    found = _with_envs(found, experiment)
    if not meshes:
        return found
    config = _by_stage(found.configuration, values)
    if len({one.device for one in meshes}) > 1 or len({one.tp for one in meshes}) > 1:
        config = _placed(config, meshes, hosts)
        return replace(found, configuration=config, num_nodes=None, gpus_per_node=None)
    each = hosts[0][0] if len({slots for slots, _ in hosts}) == 1 else None
    return replace(found, configuration=config, num_nodes=len(hosts) or None, gpus_per_node=each)


FLAGSCALE_READER = Reader(
    name=NAME,
    recognises=lambda source: (
        names_held(source, ("experiment.task.type", "system.tensor_model_parallel_size")) > 0
    ),
    read=_read,
)


def _of_command(source: Source, overrides: Overrides) -> dict[str, LocatedValue]:
    """Return the values that the command of an experiment gives Hydra, which override the files.

    Raises:
        InvalidProblemError: commands next to the experiment start another, or this one with other values.
    """
    found, lines, others = list[dict[str, LocatedValue]](), list[int](), list[str]()
    for script, words in commands_beside(source, overrides):
        texts = [word.text for word in words]
        name = dict(options_of(texts)).get("--config-name")
        at = next((at for at, text in enumerate(texts) if text.rpartition("/")[2] == "run.py"), None)
        if at is None or name is None or not _ENDS.isdisjoint(texts):
            continue
        stem = name.rpartition("/")[2].removesuffix(".yaml")
        is_experiment = any(one.startswith("experiment.") for one in looks_like_document(source))
        if unknown_in(name) is None and is_experiment and stem != PurePath(source.name).stem:
            others.append(f"line {words[at].line} of {shown(script.name)} starts {shown(stem)}")
        else:
            found.append(_values(words[at + 1 :], script.name))
            lines.append(words[at].line)
    if others and not found:
        raise refused(f"{others[0]}, not {shown(source.name)}", allowed="the file that it starts")
    said = [{name: one.value for name, one in own.items()} for own in found]
    if any(own != said[0] for own in said):
        raise given_to_several(source.name, lines)
    return found[0] if found else {}


_ENDS = {"action=stop", "action=query"}  # of a run that another command has started


def _values(words: Sequence[Word], script: str) -> dict[str, LocatedValue]:
    """Return the values among Hydra's words.

    Raises:
        InvalidProblemError: a word deletes a value, selects another file, or is not one value.
    """
    found = dict[str, LocatedValue]()
    for word in words:
        name, equals, text = word.text.lstrip("+").partition("=")
        if not (equals or name.startswith("~")) or name.startswith(("-", "hydra.")) or name == "action":
            continue
        where = f"line {word.line} of {shown(script)}: {shown(word.text)}"
        if not name.startswith(("experiment.", "train.")):
            raise refused(f"{where} is not read", allowed="train.… or experiment.…")
        value = {"value": LocatedValue(text, word.line)}
        if unknown_in(text) is None:
            value = {}
            with suppress(InvalidProblemError):
                value = document_of(Source(name="value.yaml", text=f"value: {text}"))
        if "value" not in value:
            raise refused(f"{where} is not one value", allowed=f"{shown(name)}=VALUE")
        found[name] = LocatedValue(value["value"].value, word.line)
    return found


def _require_training(source: Source, experiment: Document, overrides: Overrides) -> None:
    """Refuse an experiment that serves, compresses or tunes, or trains by another program."""
    for name, wanted in (
        ("experiment.task.type", ("train",)),
        ("experiment.task.backend", ("megatron",)),
        (_ENTRY, flags_of(NAME)[_ENTRY].unless),
        ("action", flags_of(NAME)["action"].unless),
    ):
        found = experiment.get(name)
        if found is None or overrides.ignores(name):
            continue
        text = text_of(found.value)
        said = _OWN_PROGRAM.sub("", text) if name == _ENTRY else text
        if said not in wanted:
            message = f"line {found.line} of {shown(source.name)}: {name} is not supported"
            raise refused(f"{message}: {shown(text)}", allowed=" or ".join(wanted))


_ENTRY = "experiment.task.entrypoint"
_OWN_PROGRAM = re.compile(r"^.*?(?=flagscale/train/)")  # a path to FlagScale's folder
_INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")


def _interpolated(training: Document, experiment: Document) -> dict[str, LocatedValue]:
    """Return the training arguments with what they name of the experiment, or of each other.

    OmegaConf counts names from the root, where the training arguments are ``train``.
    """
    root = {**experiment, **{f"train.{name}": one for name, one in training.items()}}

    def said(value: object) -> object:
        if isinstance(value, list):
            return [said(one) for one in value]
        if not isinstance(value, str):
            return value
        whole = _INTERPOLATION.fullmatch(value)
        if whole is not None and whole[1] in root:
            return root[whole[1]].value
        return _INTERPOLATION.sub(
            lambda found: text_of(root[found[1]].value) if found[1] in root else found[0], value
        )

    return {
        name: LocatedValue(said(one.value), one.line)
        for name, one in training.items()
        if not (isinstance(one.value, str) and "${" in one.value and said(one.value) is None)
    }


def _with_envs(found: LaunchFile, experiment: Document) -> LaunchFile:
    """Apply the experiment's environment to the run: blocking kernel launches run one by one."""
    blocking = experiment.get("experiment.envs.CUDA_LAUNCH_BLOCKING")
    return found.launched_one_by_one() if blocking and text_of(blocking.value) == "1" else found


def _documents(source: Source) -> tuple[Document, Document]:
    """Return the experiment (empty if missing) and the training arguments."""
    document = document_of(source, by_omegaconf=True)
    if any(name.partition(".")[0] in _SECTIONS for name in document):
        experiments = [
            document_of(one) for one in map(source.at, sorted(source.files))
            if one.suffix in (".yaml", ".yml") and "experiment.task.backend" in looks_like_document(one)
        ]  # fmt: skip
        return (experiments[0] if len(experiments) == 1 else {}), document
    defaults = document.get("defaults")
    listed = defaults.value if defaults is not None and isinstance(defaults.value, list) else []
    missing = "the file of the training arguments"
    for one in listed:
        name = _named(one)
        missing = f"{name}.yaml" if name else missing
        text = source.other(f"{name}.yaml") if name else None
        if text is not None:
            return document, document_of(replace(source, name=f"{name}.yaml", text=text), by_omegaconf=True)
    line = defaults.line if defaults is not None else 0
    raise refused(
        f"line {line} of {shown(source.name)}: {shown(missing)} is not next to it",
        allowed="the file of the training arguments, next to the experiment",
    )


def _named(one: object) -> str:
    """Return the file of the training arguments that an entry of Hydra's defaults names."""
    if isinstance(one, Mapping):
        return str(one.get("train", ""))
    name, _, package = str(one).partition("@")
    return name if package == "train" else ""


def _arguments(training: Document, overrides: Overrides) -> tuple[dict[str, LocatedValue], Given]:
    """Return FlagScale's own arguments by name, and those of Megatron-LM."""
    own, given = dict[str, LocatedValue](), Given()
    plain = dict[str, tuple[str, LocatedValue]]()
    for section in _SECTIONS:
        for name, found in training.items():
            if name.startswith(f"{section}."):
                plain[name.rpartition(".")[2].replace("-", "_")] = (name, found)
    for key, (name, found) in plain.items():
        if overrides.ignores(name) or overrides.ignores(key):
            given.note(f"line {found.line}: {shown(name)} is ignored (--ignore)")
        elif key in flags_of(NAME) and flags_of(NAME)[key].role == "priced":
            own[key] = found
            _refuse_placeholder(given, name, found)
        else:
            _take(given, key, name, found)
    stated = plain.get("group_query_attention")
    if stated is None or stated[1].value is not True:  # num_query_groups turns it on in Megatron-Core alone
        given.values.pop("--group-query-attention", None)
    return own, given


def _take(given: Given, key: str, name: str, found: LocatedValue) -> None:
    """Take one of Megatron-LM's arguments, or list it; ``name`` has its sections."""
    text = text_of(found.value)
    names = flag_names(NAME, "megatron-lm", "megatron-core")
    if names.is_ignored(key) and flag_of(key) is None:
        return
    if names.is_free(key) and is_placeholder(text):  # a checkpoint of any name costs the same
        return
    _refuse_placeholder(given, name, found)
    if flag_of(key) is not None:
        take(given, key, text, found.line, called=name)
    elif key in flags_of("megatron-lm") and key not in flags_of(NAME):
        given.take(spelled(key), Value(() if found.value is True else (text,), found.line), called=name)
    else:
        given.leave(name[:64], f"--{key.replace('_', '-')}", Value((text,), found.line))


def _refuse_placeholder(given: Given, name: str, found: LocatedValue) -> None:
    text = text_of(found.value)
    if (unknown := unknown_in(found.value)) is not None:
        raise InvalidProblemError([*given.faults, unknown_fault(name[:64], unknown, found.line)])
    if is_placeholder(text):
        given.refuse(name, f"line {found.line}: {text[:40]} is a placeholder", allowed="the value")


def _list_others(given: Given, experiment: Document) -> None:
    """List the experiment's values that may matter and are not read."""
    names = flag_names(NAME)
    for name, found in experiment.items():
        text, row = text_of(found.value), names.row(name)
        priced = row is not None and row.role == "priced"
        if not (
            priced or name in (_ENTRY, "action") or names.is_free(name) or names.is_default(name, text)
        ):
            given.leave(name[:64], f"--{name}", Value((text,), found.line))


def _started(
    given: Given, experiment: Document, hosts: Sequence[tuple[int, str]]
) -> Sequence[tuple[int, str]]:
    """Return the hosts that the runner starts (runner/utils.py): nnodes, with nproc_per_node each."""
    limits = {name: experiment.get(f"experiment.runner.{name}") for name in ("nnodes", "nproc_per_node")}
    nodes, each = (
        one.value if one is not None and type(one.value) is int else None for one in limits.values()
    )
    if nodes is not None and hosts and nodes > len(hosts):
        given.note(f"nnodes is {nodes}, but the hostfile lists {len(hosts)}, which start")
    return [(min(slots, each or slots), kind) for slots, kind in hosts[: nodes or None]]


def _meshes(values: Document) -> list[_StatedMesh]:
    sizes = _whole_numbers(values, _MESHES)
    line = values[_MESHES].line
    if not sizes or len(sizes) % _SIZES_OF_A_MESH:
        raise refused(
            f"line {line}: {_MESHES} has {len(sizes)} sizes", allowed="tp, cp, ep, dp, pp of each mesh"
        )
    count = len(sizes) // _SIZES_OF_A_MESH
    stated = values.get(_TYPES)
    types = stated.value if stated is not None and isinstance(stated.value, list) else []
    if len(types) != count:
        raise refused(f"line {line}: {count} meshes, {len(types)} {_TYPES}", allowed=f"{count} of each")
    each = zip(*(sizes[at::_SIZES_OF_A_MESH] for at in range(_SIZES_OF_A_MESH)), strict=True)
    found = [
        _StatedMesh(tp, cp, ep, dp, pp, str(device)[:200])
        for (tp, cp, ep, dp, pp), device in zip(each, types, strict=True)
    ]
    if any(0 in (one.tp, one.cp, one.ep, one.dp, one.pp) for one in found):
        raise refused(f"line {line}: {_MESHES} has a size of 0", allowed="1 or more")
    if len({(one.cp, one.ep, one.dp) for one in found}) > 1:
        raise refused(
            f"line {line}: meshes with different cp, ep or dp are not supported",
            allowed="one cp, ep and dp for all",
        )
    return found


def _whole_numbers(values: Document, name: str) -> list[int]:
    found = values[name].value
    numbers = found if isinstance(found, list) else []
    if not numbers or not all(type(one) is int and 0 <= one < 10**6 for one in numbers):
        raise refused(
            f"line {values[name].line}: {name} is not a list of whole numbers", allowed="[0, 1, …]"
        )
    return numbers


def _take_meshes(given: Given, values: Document, meshes: Sequence[_StatedMesh]) -> None:
    """Take the meshes as one of the largest tensor size; the stages' own sizes follow after it."""
    line, switch = values[_MESHES].line, values.get(_SWITCH)
    if switch is None or switch.value is not True:
        given.refuse(_MESHES, f"line {line}: does nothing without {_SWITCH}", allowed=f"{_SWITCH}: true")
    sizes = {
        "tensor-model-parallel-size": max(one.tp for one in meshes),
        "pipeline-model-parallel-size": sum(one.pp for one in meshes),
        "context-parallel-size": meshes[0].cp,
        "expert-model-parallel-size": meshes[0].ep,
    }
    for name, size in sizes.items():
        if name != "tensor-model-parallel-size" and given.integer(name, size) != size:
            given.fault(name, f"{given.word(name)}, but {_MESHES} has {size}", nearest=size)
        given.values.pop(f"--{name}", None)
        given.take(f"--{name}", Value((str(size),), line), called=_MESHES)
    if _SPLIT in values:
        given.take(
            "--pipeline-model-parallel-layout",
            Value((layout(_whole_numbers(values, _SPLIT)),), values[_SPLIT].line),
            called=_SPLIT,
        )


def _take_width(given: Given, values: Document) -> None:
    """Take the MLP width that multiple_of and hidden_dim_multiplier decide (arguments.py.patch)."""
    unit, factor = (values.get(name) for name in ("multiple_of", "hidden_dim_multiplier"))
    stated = given.has("ffn-hidden-size") or not (given.has("swiglu") and given.has("hidden-size"))
    if unit is None or unit.value is None or stated:
        return
    times: object = 1 if factor is None or factor.value is None else factor.value
    if not (isinstance(unit.value, int) and unit.value >= 1):
        given.refuse(
            "multiple_of",
            f"line {unit.line}: {shown(text_of(unit.value))} is not a width",
            allowed="1 or more",
        )
        return
    if not (isinstance(times, int | float) and 0 < times < _LARGEST_FACTOR):
        given.refuse(
            "hidden_dim_multiplier",
            f"line {factor.line if factor else 0}: {shown(text_of(times))} is not a factor",
            allowed=f"more than 0, less than {_LARGEST_FACTOR}",
        )
        return
    width = int(int(4 * given.integer("hidden-size", 0) * 2 / 3) * times)
    text = str(-(-width // unit.value) * unit.value)
    given.take("--ffn-hidden-size", Value((text,), unit.line), called="multiple_of")


def _by_stage(config: Configuration, values: Document) -> Configuration:
    """Return the configuration with the layers that each stage recomputes, if lists state them."""
    if _COUNTS not in values:
        return config
    counts = _each_stage(values, _COUNTS)
    if _ON in values:
        counts = [count * bool(on) for count, on in zip(counts, _each_stage(values, _ON), strict=False)]
    if len(counts) != config.pipeline_parallel_size:
        raise refused(
            f"line {values[_COUNTS].line}: {_COUNTS} has {len(counts)} stages",
            allowed=f"{config.pipeline_parallel_size} stages",
        )
    if not any(counts):
        return replace(config, recompute_granularity="none", recompute_layers=0)
    return replace(config, recompute_layers=0, stage_recompute_layers=tuple(counts))


def _each_stage(values: Document, name: str) -> list[int]:
    """Return a value for each stage of lists [stages, micro-batches, value, …], one value each."""
    found, lists = list[int](), values[name].value
    for one in lists if isinstance(lists, list) else [None]:
        numbers = one if isinstance(one, list) else []
        if len(numbers) < 3 or not len(numbers) % 2 or not all(type(n) is int for n in numbers):  # noqa: PLR2004
            raise refused(
                f"line {values[name].line}: {name} must be lists of stages, micro-batches and values",
                allowed="[stages, micro-batches, value, …] for each stage",
            )
        if len(set(numbers[2::2])) > 1:
            raise refused(
                f"line {values[name].line}: {name} differs between micro-batches. That is not supported",
                allowed="one value for all micro-batches of a stage",
            )
        found += [numbers[2]] * min(max(numbers[0], 0), 4096)
    return found


def _placed(
    config: Configuration, meshes: Sequence[_StatedMesh], hosts: Sequence[tuple[int, str]]
) -> Configuration:
    """Return the configuration with the node group of every stage, named as the device types."""
    slots = {device: max(count for count, kind in hosts if kind == device) for _, device in hosts}
    stages = []
    for mesh in meshes:
        gpus = mesh.tp * mesh.cp * mesh.dp
        one = StageGroup(
            group=mesh.device, num_gpus=gpus, num_nodes=gpus / slots.get(mesh.device, gpus),
            tensor_parallel_size=mesh.tp,
        )  # fmt: skip
        stages += [one] * mesh.pp
    return replace(config, stage_groups=tuple(stages))


def _hosts(source: Source) -> list[tuple[int, str]]:
    """Return slots and device type of each host of the hostfile next to the experiment."""
    for text in (source.files[name] for name in sorted(source.files) if "host" in name):
        found = [match for line in text.splitlines() if (match := _HOST.match(line.strip())) is not None]
        if found:
            return [(int(match[2]), match[3] or "") for match in found]
    return []


def _world(experiment: Document, hosts: Sequence[tuple[int, str]]) -> World:
    if hosts:
        sizes = {slots for slots, _ in hosts}
        if len(sizes) == 1:
            return World(num_nodes=len(hosts), gpus_per_node=sizes.pop())
        return World(processes=sum(slots for slots, _ in hosts))
    numbers = [experiment.get(f"experiment.runner.{name}") for name in ("nnodes", "nproc_per_node")]
    nodes, each = (one.value if one is not None and type(one.value) is int else None for one in numbers)
    return World(num_nodes=nodes, gpus_per_node=each)
