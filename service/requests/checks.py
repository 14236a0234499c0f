"""The checks that need more than one field: launchers, pins, bounds, batch and GPUs.

Each check is one small function that yields the faults it finds; ``check_limits`` runs them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice

from meshwright.profiles.adapters import EMBEDDING, HEAD, LEAST_BLOCK, NORMS, target_fault
from meshwright.profiles.capabilities import launcher_capabilities, launcher_names, launchers_of
from meshwright.profiles.documents import MAX_ERRORS, pointer, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.frameworks import EXPERT_OPTIONS, framework_facts, with_options
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.optimizers import OPTIMIZERS, optimizer_named
from meshwright.profiles.profile import framework_of
from meshwright.profiles.reading import stated_number
from meshwright.profiles.sequences import beyond
from meshwright.profiles.switches import switches
from meshwright.profiles.tower_modules import TOWER_TARGETS
from meshwright.profiles.towers import FROZEN_PARTS, TOWER_PARTS, TowerSpec
from meshwright.profiles.trained_layers import NONE, layers_named, nearest_layers
from meshwright.service.requests.fields import MAX_IMAGES
from meshwright.service.requests.parts import run_limits, unplaced
from meshwright.service.requests.sizes import batch_size, gpu_count, model_sizes
from meshwright.solver.answer import Plan, accepts_risk
from meshwright.solver.configuration import INTEGER_VARIABLES, LOGICAL_VARIABLES, MAX_SIZE, VARIABLES, WORDS
from meshwright.solver.cost.context import linear_precision
from meshwright.solver.cost.objective import is_plain
from meshwright.solver.problem import PRECISIONS, Problem, SearchOptions, Workload
from meshwright.solver.space.expressions import ExpressionError, term_of, written_term
from meshwright.solver.space.launcher_choice import LauncherChoice, launcher_faults, preferred
from meshwright.solver.space.launcher_rules import (
    packing_faults,
    pin_faults,
    stated_faults,
    workload_faults,
)
from meshwright.solver.space.request_rules import constraint_of, names_of

# --------------------------------------------------------------------------------------------------
# Whether the side constraints of a request can be read; faults point at the character.


def constraints(problem: Problem) -> Iterator[FieldError]:
    """Check that every side constraint is an expression over the glossary's variables."""
    for index, text in enumerate(problem.options.constraints):
        at = pointer("search", "constraints", index)
        try:
            constraint_of(text)
        except ExpressionError as fault:
            yield FieldError(pointer=at, message=str(fault), allowed=fault.allowed, nearest=fault.nearest)
        else:
            yield from _group_terms(problem, text, at)


def _group_terms(problem: Problem, text: str, at: str) -> Iterator[FieldError]:
    """Check that the terms of a constraint name node groups that stages can be placed on."""
    groups = problem.cluster.group_names
    for name, term in ((name, term_of(name)) for name in sorted(names_of((text,)))):
        if term is None:
            continue
        if fault := unplaced(problem, at, f"{name}: "):
            yield fault
        elif term[1] not in groups:
            near = get_close_matches(term[1], groups, n=1, cutoff=0.0)
            yield FieldError(
                pointer=at,
                message=f"{name}: {shown(term[1])} is not a node group of this cluster",
                allowed=", ".join(groups),
                nearest=written_term(term[0], near[0] if near else groups[0]),
            )


LAUNCHERS = ("any", *launcher_names())
MAX_LIMITS = 32  # pins, prohibitions, bounds and constraints: each is one bit of a row's mask


