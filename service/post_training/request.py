"""Reads a question on post-training: ``kind: post_training``.

Lengths are of a prompt and its answer together, in tokens. Model and cluster are those of a problem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Any

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.documents import require_plain
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.reading import FieldReader
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import named_parts, without_schema
from meshwright.service.requests.schema import AS_OPTIONS
from meshwright.solver.post_training.engines import ENGINES, has_precision, obstacle_of
from meshwright.solver.post_training.lengths import AnswerLengths, lengths_of_percentiles
from meshwright.solver.post_training.limits import layout_text
from meshwright.solver.post_training.problem import (
    ALGORITHMS,
    MODES,
    PARTS,
    PLACES,
    MeasuredStep,
    Mode,
    Pins,
    Places,
    PostTraining,
)
from meshwright.solver.problem import Problem
from meshwright.solver.space.expressions import (
    ExpressionError,
    names_in,
    parse,
    term_of,
    written_term,
)

LAUNCHERS = tuple(PLACES)
TRAINERS = ("megatron", "fsdp")
LATER = ("areal",)
# Engines that no launcher has at its release: NeMo-RL and verl got TensorRT-LLM after 0.7.0
RELEASES = {"nemo-rl": "NeMo-RL 0.7.0", "verl": "verl 0.7.0", "slime": "slime 0.3.1", "trl": "TRL 1.16.0"}
_NO_ENGINE = ("tensorrt-llm", "trtllm", "trt-llm")
MAX_PROMPTS, MAX_RESPONSES, MAX_UPDATES, MAX_STEPS_OFF = 2**20, 2**12, 2**12, 64
MAX_ANSWERS = 2**20  # of a step
MAX_TOKENS, MAX_TIME_LIMIT_S, MAX_CONSTRAINTS, MAX_MEASURED = 2**24, 3600.0, 16, 8
ROLE_PARTS = (
    "cluster",
    "algorithm",
    "lengths",
    "rollout",
    "training",
    "adapters",
    "reward",
    "asynchrony",
)  # of a measured step
DEFAULT_TIME_LIMIT_S = 30.0
_ASSUMED_MEAN = 1 / 3  # of the way from the prompt to the longest answer
_PERCENTILE = re.compile(r"p(\d{1,3}(?:\.\d{1,6})?)")
# What the training role is priced as: NeMo-RL's and verl's Megatron back ends run Megatron-Bridge and
# Megatron-Core, their FSDP back ends shard as torchtitan does. TRL's trainer is transformers' own.
_PRICED_AS = {"megatron": "megatron-bridge", "fsdp": "torchtitan"}
_PRICED_ALONE = {"trl": "trl"}
_PRICED_ADAPTED = {
    "fsdp": "accelerate"
}  # verl's FSDP workers and Automodel adapt transformers' models as peft does
MAX_RANK = 1024
BASES = ("bf16", "fp32")  # of frozen weights: engines take 16 bits alone
# What the trainers can express of a layout, each with its source. NeMo-RL 4311929, verl b178a3c.
_SHARDED = "dp > 1 => zero_stage == 3"
# TRL with adapters: accelerate's DDP as well, which every rank's whole copy of a frozen model is for
_ADAPTED = {("trl", "fsdp"): "dp > 1 => (zero_stage == 3 or zero_stage == 0)"}
_WHOLE = "recompute_granularity == 'full' => recompute_layers * pp >= {layers}"
_LIMITS: Mapping[tuple[str, str], tuple[str, ...]] = {
    # NeMo-RL nemo_rl/models/megatron/setup.py:1075: layers are recomputed one by one, in all stages;
    # :2222: the distributed optimizer
    ("nemo-rl", "megatron"): ("zero_stage <= 1", "vpp == 1", _WHOLE),
    # verl workers/config/engine.py McoreEngineConfig: use_distributed_optimizer in engine/megatron
    ("verl", "megatron"): ("zero_stage <= 1", "vpp == 1", _WHOLE),
    # NeMo-RL dtensor_cfg: tensor_parallel_size, context_parallel_size, activation_checkpointing
    ("nemo-rl", "fsdp"): (
        _SHARDED, "ep == 1", "recompute_granularity != 'selective'", _WHOLE
    ),
    # verl workers/config/engine.py FSDPEngineConfig: ulysses_sequence_parallel_size, no tensor size
    # slime backends/megatron_utils/arguments.py: use_distributed_optimizer = True
    ("slime", "megatron"): ("dp > 1 => zero_stage == 1", "vpp == 1"),
    ("verl", "fsdp"): (
        _SHARDED, "tp == 1", "ep == 1", "recompute_granularity != 'selective'", _WHOLE
    ),
    # TRL 1.16.0 trainer/grpo_config.py: sequence dimensions are refused (parallelism_config)
    ("trl", "fsdp"): (
        _SHARDED, "tp == 1", "cp == 1", "ep == 1", "offload == 'none'",
        "recompute_granularity != 'selective'", _WHOLE,
    ),
}  # fmt: skip
_MOVED = {  # fields of the training problem by those of this request
    "/workload/seq_length": "/lengths/max",
    "/search/pin": "/training/pin",
    "/workload/lora_rank": "/adapters/rank",
    "/workload/lora_targets": "/adapters/targets",
    "/workload/base_precision": "/adapters/base_precision",
}

_OF_TEXT = {"images_per_sample": 0, "precision": "bf16"}  # what the files of every launcher state
Parse = Callable[[Mapping[str, object]], Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostTrainingRequest:
    """A question, read."""

    asked: PostTraining
    time_limit_s: float
    canonical: Mapping[str, Any]  # model and cluster spelt out, so that no catalog changes it


def read_post_training(raw: Mapping[str, object], *, parse: Parse = parse_problem) -> PostTrainingRequest:
    """Return the question of a request.

    Args:
        raw: the request.
        parse: reads model and cluster, as a problem of ``meshwright plan``.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    plain = named_parts(without_schema(require_plain(raw)))
    reader = FieldReader(plain, "")
    reader.choice("kind", (POST_TRAINING,), default=POST_TRAINING)
    name = reader.text("name", default="")
    for part, example in (("model", "qwen3-8b"), ("cluster", "8xH100")):
        if reader.value(part) is None:
            reader.fault(part, "is required", allowed=f"as in a problem of meshwright plan: {example}")
    launcher = _launcher(reader)
    algorithm = _algorithm(_part(reader, "algorithm"), PLACES[launcher])
    lengths_stated = _stated_lengths(_part(reader, "lengths"))
    rollout = _rollout(_part(reader, "rollout", required=False), launcher)
    training = _training(_part(reader, "training", required=False), launcher, rollout["engine"])
    usual = PLACES[launcher].base_of.get(training["trainer"])
    adapters = _adapters(reader.child("adapters"), usual)
    reward = _reward(_part(reader, "reward", required=False))
    ahead = _asynchrony(_part(reader, "asynchrony", required=False))
    search = _search(_part(reader, "search", required=False))
    stated = reader.children("measured", high=MAX_MEASURED) if reader.has("measured") else []
    steps = [_measured(one) for one in stated]
    reader.refuse_unknown(AS_OPTIONS)
    reader.finish()
    lengths, assumed = _lengths(lengths_stated)
    problem = _limited(
        _training_problem(plain, lengths, {**training, "adapters": adapters}, search, parse), launcher,
        training["trainer"], search["constraints"],
    )  # fmt: skip
    asked = PostTraining(
        training=problem, launcher=launcher, trainer=training["trainer"], lengths=lengths,
        mean_is_assumed=assumed, engine=rollout["engine"], precision=rollout["precision"],
        sleeps=rollout["sleep"],
        max_steps_off=ahead["max_steps_off"],
        top_k=search["top_k"], name=name, constraints=search["constraints"],
        pins=_pins(rollout, training, reward, ahead), reward_s=reward["seconds"],
        reward_model=_reward_model(reward["model"], problem.cluster, parse), **algorithm,
    )  # fmt: skip
    _check(asked)
    asked = replace(asked, measured=tuple(_steps_asked(plain, steps, parse)))
    return PostTrainingRequest(
        asked=asked, time_limit_s=search["time_limit_s"],
        canonical=_canonical(plain, asked),
    )  # fmt: skip


