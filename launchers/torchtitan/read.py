"""Reader of torchtitan's configurations: TOML for 0.2, a Python module for 0.3, which is never run.

Names and defaults: torchtitan 0.2.2, config/job_config.py; 0.3.0, config/configs.py and trainer.py.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from meshwright.launchers.flags import flag_names, flags_of
from meshwright.launchers.reading.base import LaunchFile, Options, Overrides, Reader, Source
from meshwright.launchers.reading.commands import script_of
from meshwright.launchers.reading.documents import LocatedValue, document_of, looks_like_document
from meshwright.launchers.reading.fields import Fields, divided
from meshwright.launchers.reading.images import ImageSettings, with_images
from meshwright.launchers.reading.known import Known, known_of
from meshwright.launchers.reading.python_values import (
    FLOAT8,
    looks_like_module,
    makers_of,
    module_values,
    tree_of,
)
from meshwright.launchers.rules import near_divisors, near_multiples
from meshwright.launchers.torchtitan.read_model import model_of
from meshwright.launchers.torchtitan.read_stages import recomputation_of, split_of
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.shell.values import Word, plainly, unknown_arguments, unknown_fault, unknown_in
from meshwright.solver.configuration import SPLIT_BACKWARD, Configuration
from meshwright.solver.problem import Workload

# --------------------------------------------------------------------------------------------------
# Flags of a torchtitan command, which override its configuration: ``--training.seq_len 8192``.


_RECOMPUTE = "activation-checkpoint:"
_SEEDS = "checkpoint.create_seed_checkpoint"  # trains nothing
_NAMING = ("module", "config")  # the configuration, which ``named_of`` reads
_SECTIONS = (
    "parallelism", "training", "activation_checkpoint", "optimizer", "model", "compile",
    "experimental", "float8", "quantize",  # before 0.3
)  # fmt: skip


def overrides(known: Known) -> dict[str, LocatedValue]:
    """Return values by dotted name from commands of scripts next to the configuration; the last counts."""
    found: dict[str, LocatedValue] = {}
    for source in known.source.scripts():
        for words in script_of(source, known.overrides).commands:
            texts = [word.text for word in words]
            start = next((at for at, text in enumerate(texts, 1) if text.endswith((_PROGRAM, _STARTER))), 0)
            if start and (fault := unknown_arguments(words[start:])) is not None:
                raise fault
            flags = _flags(texts[start:], all_its_own=start > 0)
            found |= {name: LocatedValue(text, words[start + at].line) for at, name, text in flags}
    return found


def _flags(texts: list[str], *, all_its_own: bool) -> Iterator[tuple[int, str, str]]:
    """Yield place, name and value of each flag; for other programs, flags with torchtitan's sections."""
    for at, text in enumerate(texts):
        if text.startswith(_RECOMPUTE):  # 0.3: activation-checkpoint:full
            yield at, "activation_checkpoint.mode", text.removeprefix(_RECOMPUTE)
        name, equals, value = text.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        section, dot, _ = name.partition(".")
        if (
            text.startswith("--")
            and name not in _NAMING
            and (all_its_own or (dot and (section in _SECTIONS or name == _SEEDS)))
        ):
            following = texts[at + 1] if at + 1 < len(texts) else "--"
            yield at, name, value if equals else "true" if following.startswith("--") else following


def over(values: dict[str, LocatedValue], known: Known) -> tuple[dict[str, LocatedValue], list[str]]:
    """Return the configuration's values with the command's over them, and notes on the changes."""
    given = overrides(known)
    notes = [
        f"line {found.line} of the command: {shown(name)} is {shown(str(found.value))}, not the file's"
        for name, found in given.items()
        if not flag_names("torchtitan").is_free(name)
        and (name not in values or str(values[name].value).lower() != str(found.value).lower())
    ]
    return values | given, notes


# --------------------------------------------------------------------------------------------------
# Configurations by name: ``--module llama3 --config llama3_8b`` of torchtitan 0.3, which holds them.