_SQUARE = 1024  # pixels of a side of the image that an error counts
_ROLES = "It trains by reinforcement learning: state the roles in a file with kind: post_training"
_FSDP_LAUNCHERS = ("torchtitan", "accelerate", "trl", "axolotl")
_LIBRARY = "It is the library of these launchers"
# What other words are, the launchers that people may mean by them, and the words.
_OTHERS: Mapping[tuple[str, tuple[str, ...]], str] = {
    ("FSDP runs under these launchers", _FSDP_LAUNCHERS): "fsdp fsdp1 fsdp2 ddp lightning "
    "pytorch-lightning fabric litgpt torchtune composer llm-foundry automodel nemo-automodel",
    ("Name the launcher that it starts", ("megatron-lm", *_FSDP_LAUNCHERS)): "ray torchrun slurm srun "
    "mpirun skypilot kubernetes k8s kubeflow sagemaker vertex azureml databricks modal runpod",
    (_LIBRARY, ("accelerate", "deepspeed", "trl", "axolotl")): "transformers huggingface hf trainer "
    "hf-trainer transformers-trainer sft-trainer sfttrainer peft",
    (_LIBRARY, ("torchtitan", "accelerate")): "pytorch torch",
    (_LIBRARY, ("megatron-lm", "megatron-bridge")): "mcore megatron-core",
    ("Megatron-Bridge runs its recipes", ("megatron-bridge",)): "nemo nemo2",
    ("It trains with these", ("megatron-lm", "torchtitan")): "primus",
    ("It is a stage of DeepSpeed", ("deepspeed",)): "zero zero1 zero2 zero3",
    ("These train adapters, too", ("trl", "axolotl", "ms-swift")): "unsloth",
    ("These split layers, too", ("megatron-lm", "nanotron")): "gpt-neox megatron-deepspeed colossalai",
    ("JAX runs under", ("maxtext",)): "jax flax levanter",
    (_ROLES, ()): "verl openrlhf nemo-rl slime areal",
}
_OTHER_WORDS = {word: other for other, words in _OTHERS.items() for word in words.split()}


def check_launcher(name: str, *, at: str = "/launcher") -> None:
    """Refuse an unknown launcher; ``at``: what names it.

    Raises:
        UnknownNameError: it is none of ``LAUNCHERS``.
    """
    if name in LAUNCHERS:
        return
    if (other := _OTHER_WORDS.get(re.sub("[ _]", "-", name.lower()))) is None:
        raise UnknownNameError.among(at, name, LAUNCHERS)
    why, meant = other
    fault = FieldError(
        pointer=at,
        message=f'"{name}" is no launcher here. {why}',
        allowed=", ".join(meant) or None,
        nearest=meant[0] if meant else None,
    )
    raise UnknownNameError([fault])


def check_risk(plan: Plan, problem: Problem, *, accepted: bool, at: str, how: str) -> None:
    """Refuse files of a plan with a risk that its request does not accept.

    Args:
        plan: the plan.
        problem: the request that it answers.
        accepted: whether the caller accepts it.
        at: what states that.
        how: the same as one types it.

    Raises:
        InvalidProblemError: the risk is not accepted.
    """
    if accepted or accepts_risk(problem, plan.prediction):
        return
    risk = 100.0 * plan.prediction.out_of_memory_probability
    allowed = 100.0 * problem.options.max_out_of_memory_probability
    raise InvalidProblemError.of(
        at,
        f"plan {plan.plan_id[:_SHORT_ID]} runs out of memory with a risk of {risk:.1f} %, and the request "
        f"accepts {allowed:g} %. To write its files all the same: {how}",
    )


_SHORT_ID = 12


def _unlike_links(problem: Problem) -> Iterator[FieldError]:
    """Check that plans on links that differ are ranked by their step."""
    if problem.cluster.differs and not is_plain(problem):
        yield FieldError(
            pointer=pointer("search", "objective"),
            message="where links between nodes differ, plans are ranked by their step, of one batch",
            allowed="step_time",
            nearest="step_time",
        )
    if problem.cluster.differs and problem.options.pareto:
        yield FieldError(
            pointer=pointer("search", "pareto"),
            message="where links between nodes differ, there is no front of time and memory",
            allowed="false",
        )


def check_limits(problem: Problem) -> None:
    """Refuse pins, bounds and forbidden values that are meaningless or contradict each other.

    Raises:
        InvalidProblemError: with every fault of the first kind of check that finds any.
    """
    for check in (
        _number_of_limits,
        _names,
        constraints,
        _values,
        _bounds,
        _contradictions,
        _abilities,
        _trainable,
        _precision,
        _framework_options,
        _lengths,
        _images,
        _idle_adapters,
        _samples,
        _diffusion,
        _switches,
        _ranks,
        _unlike_links,
        run_limits,
        model_sizes,
        gpu_count,
        batch_size,
    ):
        faults = list(islice(check(problem), MAX_ERRORS))
        if faults:
            raise InvalidProblemError(faults)