_AN_EXAMPLE = {  # of the parts that every question has
    "algorithm": "an object, as in {name: grpo, prompts: 128, responses: 16}",
    "lengths": "an object, as in {prompt: 200, mean: 2500, max: 8192}",
}


def _part(reader: FieldReader, name: str, *, required: bool = True) -> FieldReader:
    found = reader.child(name)
    if found is None:
        if required:
            reader.fault(name, "is required", allowed=_AN_EXAMPLE[name])
        return FieldReader({}, f"/{name}", [])  # its own faults are those of the missing part
    return found


def _launcher(reader: FieldReader) -> str:
    """Return the launcher; those that are known but not priced yet are refused as such."""
    value, usual = reader.value("launcher"), LAUNCHERS[0]
    if isinstance(value, str) and value.lower() in LATER:
        message = f"{value} is not priced yet"
        reader.fault("launcher", message, allowed=", ".join(LAUNCHERS), nearest=usual)
        return usual
    return reader.choice("launcher", LAUNCHERS, default=usual)


def _algorithm(reader: FieldReader, places: Places) -> dict[str, Any]:
    found: dict[str, Any] = {
        "algorithm": reader.choice("name", ALGORITHMS, default=ALGORITHMS[0]),
        "prompts": reader.integer("prompts", high=MAX_PROMPTS),
        "responses": reader.integer("responses", high=MAX_RESPONSES),
        "updates": reader.integer("updates", high=MAX_UPDATES, default=1),
        "reference": reader.flag("reference", default=True),
        "reference_precision": reader.choice(
            "reference_precision", ("bf16", "fp32"), default=places.reference_precision
        ),
    }
    answers = found["prompts"] * found["responses"]
    if answers > MAX_ANSWERS:
        reader.fault("prompts", f"{answers} answers a step are too many", allowed=f"{MAX_ANSWERS} in all")
    elif answers % found["updates"]:
        near = max(one for one in range(1, found["updates"]) if answers % one == 0)
        reader.fault(
            "updates", f"{found['updates']} updates don't divide the {answers} answers of a step",
            allowed="a divisor of prompts × responses", nearest=str(near),
        )  # fmt: skip
    reader.refuse_unknown()
    return found