_RECIPE_FILE = CATALOG / "recipes" / "torchtitan.json"
_REGISTRY = "config_registry.py"
_PROGRAM, _STARTER = "torchtitan.train", "run_train.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The names of a command's configuration; empty without one."""

    module: str = ""
    config: str = ""
    line: int = 0
    trains: bool = False  # with torchtitan's own program

    @property
    def is_torchtitans(self) -> bool:
        """Whether only torchtitan can have these names."""
        return bool(self.config) and (self.trains or self.config in recipe_names())


@cache
def _recipes() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(_RECIPE_FILE.read_text("utf-8"))["recipes"]
    return found


def recipe_names() -> tuple[str, ...]:
    """Return the configurations of torchtitan that are known by name."""
    return tuple(_recipes())


def named_of(source: Source, overrides: Overrides) -> Named:
    """Return the configuration that a script starts, by the command's words or run_train.sh's variables.

    Raises:
        InvalidProblemError: the script cannot be read.
    """
    script = script_of(source, overrides)
    for words in script.commands:
        said: dict[str, Word] = {}
        for word, following in pairwise([*words, Word("", 0)]):
            name, equals, value = word.text.partition("=")
            said.setdefault(name, Word(value, word.line) if equals else following)
        module, config = said.get("--module"), said.get("--config")
        if any(word.text.endswith(_STARTER) for word in words):
            if "".join(script.environment.get("CONFIG_FILE", ())):
                return Named()  # 0.2's script starts that TOML
            usual = {name: "".join(script.environment.get(name, ())) for name in ("MODULE", "CONFIG")}
            line = words[0].line
            module = module or Word(usual["MODULE"] or "llama3", line)
            config = config or Word(usual["CONFIG"] or "llama3_debugmodel", line)
        if module is not None and config is not None:
            trains = any(word.text.endswith((_PROGRAM, _STARTER)) for word in words)
            name = module.text.rpartition(".")[2]
            return Named(module=name, config=config.text, line=config.line, trains=trains)
    return Named()


def configuration_of(source: Source, overrides: Overrides) -> tuple[dict[str, str], list[str]]:
    """Return modules that make the run's configuration in torchtitan 0.3, and the command's other words.

    ``torchtitan_plan.py`` among them defines ``plan``, as in an export. Both are empty for a TOML of older
    releases, for several modules, and for a word that only the running shell knows.
    """
    scripts = source.scripts()
    named = next((one for one in (named_of(each, overrides) for each in scripts) if one.config), Named())
    words = next((found for each in scripts if (found := _trained(each, overrides))), [])
    files = {**source.files, source.name: source.text}
    own = [name for name, text in files.items() if looks_like_module(Source(name=name, text=text))]
    if len(own) > 1 or any(unknown_in(word) for word in words):
        return {}, []
    if own:
        makers = makers_of(tree_of(own[0], files[own[0]]))
        maker = named.config if named.config in makers else next(iter(makers), "")
        modules = {_EDITED: files[own[0]]} if named.config in makers or len(makers) == 1 else {}
        place = _EDITED.removesuffix(".py")
    else:
        maker, modules = named.config, {}
        place = f"torchtitan.models.{named.module}.config_registry" if maker in _recipes() else ""
    if not (maker and place and (modules or not own)):
        return {}, []
    return {**modules, "torchtitan_plan.py": f"from {place} import {maker} as plan\n"}, words


_EDITED = "edited_configuration.py"


def _trained(source: Source, overrides: Overrides) -> list[str]:
    """Return the words after torchtitan's program, without those that name the configuration."""
    for words in script_of(source, overrides).commands:
        texts = [word.text for word in words]
        start = next((at for at, text in enumerate(texts, 1) if text.endswith((_PROGRAM, _STARTER))), 0)
        if start:
            return [
                text for before, text in pairwise(["", *texts[start:]])
                if text.partition("=")[0] not in _NAMES and before not in _NAMES
            ]  # fmt: skip
    return []


_NAMES = ("--module", "--config")


def _stated(source: Source, known: Known) -> dict[str, LocatedValue]:
    """Return the configuration's values: of a document, a module, or one that a script names."""
    if not source.is_script and source.suffix != ".py":
        return document_of(source)
    scripts = known.source.scripts()
    named = next((one for one in (named_of(s, known.overrides) for s in scripts) if one.config), Named())
    if source.suffix == ".py":
        values = module_values(source, named.config if "Trainer.Config:" in source.text else "")
    else:
        values = _named_values(source, named)
    return ({"model.name": LocatedValue(named.module, named.line)} if named.module else {}) | values