def with_other_launchers(
    fault: InvalidProblemError, launcher: str, under: Callable[[str], Problem]
) -> InvalidProblemError:
    """Return a fault with the launchers that have none, where the request names one that has.

    Args:
        fault: what is wrong under the launcher that is named.
        launcher: this one.
        under: what the same request asks of another.
    """
    able = [name for name in passing(under) if name not in (launcher, "none")]
    if launcher in ("any", "none") or not able:
        return fault
    first, *rest = fault.errors
    words = f"the launcher{'s' * (len(able) > 1)} {', '.join(able)}"
    said = first.allowed or "the launchers "
    allowed = words if said.startswith("the launchers ") else f"{said}, or {words}"
    allowed = said if said.startswith("launcher ") else allowed  # which names them with ``none``
    return type(fault)([replace(first, allowed=allowed, tip=f"--launcher {able[0]}"), *rest])


def passing(under: Callable[[str], Problem]) -> Iterator[str]:
    """Yield the launchers under which a request has no fault, in their order for it; ``none`` last."""
    return (name for name in preferred(under("any"))[1] if _passes(under(name)))


def with_every_reason(fault: InvalidProblemError, choice: LauncherChoice) -> InvalidProblemError:
    """Return a fault of a request that names no launcher with what each one lacks, where none can."""
    if choice.able:
        return fault
    (name, own), words = choice.refused[0], f"no launcher can: {choice.reasons}"
    of_launcher = own if own.startswith(f"{name} ") else None  # else what is wrong is no launcher's limit
    return type(fault)(
        [replace(one, message=words) if one.message == of_launcher else one for one in fault.errors]
    )


def _passes(problem: Problem) -> bool:
    try:
        check_limits(problem)
    except InvalidProblemError:
        return False
    return next(launcher_faults(problem, problem.launcher), None) is None


def _lengths(problem: Problem) -> Iterator[FieldError]:
    """Check that no document is longer than a sequence, or than the positions that the model has."""
    workload, positions = problem.workload, problem.model.max_position_embeddings
    if workload.lengths is None:
        return
    at = ("workload", "lengths")
    yield from beyond(workload.lengths, workload.seq_length, f"seq_length {workload.seq_length}", at)
    if positions is not None and positions < workload.seq_length:
        yield from beyond(
            workload.lengths, positions, f"the {positions} positions of {problem.model.title}", at
        )


def _diffusion(problem: Problem) -> Iterator[FieldError]:
    """Refuse adapters and documents of a diffusion transformer, which are not priced."""
    model, work = problem.model, problem.workload
    if model.diffusion is None:
        return
    if work.lora_rank:
        yield FieldError(
            pointer=pointer("workload", "lora_rank"),
            message=f"adapters of {model.title} are not supported: its layers have other names",
            allowed="0, which trains all weights",
            nearest="0",
        )
    if work.lengths is not None:
        yield FieldError(
            pointer=pointer("workload", "lengths"),
            message=f"{model.title} trains on samples of one size, not on documents",
            allowed="none",
        )


def _samples(problem: Problem) -> Iterator[FieldError]:
    """Check that a reference can be had, and that samples of several answers have what they need."""
    work = problem.workload
    if work.reference == "adapters-off" and not work.lora_rank:
        yield FieldError(
            pointer="/workload/reference",
            message="adapters-off without adapters: there is nothing to turn off",
            allowed="none, frozen, or a lora_rank > 0",
            nearest="frozen",
            tip="--lora-rank 16",
        )
    if work.sample == "unpaired" and work.reference == "none":
        yield FieldError(
            pointer="/workload/sample",
            message="unpaired answers (KTO) are compared to a reference model, and reference is none",
            allowed="reference frozen or adapters-off",
            tip=f"--reference {'adapters-off' if work.lora_rank else 'frozen'}",
        )
    yield from packing_faults(work)