def _stated_lengths(reader: FieldReader) -> dict[str, Any]:
    percentiles = _percentiles(reader.child("percentiles"))
    found: dict[str, Any] = {
        "prompt": reader.number("prompt", low=1.0, high=MAX_TOKENS, default=200.0),
        "mean": _optional_number(reader, "mean", low=2.0, high=MAX_TOKENS),
        "max": reader.integer("max", low=3, high=MAX_TOKENS, default=None if not percentiles else 3),
        "percentiles": percentiles,
    }
    if percentiles and (reader.has("mean") or reader.has("max")):
        stated = "mean" if reader.has("mean") else "max"
        reader.fault(stated, "follows from percentiles", allowed="percentiles alone, up to p100")
    reader.refuse_unknown()
    return found


def _optional_number(reader: FieldReader, name: str, *, low: float, high: float) -> float | None:
    """Return a number; None: it is not stated, but may be."""
    return None if reader.value(name) is None else reader.number(name, low=low, high=high)


def _percentiles(reader: FieldReader | None) -> dict[float, float]:
    if reader is None:
        return {}
    found = dict[float, float]()
    for name in reader.names():
        match = _PERCENTILE.fullmatch(name)
        if match is None or not 0.0 <= float(match[1]) <= 100.0:  # noqa: PLR2004 - per cent
            reader.value(name)
            reader.fault(name, "is not a percentile", allowed="p0 to p100, such as p50, p99.9")
            continue
        found[float(match[1])] = reader.number(name, low=1.0, high=MAX_TOKENS)
    ordered = sorted(found.items())
    if ordered and ordered[-1][0] != 100.0:  # noqa: PLR2004 - per cent
        reader.fault("p100", "is required: it is the longest prompt with its answer")
    for (low, fewer), (high, more) in pairwise(ordered):
        if more < fewer:
            reader.fault(f"p{high:g}", f"{more:g} is below p{low:g}, {fewer:g}", nearest=f"{fewer:g}")
    return found