def _named_values(source: Source, named: Named) -> dict[str, LocatedValue]:
    """Return the values of a configuration that a script names, of its registry or torchtitan's own.

    Raises:
        InvalidProblemError: neither has the configuration.
    """
    if (unknown := unknown_in(named.config)) is not None:
        raise InvalidProblemError([unknown_fault("--config", unknown, named.line)])
    text = source.other(_REGISTRY)
    if text and (named.config in makers_of(tree_of(_REGISTRY, text)) or named.config not in _recipes()):
        return module_values(Source(name=_REGISTRY, text=text), named.config)
    if named.config not in _recipes():
        near = difflib.get_close_matches(named.config, _recipes(), n=1)
        raise InvalidProblemError.of(
            "--config",
            f"line {named.line}: {shown(named.config)} is not a configuration of torchtitan 0.3, "
            f"and {shown(named.module)}.py is not next to it",
            allowed=f"one of its names, or its {_REGISTRY} next to the script",
            nearest=near[0] if near else None,
        )
    return {name: LocatedValue(value, named.line) for name, value in _recipes()[named.config].items()}


_OLDEST_FP8 = ("float8.enable_float8_linear", "training.enable_fp8_linear", "training.fp8_linear")
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"


def _in_older_names(values: dict[str, LocatedValue]) -> dict[str, LocatedValue]:
    """Return names of all versions as those of 0.3: a microbatch's tokens are sequences of the longest."""
    table = flags_of("torchtitan")
    found = {
        next(iter(table[name].means), name) if name in table else name: one
        for name, one in values.items()
        if name != _TOKENS
    }
    oldest = {name: one for name in _OLDEST_FP8 if (one := found.pop(name, None))}
    for name, one in oldest.items():
        if str(one.value).lower() not in ("true", "false", "none"):
            raise InvalidProblemError.of(
                name,
                f"line {one.line}: {plainly(shown(str(one.value)))} is neither true nor false",
                allowed="true, false",
            )
    eight = next((one for one in oldest.values() if str(one.value).lower() == "true"), None)
    if eight is not None and "model.converters" not in found:
        found["model.converters"] = LocatedValue(["float8"], eight.line)
    tokens, length = values.get(_TOKENS), found.get("training.seq_len")
    if tokens is None or length is None:
        return found if tokens is None else found | {_TOKENS: tokens}
    said = [int(str(one.value)) if str(one.value).isdecimal() else 0 for one in (tokens, length)]
    if not all(said) or said[0] % said[1]:
        raise InvalidProblemError.of(
            _TOKENS,
            f"line {tokens.line}: {said[0]} is not a multiple of the {said[1]} tokens of a sequence",
            allowed=f"multiples of {said[1]}",
        )
    return found | {"training.local_batch_size": LocatedValue(said[0] // said[1], tokens.line)}


# --------------------------------------------------------------------------------------------------
# The reader.


_OWN = (
    "parallelism.tensor_parallel_degree", "training.local_batch_size", "training.seq_len",
    "job.dump_folder", "parallelism.data_parallel_shard_degree", "model.flavor",
)  # fmt: skip
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
_ONE_EACH = ("1f1b", "dualpipe_v")  # schedules that need a micro-batch for every stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParallelDegrees:
    """Degrees of parallelism."""

    replicate: int
    shard: int
    tp: int
    cp: int
    pp: int


def _recognises(source: Source) -> bool:
    if source.suffix == ".py":
        return looks_like_module(source)
    if source.is_script:
        try:
            named = named_of(source, Overrides())
        except InvalidProblemError:
            return False
        return named.is_torchtitans and source.other(f"{named.module}.py") is None
    names = looks_like_document(source) if source.suffix == ".toml" else {}
    return sum(name in names for name in _OWN) > 1


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    is_module = source.suffix == ".py" or source.is_script
    known = known_of(source, overrides)
    values, notes = over(_stated(source, known), known)
    values = _in_older_names(values)
    fields = Fields(source.name, values, overrides, ("torchtitan",))
    fields.note(*notes)
    model = model_of(fields, known, is_module=is_module)
    configuration, batch = _configuration(fields, known, model, is_module=is_module)
    workload = _workload(fields, known, batch, configuration.pipeline_schedule)
    positions = model.max_position_embeddings
    if overrides.model is None and positions and workload.seq_length > positions:
        message = f"{workload.seq_length}, but the model has {positions} positions"
        if is_module:
            fields.fault("training.seq_len", message)
        else:  # 0.2, models/*/model/args.py (update_from_config)
            fields.note(f"training.seq_len is {message}: torchtitan lengthens its table")
    fields.stop()
    found = known.launch_file(fields, "torchtitan", model, workload, configuration)
    return with_images(found, known, ImageSettings(frozen=()))  # it trains the whole tower


TORCHTITAN_READER = Reader(name="torchtitan", recognises=_recognises, read=_read)


def _mesh(fields: Fields, known: Known) -> _ParallelDegrees:
    """Return the degrees; -1 shards over the remaining GPUs."""
    at = "parallelism."
    replicate = fields.integer(f"{at}data_parallel_replicate_degree")
    tp, cp, pp = (
        fields.integer(f"{at}{name}_parallel_degree") for name in ("tensor", "context", "pipeline")
    )
    shard = fields.integer(f"{at}data_parallel_shard_degree", -1, low=-1)
    if shard == 0:
        name = f"{at}data_parallel_shard_degree"
        fields.fault(name, "0 ranks share nothing", allowed="-1 for all that are left, or 1 and more")
    fields.stop()
    if shard < 1:
        world = known.num_gpus() or known.required(
            "num_gpus", None, f"{at}data_parallel_shard_degree, or the cluster's --num-nodes"
        )
        others = replicate * tp * cp * pp
        shard = divided(world, others, field=f"{at}data_parallel_shard_degree", what="the other degrees")
        fields.note(f"data_parallel_shard_degree -1 is {shard} on {world} GPUs")
    return _ParallelDegrees(replicate=replicate, shard=shard, tp=tp, cp=cp, pp=pp)


def _configuration(
    fields: Fields, known: Known, model: ModelSpec, *, is_module: bool
) -> tuple[Configuration, int]:
    mesh = _mesh(fields, known)
    dp = mesh.replicate * mesh.shard
    micro, count = _batch(fields, known, mesh, dp)
    fields.take(_SCHEDULE)
    schedule = "none" if mesh.pp == 1 else fields.priced(_SCHEDULE)
    split = split_of(fields, model, mesh.pp, schedule)
    vpp = max(len(split) // mesh.pp, 1)
    recompute, replayed = recomputation_of(fields, split, mesh.pp, schedule, is_module=is_module)
    zero = _zero(fields, mesh)
    sequence = fields.flag("parallelism.enable_sequence_parallel") and mesh.tp > 1
    _check(fields, model, mesh, (schedule, len(split), count))
    experts, expert_tensor = _expert_ranks(fields, model, mesh, is_module=is_module)
    offload = _offload(fields, zero, mesh)
    fields.stop()
    found = Configuration(
        tensor_parallel_size=mesh.tp,
        sequence_parallel=sequence if is_module else mesh.tp > 1,  # 0.2 always splits the sequence
        pipeline_parallel_size=mesh.pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=mesh.cp,
        expert_parallel_size=experts,
        expert_tensor_parallel_size=expert_tensor,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=mesh.shard * mesh.cp if zero else 1,
        micro_batch_size=micro,
        num_microbatches=count,
        pipeline_schedule=schedule,
        recompute_granularity=recompute,
        recompute_layers=sum(split) if replayed == split else max(replayed, default=0),
        offload=offload,
        stage_layers=split,
        stage_recompute_layers=replayed if len(set(replayed)) > 1 and replayed != split else (),
    )
    return found, found.global_batch_size


def _expert_ranks(
    fields: Fields, model: ModelSpec, mesh: _ParallelDegrees, *, is_module: bool
) -> tuple[int, int]:
    """Return the ranks that experts are spread over, and those that split each of them.

    torchtitan 0.2.2, distributed/parallel_dims.py: ``efsdp = fsdp * tp // (etp * ep)``, and with ``ep > 1``
    etp is tp or 1; without it ``apply_moe_ep_tp`` splits every expert over the tensor ranks, whatever etp
    is. 0.3 has no etp: ranks that experts are spread over hold them whole.
    """
    name, tensor_name = (f"parallelism.expert_{kind}parallel_degree" for kind in ("", "tensor_"))
    ranks, split = fields.integer(name), fields.integer(tensor_name)
    if is_module and fields.has(tensor_name):
        fields.fault(tensor_name, "is not a field of torchtitan 0.3", allowed="leave it out")
    if model.moe is None:  # torchtitan reads neither
        for one in (name, tensor_name):
            if fields.integer(one) > 1:
                fields.note(f"{one} does nothing: the model has no experts")
        return 1, 1
    if ranks > 1 and split not in (1, mesh.tp):
        fields.fault(
            tensor_name,
            f"{split} is neither 1 nor tensor_parallel_degree, with expert_parallel_degree {ranks}",
            allowed=f"1 or {mesh.tp}",
            nearest=str(mesh.tp),
        )
    if mesh.shard * mesh.cp * mesh.tp % (ranks * split) or model.moe.num_experts % ranks:
        fields.fault(name, f"{ranks} does not divide the shards, or {model.moe.num_experts} experts")
    return ranks, mesh.tp if ranks == 1 else split


def _check(
    fields: Fields, model: ModelSpec, mesh: _ParallelDegrees, pipeline: tuple[str, int, int]
) -> None:
    """Check what torchtitan refuses on building model or trainer: heads, half slices, micro-batches."""
    schedule, stages, count = pipeline
    heads, seq = model.num_kv_heads, fields.integer("training.seq_len")
    slices = mesh.tp * mesh.cp * (2 if mesh.cp > 1 else 1)
    batches = "micro-batch" if count == 1 else "micro-batches"
    rules = (
        (
            heads % mesh.tp,
            "parallelism.tensor_parallel_degree",
            f"{mesh.tp} does not divide {heads} key/value heads",
            f"divisors of {heads}",
            near_divisors(mesh.tp, heads),
        ),
        (
            fields.has("training.seq_len") and seq % slices,
            "training.seq_len",
            f"tp × 2 cp = {slices} does not divide {seq}",
            f"multiples of {slices}",
            near_multiples(seq, slices),
        ),
        (
            schedule in _ONE_EACH and count < stages,
            "training.local_batch_size",
            f"{count} {batches} for {stages} stages of {schedule}, which PyTorch refuses",
            f"{stages} micro-batches and more",
            str(stages),
        ),
    )
    for broken, name, why, allowed, nearest in rules:
        if broken:
            fields.fault(name, why, allowed=allowed, nearest=nearest)


def _batch(fields: Fields, known: Known, mesh: _ParallelDegrees, dp: int) -> tuple[int, int]:
    """Return micro-batch and count: a pipeline's local batch holds all, otherwise gradients accumulate."""
    local_name, all_name = "training.local_batch_size", "training.global_batch_size"
    stated = fields.optional(local_name)
    fields.slip_for(local_name)
    fields.stop()
    local = known.required("local_batch_size", stated, f"{local_name} in the file")
    batch = fields.integer(all_name, -1, low=-1)
    if batch < 1:
        batch = local * dp
        fields.note(f"global_batch_size is not given: local batch × dp = {batch}, no accumulation")
    steps = divided(batch, local * dp, field=all_name, what="local batch × dp")
    if mesh.pp == 1:
        return local, steps
    name = "parallelism.pipeline_parallel_microbatch_size"
    if not fields.has(name):
        fields.note("pipeline_parallel_microbatch_size is not given: 1")
    micro = fields.integer(name)
    if steps > 1:
        fields.fault(all_name, f"{batch} accumulates {steps} local batches over a pipeline: not supported",
                     nearest=str(local * dp))  # fmt: skip
    return micro, divided(local, micro, field=name, what="the pipeline's micro-batch")


def _offload(fields: Fields, zero: int, mesh: _ParallelDegrees) -> str:
    name = "training.enable_cpu_offload"
    away = fields.flag(name)
    if away and (zero != 3 or mesh.pp > 1):  # noqa: PLR2004 - ZeRO-3
        fields.fault(
            name, "is priced where weights are resharded, without pipeline stages", allowed="false"
        )
    return "optimizer+parameters" if away else "none"


def _zero(fields: Fields, mesh: _ParallelDegrees) -> int:
    """Return the ZeRO stage: weights sharded, gathered after the forward pass, or replicated."""
    reshard = fields.choice("parallelism.fsdp_reshard_after_forward")
    if mesh.shard * mesh.cp == 1 and reshard == "default":
        return 0
    if reshard == "default":
        return 3 if mesh.pp == 1 else 2  # "default" keeps weights under a pipeline
    return 3 if reshard == "always" else 2


def _workload(fields: Fields, known: Known, batch: int, schedule: str) -> Workload:
    for name in ("training.mixed_precision_param", "optimizer.name"):
        fields.priced(name)
    if fields.flag(_SEEDS):
        fields.fault(_SEEDS, "writes a checkpoint and trains nothing")
    # train.py builds the model in it: weights, gradients and both moments
    stored = fields.choice("training.dtype")
    seq_length = fields.optional("training.seq_len")
    recipe = _recipe(fields)
    by_tensor = recipe == "fp8-current"  # other recipes gather 16 bits whatever the file asks for
    wide = by_tensor and not any(fields.flag(name) for name in _GATHERS_8_BITS)
    whole = fields.flag("parallelism.disable_loss_parallel")
    asynchronous = [f"{section}.enable_async_tensor_parallel" for section in ("compile", "parallelism")]
    options: Options = {
        **({"precision_recipe": recipe} if recipe else {}),
        **({"low_precision_gathers": False} if wide else {}),
        **({"logits_sharded": False} if whole else {}),
        **({"overlap_tensor": True} if sum(map(fields.flag, asynchronous)) else {}),  # both are taken
        **({"replay_stops_early": True} if fields.flag("activation_checkpoint.early_stop") else {}),
    }
    parts = fields.raw("compile.components")
    named = re.findall(r"[^\s,'\"\[\]]+", "model loss" if parts is None else str(parts))
    if not {*named} <= {"model", "loss"}:
        fields.fault(
            "compile.components", f"{shown(str(parts))} is not a list of these", allowed="model, loss"
        )
    compiled = fields.flag("compile.enable") and "model" in named
    if not compiled and schedule not in SPLIT_BACKWARD:  # the price of its stages already includes this
        fields.note("compile.enable is not on for the model: its operators run one by one")
        options |= {"elementwise_fused": False, "norm_fused": False}
    return Workload(
        global_batch_size=batch,
        seq_length=known.required("seq_length", seq_length, "training.seq_len in the file"),
        precision="fp8" if recipe else "bf16",
        optimizer="adamw-pure-bf16" if stored == "bfloat16" else "adamw",
        framework_options=dict(sorted(options.items())),
    )


_GATHERS_8_BITS = tuple(f"{one}.enable_fsdp_float8_all_gather" for one in ("float8", FLOAT8))
_GROUPED = ("Float8GroupedExpertsConverter", "quantize.grouped_mm.float8")  # experts, next to linear layers


def _recipe(fields: Fields) -> str:
    said = fields.raw("model.converters")
    given = said.split(",") if isinstance(said, str) else said if isinstance(said, list) else []
    linear = "float8" if given == ["float8"] else FLOAT8  # its name, and its section's, before 0.2
    key = f"{linear}.recipe_name"
    if linear not in given:
        fields.pass_over("float8.recipe_name", f"{FLOAT8}.recipe_name")
    recipe = fields.priced(key, "tensorwise")
    others = [one for one in given if one != linear and not (one in _GROUPED and linear in given)]
    if others:
        names = ", ".join(str(one)[:40] for one in others[:4])
        fields.fault("model.converters", f"{names}: not supported", allowed=f"{FLOAT8}, or none")
    if linear not in given:
        return ""
    if fields.raw(key) == "rowwise_with_gw_hp":
        fields.note("rowwise_with_gw_hp keeps gradients of weights in bf16; priced as rowwise")
    return recipe