def _images(problem: Problem) -> Iterator[FieldError]:
    """Check that a model with a tower states its images and trains something; others have neither."""
    work, model = problem.workload, problem.model
    images, frozen = "/workload/images_per_sample", "/workload/frozen"
    tokens_at = "/workload/image_tokens"
    if model.tower is None:
        stated = (
            (images, work.images_per_sample, "0", "--images-per-sample"),
            (tokens_at, work.image_tokens, "none", "--image-tokens"),
            (frozen, work.frozen, "[]", "--freeze"),
        )
        for at, there, allowed, option in stated:
            if there:
                yield FieldError(
                    pointer=at,
                    message=f"{model.title} has no vision tower",
                    allowed=f"{allowed}, or a model with a vision tower",
                    nearest=None if at == tokens_at else allowed,
                    tip=f"without {option}",
                )
        return
    if not work.images_per_sample:
        if work.image_tokens is not None:
            yield FieldError(
                pointer=tokens_at,
                message="is about images, and no sequence has one (images_per_sample is 0)",
                allowed="none, or images_per_sample above 0",
            )
    elif work.image_tokens is None:
        yield _missing_tokens(model.tower)
    else:
        tokens = work.images(model.tower).tokens
        if tokens > work.seq_length:
            most = f"{work.seq_length / tokens * work.images_per_sample:.4g}"
            yield FieldError(
                pointer=images,
                message=f"{work.images_per_sample:g} images take {tokens:.0f} of {work.seq_length} tokens",
                allowed=f"0 to {most}",
                nearest=most,
            )
    if set(work.frozen) == {*FROZEN_PARTS}:
        message, nearest = "nothing is trained: every part is frozen", '["vision", "projector"]'
        yield FieldError(
            pointer=frozen,
            message=message,
            allowed=f"at most {len(FROZEN_PARTS) - 1} of {', '.join(FROZEN_PARTS)}",
            nearest=nearest,
        )
    if work.frozen and work.lora_rank:
        yield FieldError(
            pointer=frozen,
            message="with adapters all three parts are already frozen",
            allowed="[]",
            nearest="[]",
        )


def _idle_adapters(problem: Problem) -> Iterator[FieldError]:
    """Refuse adapters in a tower that reads nothing: replicas stop at weights without gradients."""
    work = problem.workload
    idle = [name for name in TOWER_TARGETS if name in work.lora_targets]
    if idle and work.lora_rank and not work.images_per_sample:
        yield FieldError(
            pointer="/workload/lora_targets",
            message=f"{', '.join(idle)}: no sequence has an image, so the tower trains nothing",
            allowed="layers of the language model, or images_per_sample above 0",
            tip="--images-per-sample 1",
        )


def missing_images(model: ModelSpec, *, tokens_stated: bool) -> list[FieldError]:
    """Return what a request without images must state of a model with a vision tower."""
    tower = model.tower
    if tower is None:
        return []
    number = FieldError(
        pointer="/workload/images_per_sample",
        message=f"is required: {model.title} has a vision tower",
        allowed=f"0 (text alone: the tower's weights and none of its work) to {MAX_IMAGES}",
        nearest="0",
    )
    if tokens_stated or tower.tile_tokens:
        return [number]
    return [number, replace(_missing_tokens(tower), tip="")]  # text alone has no images


def _missing_tokens(tower: TowerSpec) -> FieldError:
    tokens = _SQUARE**2 // tower.pixels_per_token
    return FieldError(
        pointer="/workload/image_tokens",
        message="is required with images: the tower takes images of any size",
        allowed=f"1 or more: pixels / {tower.pixels_per_token}, {tokens} for {_SQUARE} x {_SQUARE}",
        tip=f"--image-tokens {tokens}",
    )


def _given(options: SearchOptions) -> Iterator[tuple[str, str, int | str, str]]:
    """Yield every single value that pins and prohibitions name: section, variable, value, pointer."""
    for name, value in options.pin.items():
        yield "pin", name, value, pointer("search", "pin", name)
    for name, values in options.forbid.items():
        for index, value in enumerate(values):
            yield "forbid", name, value, pointer("search", "forbid", name, index)


def _number_of_limits(problem: Problem) -> Iterator[FieldError]:
    options = problem.options
    count = sum(map(len, (options.pin, options.forbid, options.bounds, options.constraints)))
    count += options.max_power_kw is not None
    if count > MAX_LIMITS:
        yield FieldError(
            pointer=pointer("search"),
            message=f"{count} pins, prohibitions, bounds and constraints",
            allowed=f"up to {MAX_LIMITS} together",
        )