def _lengths(stated: Mapping[str, Any]) -> tuple[AnswerLengths, bool]:
    """Return the distribution, and whether its mean is assumed."""
    if stated["percentiles"]:
        return lengths_of_percentiles(stated["prompt"], stated["percentiles"]), False
    prompt, longest, mean = stated["prompt"], stated["max"], stated["mean"]
    if prompt >= longest:
        raise InvalidProblemError.of(
            "/lengths/prompt",
            f"a prompt of {prompt:g} tokens leaves no room for an answer within {longest}",
            allowed=f"below {longest}",
            nearest=str(longest // 2),
        )
    assumed = mean is None
    if assumed:
        mean = prompt + (longest - prompt) * _ASSUMED_MEAN
    return AnswerLengths(prompt=prompt, mean=mean, longest=longest), assumed


def _rollout(reader: FieldReader, launcher: str) -> dict[str, Any]:
    share = _optional_number(reader, "memory_share", low=0.1, high=0.98)
    found = {
        "engine": _engine(reader, launcher),
        "precision": reader.choice("precision", ("bf16", "fp8"), default="bf16"),
        "tp": reader.optional_integer("tp", high=1024),
        "nodes": reader.optional_integer("nodes", high=10**6),
        "memory_share": share,
        "sleep": reader.flag("sleep", default=True),
    }
    reader.refuse_unknown()
    return found


def _engine(reader: FieldReader, launcher: str) -> str:
    """Return the engine; TensorRT-LLM is refused by the launcher's release."""
    value, able = reader.value("engine"), PLACES[launcher].engines
    if isinstance(value, str) and value.lower() in _NO_ENGINE:
        reader.fault(
            "engine", f"{RELEASES[launcher]} has no {value}, and no other launcher's release has it",
            allowed=f"{', '.join(able)} with launcher: {launcher}", nearest=able[0],
        )  # fmt: skip
        return able[0]
    return reader.choice("engine", ENGINES, default=able[0])


def _training(reader: FieldReader, launcher: str, engine: str) -> dict[str, Any]:
    group = reader.text("group", default="")
    trainer = reader.choice("trainer", TRAINERS, default=PLACES[launcher].able("trainers", engine)[0])
    found = {
        "launcher": launcher,
        "trainer": trainer,
        "nodes": reader.optional_integer("nodes", high=10**6),
        "group": group or None,
        "pin": {} if (pin := reader.value("pin")) is None else pin,
    }
    reader.refuse_unknown()
    return found


def _adapters(reader: FieldReader | None, usual: str | None) -> dict[str, Any]:
    """Return the adapters as fields of a workload; empty: every weight of the policy is trained.

    ``usual``: the only precision of frozen weights that the trainer has; None: the request's.
    """
    if reader is None:
        return {}
    found: dict[str, Any] = {
        "lora_rank": reader.integer("rank", high=MAX_RANK),
        "base_precision": reader.choice("base_precision", BASES, default=usual or BASES[0]),
    }
    if usual is not None and found["base_precision"] != usual:
        reader.fault(
            "base_precision", f"{found['base_precision']}: this trainer holds all weights in {usual}",
            allowed=usual, nearest=usual,
        )  # fmt: skip
    if reader.has("targets"):
        found["lora_targets"] = reader.value("targets")
    reader.refuse_unknown()
    return found


def _reward(reader: FieldReader) -> dict[str, Any]:
    found = {
        "model": reader.value("model"),
        "nodes": reader.optional_integer("nodes", high=10**6),
        "tp": reader.optional_integer("tp", high=1024),
        "seconds": reader.number("seconds", low=0.0, high=MAX_TIME_LIMIT_S * 24, default=0.0),
    }
    for name in ("nodes", "tp"):
        if found[name] is not None and found["model"] is None:
            reader.fault(
                name, "is of a reward model, but code scores the answers", allowed="with reward.model"
            )
    reader.refuse_unknown()
    return found


def _reward_model(stated: object, cluster: ClusterSpec, parse: Parse) -> ModelSpec | None:
    """Return the reward model, with a head of one label; None: code scores the answers.

    Raises:
        InvalidProblemError: as for a problem's model, with pointers below ``/reward``.
    """
    if stated is None:
        return None
    raw = {
        "model": stated, "cluster": cluster_to_mapping(cluster),
        "workload": {"global_batch_size": 1, "seq_length": 1, **_OF_TEXT}, "launcher": "none",
    }  # fmt: skip
    with faults_as(_of_reward_model):
        found = parse(raw).model
        return found if found.num_labels or found.diffusion else found.scored(1)


def _of_reward_model(fault: FieldError) -> FieldError:
    below = fault.pointer if fault.pointer.startswith("/model") else "/model"
    return replace(fault, pointer=f"/reward{below}")


def _asynchrony(reader: FieldReader) -> dict[str, Any]:
    most = reader.integer("max_steps_off", low=0, high=MAX_STEPS_OFF, default=1)
    stated = reader.value("mode") is not None
    mode = reader.choice("mode", MODES, default="async") if stated else None
    steps = reader.optional_integer("steps_off", low=0, high=MAX_STEPS_OFF)
    if mode == "async" and most == 0:
        reader.fault(
            "mode", "async needs steps off policy, but max_steps_off is 0",
            allowed="max_steps_off of 1 or more, or mode: apart", nearest="apart",
        )  # fmt: skip
    if steps is not None and steps > most:
        reader.fault(
            "steps_off", f"{steps} is above max_steps_off, {most}", allowed=f"0 to {most}",
            nearest=str(most),
        )  # fmt: skip
    reader.refuse_unknown()
    return {"max_steps_off": most, "mode": mode, "steps_off": steps}


def _search(reader: FieldReader) -> dict[str, Any]:
    found = {
        "top_k": reader.integer("top_k", high=20, default=3),
        "time_limit_s": reader.number(
            "time_limit_s", low=1.0, high=MAX_TIME_LIMIT_S, default=DEFAULT_TIME_LIMIT_S
        ),
        "constraints": _constraints(reader),
    }
    reader.refuse_unknown()
    return found


def _constraints(reader: FieldReader) -> tuple[str, ...]:
    """Return constraints on roles and on training's layout, each readable."""
    raw = reader.value("constraints")
    if raw is None:
        return ()
    if not isinstance(raw, list) or not all(isinstance(text, str) for text in raw):
        reader.fault("constraints", "must be a list of texts", allowed='["rollout.num_nodes <= 2"]')
        return ()
    if len(raw) > MAX_CONSTRAINTS:
        reader.fault("constraints", f"{len(raw)} constraints", allowed=f"up to {MAX_CONSTRAINTS}")
        return ()
    found = tuple(dict.fromkeys(text.strip() for text in raw))
    for at, text in enumerate(found):
        try:
            layout_text(text)
        except ExpressionError as fault:
            where = f"{reader.pointer}/constraints/{at}"
            reader.faults.append(
                FieldError(pointer=where, message=str(fault), allowed=fault.allowed, nearest=fault.nearest)
            )
    return found


def _measured(reader: FieldReader) -> dict[str, Any]:
    """Return a measured step: seconds of its parts, and what of the question was otherwise."""
    parts = _part(reader, "parts")
    seconds = {
        name: parts.number(name, low=1e-3, high=MAX_TIME_LIMIT_S * 24) for name in PARTS if parts.has(name)
    }
    if parts.is_object and not seconds:
        parts.fault("", "has no part of a step", allowed=", ".join(PARTS), nearest="update")
    parts.refuse_unknown()
    changed = {name: reader.value(name) for name in ROLE_PARTS if reader.has(name)}
    reader.refuse_unknown()
    return {"parts": seconds, "changed": changed}


def _steps_asked(
    plain: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], parse: Parse
) -> Iterator[MeasuredStep]:
    """Yield measured steps with the questions whose roles they had.

    Raises:
        InvalidProblemError: a step's roles are not stated, or not possible.
    """
    own = {name: value for name, value in plain.items() if name not in ("measured", "search")}
    for at, step in enumerate(steps):
        with faults_as(partial(_of_step, at)):
            asked = read_post_training({**own, **step["changed"]}, parse=parse).asked
            require_roles(asked.pins)
        yield MeasuredStep(asked=asked, parts_s=step["parts"])