def _names(problem: Problem) -> Iterator[FieldError]:
    options = problem.options
    for section in ("pin", "forbid", "bounds"):
        for name in getattr(options, section):
            if name not in VARIABLES:
                yield from UnknownNameError.among(pointer("search", section), name, VARIABLES).errors


def _values(problem: Problem) -> Iterator[FieldError]:
    for _, name, value, at in _given(problem.options):
        if name in WORDS:
            yield from _word(name, value, at)
        elif name in LOGICAL_VARIABLES:
            if not isinstance(value, bool):
                yield FieldError(pointer=at, message="must be true or false", allowed="true, false")
        else:
            yield from _integer(name, value, at)


def _integer(name: str, value: int | str, at: str) -> Iterator[FieldError]:
    low, high = VARIABLES[name].least, VARIABLES[name].most
    allowed = f"from {low} to {high}"
    if isinstance(value, str | bool):
        yield FieldError(
            pointer=at,
            message=f'"{shown(str(value))}" is not an integer',
            allowed=allowed,
            nearest=stated_number(value, low, high),
        )
    elif not low <= value <= high:
        yield FieldError(
            pointer=at,
            message=f"{value} is out of range",
            allowed=allowed,
            nearest=str(min(max(value, low), high)),
        )


def _word(name: str, value: int | str, at: str) -> Iterator[FieldError]:
    if isinstance(value, int):
        yield FieldError(pointer=at, message="must be a word", allowed=", ".join(WORDS[name]))
    elif value not in WORDS[name]:
        yield from UnknownNameError.among(at, value, WORDS[name]).errors


def _bounds(problem: Problem) -> Iterator[FieldError]:
    for name, (low, high) in problem.options.bounds.items():
        at = pointer("search", "bounds", name)
        if name not in INTEGER_VARIABLES:
            yield FieldError(pointer=at, message="only integer variables have bounds; use pin or forbid")
        elif low > high:
            yield FieldError(pointer=at, message=f"[{low}, {high}] is empty", nearest=f"[{high}, {low}]")
        elif high < VARIABLES[name].least:
            yield FieldError(
                pointer=at,
                message=f"[{low}, {high}] holds no legal value",
                allowed=f"from {VARIABLES[name].least}",
            )


def _contradictions(problem: Problem) -> Iterator[FieldError]:
    options = problem.options
    for name, value in options.pin.items():
        at = pointer("search", "pin", name)
        if value in options.forbid.get(name, ()):
            yield FieldError(pointer=at, message=f"{value} is pinned and forbidden")
        low, high = options.bounds.get(name, (0, MAX_SIZE))
        if isinstance(value, int) and not low <= value <= high:
            yield FieldError(
                pointer=at,
                message=f"{value} is pinned outside its bounds",
                allowed=f"from {low} to {high}",
                nearest=str(min(max(value, low), high)),
            )


def _ranks(problem: Problem) -> Iterator[FieldError]:
    """Check that low ranks are lower than the hidden size, and belong to an optimizer that has one."""
    workload, hidden = problem.workload, problem.model.hidden_size
    for name in ("optimizer_rank", "lora_rank"):
        if getattr(workload, name) > hidden:
            yield FieldError(
                pointer=pointer("workload", name),
                message=f"{getattr(workload, name)} is more than hidden_size = {hidden}",
                allowed=f"0 to {hidden}",
                nearest=str(hidden),
            )
    copied = workload.reference == "frozen" and workload.base_precision == "fp32"
    if workload.base_precision != "bf16" and not workload.lora_rank and not copied:
        yield FieldError(
            pointer=pointer("workload", "base_precision"),
            message=f"{workload.base_precision} without adapters: it is of frozen weights",
            allowed="bf16, or a lora_rank > 0",
            nearest="bf16",
            tip="--lora-rank 16",
        )
    yield from _adapter_options(workload, hidden)
    if workload.trained_modules and not (workload.lora_rank or workload.trained_layers):
        yield FieldError(
            pointer=pointer("workload", "trained_modules"),
            message="without adapters all weights are trained",
            allowed="[], or a lora_rank > 0, or trained_layers",
            nearest="[]",
            tip="--lora-rank 16",
        )
    if workload.trained_layers:
        yield from _trained_layers(problem)
    for name, what in (("optimizer_rank", "rank"), ("optimizer_interval", "decompositions")):
        if getattr(workload, name) and not optimizer_named(workload.optimizer).low_rank:
            able = ", ".join(name for name, one in OPTIMIZERS.items() if one.low_rank)
            yield FieldError(
                pointer=pointer("workload", name),
                message=f"{workload.optimizer} has no {what}",
                allowed=f"0, or with {able}",
                nearest="0",
            )


def _adapter_options(workload: Workload, hidden: int) -> Iterator[FieldError]:
    """Check that options of adapters have some, and OFT blocks that can turn."""
    for name in ("dora", "oft", "quantizes_experts"):
        if workload.framework_options.get(name) and not workload.lora_rank:
            yield FieldError(
                pointer=pointer("workload", "framework_options", name),
                message="without adapters there is nothing that it concerns",
                allowed="false, or a lora_rank > 0",
                nearest="false",
                tip="--lora-rank 16",
            )
    if workload.framework_options.get("oft") and 0 < workload.lora_rank < LEAST_BLOCK:
        yield FieldError(
            pointer=pointer("workload", "lora_rank"),
            message="a block of one input trains nothing under oft, whose blocks have lora_rank inputs",
            allowed=f"{LEAST_BLOCK} to {hidden}",
            nearest=str(LEAST_BLOCK),
        )


def _trained_layers(problem: Problem) -> Iterator[FieldError]:
    """Check that the trained layers exist, and that what else the workload says goes with them."""
    work, model, at = problem.workload, problem.model, pointer("workload", "trained_layers")
    last = model.num_layers - 1
    if work.trained_layers != NONE and not layers_named(work.trained_layers):
        meant = nearest_layers(work.trained_layers, model.num_layers)
        yield FieldError(
            pointer=at,
            message=f"{shown(work.trained_layers)} is no list of layers",
            allowed=f"numbers from 0 to {last} and ranges such as 0-3,{last}, or none",
            nearest=meant or None,
            tip="" if meant else "without --trained-layers",
        )
    if layers_named(work.trained_layers)[-1:] > (last,):
        yield FieldError(
            pointer=at,
            message=f"{model.title} has {model.num_layers} layers, counted from 0",
            allowed=f"0-{last}, or some of them",
            nearest=str(last),
        )
    others = {
        "lora_rank": (work.lora_rank > 0, "lora_rank 0"),
        "frozen": ("language" in work.frozen, "frozen without language"),
        "optimizer": (optimizer_named(work.optimizer).low_rank, "an optimizer of whole gradients (adamw)"),
    }
    for name, instead in ((name, instead) for name, (there, instead) in others.items() if there):
        yield FieldError(
            pointer=at,
            message=f"next to {name} is not supported",
            allowed=f"{instead}, or trained_layers null",
            tip="without --trained-layers",
        )
    if model.tower is not None and not {*TOWER_PARTS} <= {*work.frozen}:
        yield FieldError(
            pointer=pointer("workload", "frozen"),
            message="is required next to trained_layers: vision and projector are frozen with the others",
            allowed=", ".join(TOWER_PARTS),
            nearest=json.dumps(TOWER_PARTS),
        )
    if work.trained_layers == NONE and not work.trained_modules:
        yield FieldError(
            pointer=at,
            message="nothing is trained",
            allowed="some layers, or none with trained_modules",
            tip=f"--trained-module {HEAD}",
        )
    ends = [name for name in (EMBEDDING, HEAD) if name in work.trained_modules]
    nearest = (EMBEDDING, HEAD) if ends and model.tied_embeddings else ends
    if NORMS in work.trained_modules or (model.tied_embeddings and len(ends) == 1):
        yield FieldError(
            pointer=pointer("workload", "trained_modules"),
            message="next to trained_layers: embedding and head, and if tied, both or neither",
            allowed=f"{EMBEDDING}, {HEAD}",
            nearest=json.dumps(nearest) if nearest else None,
            tip="" if nearest else "without --trained-module",
        )