def _of_step(at: int, fault: FieldError) -> FieldError:
    return replace(fault, pointer=f"/measured/{at}{fault.pointer}")


_PINNED = {"rollout": ("tp", "memory_share", "nodes"), "training": ("nodes", "group", "pin"),
           "reward": ("nodes", "tp"), "asynchrony": ("mode", "steps_off")}  # fmt: skip


def without_roles(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without what it fixes of the roles."""
    return {
        part: {name: one for name, one in value.items() if name not in _PINNED[part]}
        if part in _PINNED
        else value
        for part, value in request.items()
    }


def require_roles(pins: Pins) -> None:
    """Refuse roles that are not stated.

    Raises:
        InvalidProblemError: with the fields that miss.
    """
    stated = {
        "/asynchrony/mode": pins.mode, "/training/nodes": pins.training_nodes,
        "/rollout/tp": pins.tensor_parallel_size,
    }  # fmt: skip
    faults = [
        FieldError(pointer=name, message="is required to price given roles", tip="meshwright plan FILE")
        for name, value in stated.items()
        if value is None
    ]
    if faults:
        raise InvalidProblemError(faults)


def _pins(
    rollout: Mapping[str, Any],
    training: Mapping[str, Any],
    reward: Mapping[str, Any],
    ahead: Mapping[str, Any],
) -> Pins:
    mode: Mode | None = ahead["mode"]
    return Pins(
        mode=mode, steps_off=ahead["steps_off"], training_nodes=training["nodes"],
        training_group=training["group"], tensor_parallel_size=rollout["tp"],
        memory_share=rollout["memory_share"], rollout_nodes=rollout["nodes"],
        reward_nodes=reward["nodes"], reward_tensor_parallel_size=reward["tp"],
    )  # fmt: skip


def _training_problem(
    plain: Mapping[str, Any],
    lengths: AnswerLengths,
    training: Mapping[str, Any],
    search: Mapping[str, Any],
    parse: Parse,
) -> Problem:
    launcher, trainer, adapters = training["launcher"], training["trainer"], training["adapters"]
    if adapters:
        adapters = {"lora_targets": [*PLACES[launcher].adapted], **adapters}
    pins = {**({"pp": 1} if trainer == "fsdp" else {}), **_mapping(training["pin"])}
    raw: dict[str, object] = {
        "model": plain["model"],
        "cluster": plain["cluster"],
        "workload": {
            "global_batch_size": _one_batch(pins), "seq_length": lengths.longest, **_OF_TEXT, **adapters
        },
        "launcher": _priced_as(launcher, trainer, adapts=bool(adapters)),
        "search": {
            "top_k": 1, "allow": ["none"], "certify": "none", "time_limit_s": search["time_limit_s"],
            **({"pin": pins} if pins else {}),
        },
    }  # fmt: skip
    with faults_as(_moved):
        problem = parse(raw)
    if trainer == "fsdp":
        return problem
    return replace(problem, workload=replace(problem.workload, lengths=lengths.documents))


def _one_batch(pins: Mapping[str, Any]) -> int:
    """Return a batch that pinned sizes divide; each number of GPUs sets its own later."""
    named = (("mbs", "micro_batch_size"), ("dp", "data_parallel_size"))
    stated = [pins.get(short, pins.get(name)) for short, name in named]
    return math.prod(one for one in stated if isinstance(one, int) and one > 0)


def _priced_as(launcher: str, trainer: str, *, adapts: bool) -> str:
    """Return the launcher whose trainings have a trainer's price."""
    usual = _PRICED_ALONE.get(launcher, _PRICED_AS[trainer])
    return _PRICED_ADAPTED.get(trainer, usual) if adapts and launcher not in _PRICED_ALONE else usual


def _limited(problem: Problem, launcher: str, trainer: str, constraints: tuple[str, ...]) -> Problem:
    """Return the training problem with what its trainer can express of a layout, and its constraints."""
    stated = _LIMITS.get((launcher, trainer), ())  # none: refused as a trainer below
    if problem.workload.lora_rank:
        stated = tuple(_ADAPTED.get((launcher, trainer), one) if one == _SHARDED else one for one in stated)
    limits = [one.format(layers=problem.model.num_layers) for one in stated]
    limits += [text for text in map(layout_text, constraints) if text is not None]
    return replace(problem, options=replace(problem.options, constraints=tuple(limits)))


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidProblemError.of("/training/pin", "must be sizes by name", allowed="{tp: 2, pp: 1}")
    return dict(value)


def _moved(fault: FieldError) -> FieldError:
    if fault.pointer == "/workload/precision":
        return FieldError(pointer="/cluster", message=fault.message, allowed="GPUs that multiply in bf16")
    for old, new in _MOVED.items():
        if fault.pointer.startswith(old):
            return replace(fault, pointer=new + fault.pointer.removeprefix(old))
    return fault


def _check(asked: PostTraining) -> None:
    """Refuse what no engine or trainer of the pool can do, with the nearest that works.

    Raises:
        InvalidProblemError: with one FieldError per fault.
    """
    faults: list[FieldError] = []

    def fault(pointer: str, message: str, allowed: str | None = None, nearest: str | None = None) -> None:
        faults.append(FieldError(pointer=pointer, message=message, allowed=allowed, nearest=nearest))

    model, most = asked.model, asked.model.max_position_embeddings
    if most is not None and asked.lengths.longest > most:
        where = "max" if asked.lengths.is_assumed else "percentiles/p100"
        text = f"{asked.lengths.longest} tokens are beyond the {most} positions of {model.title}"
        fault(f"/lengths/{where}", text, f"up to {most}", str(most))
    faults += [*_launcher_faults(asked), *_reward_faults(asked), *_mode_faults(asked)]
    obstacle = obstacle_of(model, asked.engine)
    if obstacle is not None:
        fault(f"/model/{obstacle[0]}", obstacle[1])
    if asked.training.cluster.differs:
        fault(
            "/cluster/groups/0/links", "links between nodes differ, which roles are not placed on yet",
            "one network for all nodes",
        )  # fmt: skip
    if not any(has_precision(group, asked.precision) for group in asked.groups.values()):
        fault("/rollout/precision", f"no GPU of the pool multiplies in {asked.precision}", "bf16", "bf16")
    faults += [*_pin_faults(asked), *_group_faults(asked)]
    if faults:
        raise InvalidProblemError(faults)


_WORDS = {
    "engines": "engine", "trainers": "trainer", "precisions": "engine with weights in", "modes": "mode"
}  # fmt: skip


def _launchers_with(what: str, value: str) -> str:
    """Return the launchers that have an engine, a trainer, a precision or a mode; empty: none has."""
    found = ", ".join(name for name, places in PLACES.items() if value in getattr(places, what))
    return f"launcher: {found}" if found else ""


def _launcher_faults(asked: PostTraining) -> Iterator[FieldError]:
    """Yield an engine, a trainer, an algorithm or steps off policy that its launcher lacks."""
    places, by = asked.places, f"files of {asked.launcher} with"
    for pointer, value, what in (
        ("/rollout/engine", asked.engine, "engines"),
        ("/training/trainer", asked.trainer, "trainers"),
        ("/rollout/precision", asked.precision, "precisions"),
        ("/asynchrony/mode", asked.pins.mode, "modes"),
    ):
        able = places.able(what, asked.engine)
        if value is None or value in able:
            continue
        given = f" with {asked.engine}" if value in getattr(places, what) else ""
        others = f"rollout.engine: {places.engines[0]}" if given else _launchers_with(what, value)
        yield FieldError(
            pointer=pointer, message=f"{asked.launcher}{given} has no {_WORDS[what]} {value}",
            allowed=", or ".join(filter(None, (", ".join(able), others))), nearest=able[0],
        )  # fmt: skip
    yield from _adapter_faults(asked)
    if asked.has_critic and not places.critic:
        able = tuple(name for name, one in PLACES.items() if one.critic)
        yield FieldError(
            pointer="/algorithm/name", message=f"{by} a critic are not written yet",
            allowed=f"grpo, or launcher: {', '.join(able)}", nearest="grpo",
        )  # fmt: skip
    steps, ahead = asked.pins.steps_off or 0, places.most_steps_off
    if ahead is not None and steps > ahead:
        yield FieldError(
            pointer="/asynchrony/steps_off",
            message=f"{steps}: {asked.launcher} generates "
            + (f"{ahead} step ahead" if ahead else "in turn with training"),
            allowed=f"up to {ahead}" if ahead else "0", nearest=str(ahead),
        )  # fmt: skip


def _adapter_faults(asked: PostTraining) -> Iterator[FieldError]:
    """Yield adapters that the launcher's trainer lacks, and engines that cannot stay awake."""
    places = asked.places
    if asked.adapts and asked.trainer not in places.adapts:
        able = [name for name, one in PLACES.items() if one.adapts]
        own = f"training: {{trainer: {places.adapts[0]}}}" if places.adapts else ""
        yield FieldError(
            pointer="/adapters/rank",
            message=f"files of {asked.launcher} ({asked.trainer}) with adapters are not written yet",
            allowed=", or ".join(filter(None, (own, f"launcher: {', '.join(able)}"))),
            nearest=own or f"launcher: {able[0]}",
        )  # fmt: skip
    if not asked.sleeps and (not places.stays_awake or asked.pins.mode != "colocated"):
        others = ", ".join(name for name, one in PLACES.items() if one.stays_awake)
        where = "asynchrony: {mode: colocated}" if places.stays_awake else f"launcher: {others}"
        yield FieldError(
            pointer="/rollout/sleep", message="false: engines keep their memory while training runs on "
            "their GPUs", allowed=f"true, or {where}", nearest="true",
        )  # fmt: skip


def _reward_faults(asked: PostTraining) -> Iterator[FieldError]:
    """Yield what a reward model cannot be, or where its launcher cannot put it."""
    model, longest, places = asked.reward_model, asked.lengths.longest, asked.places
    if model is None:
        return
    if not places.reward:
        yield FieldError(
            pointer="/reward/model",
            message=f"files of {asked.launcher} with a reward model are not written yet",
            allowed="rewards by code, or launcher: verl",
            nearest="launcher: verl",
        )  # fmt: skip
    obstacle = obstacle_of(model, asked.engine)
    if obstacle is not None:
        yield FieldError(pointer=f"/reward/model/{obstacle[0]}", message=obstacle[1])
    most = model.max_position_embeddings
    if most is not None and longest > most:
        yield FieldError(
            pointer="/reward/model",
            message=f"{model.title} has {most} positions, fewer than the {longest} tokens of lengths.max",
            allowed=f"a reward model of {longest} positions, or lengths.max up to {most}",
            nearest=f"lengths: {{max: {most}}}",
        )  # fmt: skip


def _mode_faults(asked: PostTraining) -> Iterator[FieldError]:
    """Yield a pinned way that its launcher lacks with a reward model or a critic."""
    places, mode = asked.places, asked.pins.mode
    able = {
        "a reward model": places.reward_modes if asked.reward_model is not None else MODES,
        "a critic": places.critic_modes if asked.has_critic else MODES,
    }
    for role, modes in able.items():
        if mode is not None and mode not in modes:
            yield FieldError(
                pointer="/asynchrony/mode",
                message=f"{mode}: {asked.launcher} runs {role} in other modes alone",
                allowed=", ".join(modes),
                nearest=modes[0],
            )  # fmt: skip


def _pin_faults(asked: PostTraining) -> list[FieldError]:
    pins, groups, faults = asked.pins, asked.groups, list[FieldError]()
    if pins.training_group is not None and pins.training_group not in groups:
        names = ", ".join(groups)
        message = f'"{pins.training_group}" is no node group of the cluster'
        faults.append(FieldError(pointer="/training/group", message=message, allowed=names))
    nodes = {
        "training": pins.training_nodes, "rollout": pins.rollout_nodes, "reward": pins.reward_nodes
    }  # fmt: skip
    for role, count in nodes.items():
        most = max(group.num_nodes for group in groups.values())
        most = sum(group.num_nodes for group in groups.values()) if role == "rollout" else most
        if count is not None and count > most:
            faults.append(
                FieldError(
                    pointer=f"/{role}/nodes", message=f"{count} nodes are more than there are",
                    allowed=f"1 to {most}", nearest=str(most),
                )
            )  # fmt: skip
    sizes = {
        "/rollout/tp": (pins.tensor_parallel_size, asked.model),
        "/reward/tp": (pins.reward_tensor_parallel_size, asked.reward_model),
    }
    return faults + [
        FieldError(
            pointer=pointer, message=f"{size} does not divide the {heads} attention heads",
            allowed=f"a divisor of {heads}",
            nearest=str(max(one for one in range(1, size) if heads % one == 0)),
        )
        for pointer, (size, model) in sizes.items()
        if size is not None and model is not None and (heads := model.num_attention_heads) % size
    ]  # fmt: skip


def _group_faults(asked: PostTraining) -> Iterator[FieldError]:
    """Yield node groups of constraints that the cluster lacks."""
    for at, text in enumerate(asked.constraints):
        for name, term in ((name, term_of(name)) for name in sorted(names_in(parse(text)))):
            if term is not None and term[1] not in asked.groups:
                near = get_close_matches(term[1], asked.groups, n=1, cutoff=0.0)
                yield FieldError(
                    pointer=f"/search/constraints/{at}",
                    message=f'{name}: "{term[1]}" is no node group of the cluster',
                    allowed=", ".join(asked.groups), nearest=written_term(term[0], near[0]),
                )  # fmt: skip


def _canonical(plain: Mapping[str, Any], asked: PostTraining) -> dict[str, Any]:
    return {
        **plain,
        "kind": POST_TRAINING,
        "model": model_to_mapping(asked.model),
        "cluster": cluster_to_mapping(asked.training.cluster),
        **(
            {}
            if asked.reward_model is None
            else {"reward": {**plain["reward"], "model": model_to_mapping(asked.reward_model)}}
        ),
    }