def _precision(problem: Problem) -> Iterator[FieldError]:
    wanted = problem.workload.precision
    gpus = {group.gpu.slug: group.gpu for group in problem.cluster.groups}
    taken = launcher_capabilities(problem.launcher).precisions
    for lacking in (gpu for gpu in gpus.values() if wanted not in gpu.peak_flops):
        able = [one for one in PRECISIONS if one in lacking.peak_flops]
        of_all = [one for one in able if all(one in gpu.peak_flops for gpu in gpus.values())]
        nearest = next((one for one in of_all if one in taken), "")
        fault = FieldError(
            pointer=pointer("workload", "precision"),
            message=f"{lacking.slug} has no {wanted}",
            allowed=", ".join(able),
            nearest=nearest or None,
        )
        yield fault if nearest else _under_others(fault, problem, of_all)


def _under_others(fault: FieldError, problem: Problem, of_all: Sequence[str]) -> FieldError:
    """Return a precision's fault with a launcher that takes one of those that all GPUs have."""
    every = [one for one in preferred(problem)[1] if one != "none"]
    for precision in of_all:
        if names := [one for one in every if precision in launcher_capabilities(one).precisions]:
            return replace(
                fault, allowed=f"{precision}, which {problem.launcher} lacks, under {', '.join(names)}",
                tip=f"--precision {precision} --launcher {names[0]}",
            )  # fmt: skip
    return replace(fault, allowed="GPUs of one kind: no launcher has a precision that all of these have")


def _framework_options(problem: Problem) -> Iterator[FieldError]:
    stated = problem.workload.framework_options
    for name in EXPERT_OPTIONS if problem.model.moe is None else ():
        own = framework_facts(framework_of(problem.stack or problem.launcher))
        if name in stated and stated[name] != getattr(own, name):
            yield FieldError(
                pointer=pointer("workload", "framework_options", name),
                message=f"{str(stated[name])[:40]} is about experts, and {problem.model.title} has none",
                allowed="absent",
            )
    for launcher in launchers_of(problem.launcher):
        try:
            facts = with_options(
                framework_facts(framework_of(problem.stack or launcher)), problem.workload.framework_options
            )
            for group in problem.cluster.groups:
                linear_precision(problem, facts, group.gpu)
        except InvalidProblemError as fault:
            yield from fault.errors
            return


def _switches(problem: Problem) -> Iterator[FieldError]:
    options, gpus = problem.options, [group.gpu for group in problem.cluster.groups]
    for name in sorted(set(options.allow) & {*switches()}):
        switch, at = switches()[name], pointer("search", "allow")
        stated = sorted(switch.options & problem.workload.framework_options.keys())
        if stated:
            yield FieldError(
                pointer=at,
                message=f"{name} is to be searched, but workload.framework_options states {stated[0]}",
                allowed="one of the two",
            )
        elif not any(
            switch.settings_of(launcher, problem.model, gpus) for launcher in launchers_of(problem.launcher)
        ):
            having = sorted(one for one in switch.launchers if switch.settings_of(one, problem.model, gpus))
            faults = {one.fault(problem.model, gpu) for one in switch.settings for gpu in gpus}
            lacking = sorted(one.removeprefix("it needs ") for one in faults if one)
            if not switch.launchers & {*launchers_of(problem.launcher)}:
                lacking.insert(0, f"the launchers {', '.join(sorted(switch.launchers))}")
            yield FieldError(
                pointer=at,
                message=f"{problem.launcher} has no {name} for this model on these GPUs",
                allowed=f"the launchers {', '.join(having)}" if having else "; ".join(lacking),
            )


def _trainable(problem: Problem) -> Iterator[FieldError]:
    if problem.launcher != "any":
        yield from workload_faults(problem, launcher_capabilities(problem.launcher))
    else:
        yield from stated_faults(problem)
    work = problem.workload
    if work.lora_rank and (why := target_fault(problem.model, work.lora_targets)):
        yield FieldError(
            pointer="/workload/lora_targets", message=why, allowed="layers that the model's class has"
        )


def _abilities(problem: Problem) -> Iterator[FieldError]:
    yield from pin_faults(problem, launcher_capabilities(problem.launcher))
