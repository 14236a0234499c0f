"""Published recipes of a request's model, launcher and GPU, priced on its own GPUs and batch.

A recipe is a run of the catalog whose switches are published: its layout and its switches are read, never
what it measured. What it has in force may need more than a request allows: a package, other numerics, a
higher risk. ``fastest_recipe`` finds the best one, with what it needs and nothing more: what does not make
it faster is left out.

Benchmarks load all experts equally, or drop tokens. A recipe is priced without either: no training run has
the first, and the second changes what is trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import FORMATS, FrameworkFacts, framework_facts, with_options
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import Profile, framework_of
from meshwright.profiles.requirements import unallowed
from meshwright.profiles.switches import EVERY_SWITCH, switches
from meshwright.solver.answer import Prediction
from meshwright.solver.check import violations
from meshwright.solver.clock import look
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import settle
from meshwright.solver.predict import predict, profile_of_variant
from meshwright.solver.problem import Problem, gpu_counts, searched_switches
from meshwright.solver.runs.table import PublishedRecipe, published_recipes
from meshwright.solver.space.launcher_rules import workload_faults

Options = Mapping[str, str | int | float | bool]
WORTH_OF_A_RECIPE = 0.01  # of the first plan's time: a faster recipe is always named
_BENCHMARKS_ALONE = ("moe_force_balance", "moe_capacity_factor")
_UNCERTAIN = 0.03  # of a step: what the simulation may take off the closed form
_UNFELT = 1.003  # times as long: what a recipe has in force and needs not
_CORE = ("megatron-core", "nemo", "megatron-core-ci")  # frameworks that run the same plans
_OWNERS = {"NVIDIA": "NVIDIA", "NVIDIA-NeMo": "NVIDIA", "pytorch": "PyTorch"}
_MLPERF = re.compile(r"mlcommons/[^:]*:([^/]+)/")
STATES = {"adamw-bf16": "16-bit Adam states", "adamw-8bit": "8-bit Adam states"}
_NUMERICS = {  # options that change what is computed; others name kernels and places
    "fp8_attention", "low_precision_dispatch", "low_precision_gathers", "low_precision_weights",
    "moe_capacity_factor", "moe_routing_groups", "precision_recipe",
}  # fmt: skip
_WORDS = {
    ("gradient_dtype", "bf16"): "bf16 gradients",
    ("low_precision_weights", True): "weights gathered in 8 bits",
    ("low_precision_weights", False): "weights gathered in 16 bits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A recipe on the request's GPUs."""

    name: str  # "NVIDIA's recipe"
    source: str
    problem: Problem  # the request with what the recipe needs
    config: Configuration
    prediction: Prediction
    needs: tuple[str, ...]  # in words
    settings: Mapping[str, Any]  # values by their paths in the request, that allow it

    @property
    def effect(self) -> str:
        """Return what it changes most."""
        allowed = {*self.settings.get("search.allow", ())}
        options = {*self.settings.get("workload.framework_options", ())}
        changed = allowed - {EVERY_SWITCH, "offload"} or options & _NUMERICS
        if changed or "workload.precision" in self.settings:
            return "numerics"
        if EVERY_SWITCH in allowed:
            return "not in a stock installation"
        if allowed:
            return f"{self.config.offload.replace('+', ' and ')} on the hosts"
        if options:
            return "other kernels"
        return "a higher risk" if self.settings else "its own layout"

    def asked(self, problem: Problem) -> Problem:
        """Return the request with the settings, which leave open what they allow."""
        stated = {*problem.workload.framework_options, *self.settings.get("workload.framework_options", ())}
        options = {
            name: value for name, value in self.problem.workload.framework_options.items()
            if name in stated or name == "precision_recipe"
        }  # fmt: skip
        work = replace(
            self.problem.workload, framework_options=options, optimizer=problem.workload.optimizer
        )
        allow = dict.fromkeys((*problem.options.allow, *self.settings.get("search.allow", ())))
        limits = replace(self.problem.options, allow=tuple(allow))
        return replace(self.problem, workload=work, options=limits)


def whose(source: str) -> str:
    """Return the publisher of ``repository@release:file``: of MLPerf's results the submitter."""
    submitter = _MLPERF.match(source)
    owner, _, rest = source.partition("/")
    return submitter[1] if submitter else _OWNERS.get(owner, rest.partition("@")[0])


def fastest_recipe(
    problem: Problem, profile: Profile, *, precision: str, within_s: float = inf
) -> Candidate | None:
    """Return the fastest published recipe in a precision that can run on the request's GPUs, if any can.

    Those whose steps are clearly longer than ``within_s`` are not looked at closely.
    """
    found = list[tuple[float, PublishedRecipe, Problem, Configuration]]()
    seen = set[tuple[object, ...]]()
    for recipe in _of_problem(problem, precision):
        look()
        way = _way(problem, recipe, precision)
        config = None if way is None else _on(way, recipe.shape.configuration)
        if way is None or config is None:
            continue
        key = (config, way.workload.optimizer, *way.workload.framework_options.items())
        if key in seen:
            continue
        seen.add(key)
        evaluated = evaluate(way, profile_of_variant(way, profile), [config])
        found += [(one.objective_s, recipe, way, config) for one in evaluated]
    found.sort(key=lambda one: one[0])
    for step_s, recipe, way, config in found:
        look()
        if (1.0 - _UNCERTAIN) * step_s > within_s:
            return None
        own = _at_its_risk(_on_hosts(way, config), profile, config)
        if not any(violations(own, profile_of_variant(own, profile), config)):
            return _candidate(problem, profile, recipe, own, config)
    return None


def has_recipes(problem: Problem, precision: str) -> bool:
    """Return whether a recipe in a precision is published for the model, launcher and GPU."""
    return next(_of_problem(problem, precision), None) is not None


def _of_problem(problem: Problem, precision: str) -> Iterator[PublishedRecipe]:
    """Yield the recipes of the model, launcher and GPU, in a precision, for this kind of training."""
    model, work = problem.model, problem.workload
    gpus = {group.gpu.slug for group in problem.cluster.groups}
    in_part = work.frozen or work.trained_layers or model.tower is not None
    if in_part or work.lengths is not None or len(gpus) > 1:
        return
    asked = with_options(framework_facts(framework_of(problem.priced_as)), work.framework_options)
    stated = work.framework_options.get("precision_recipe")
    for recipe in published_recipes(model.num_layers, model.hidden_size, *gpus, precision=precision):
        theirs = recipe.shape.problem
        alike = (
            _experts(theirs) == _experts(problem)
            and theirs.model.num_attention_heads == model.num_attention_heads
            and _same_program(recipe.shape.framework, asked.name)
            and bool(theirs.workload.lora_rank) == bool(work.lora_rank)
        )
        own = theirs.workload.framework_options.get("precision_recipe", "none")
        same_format = own in (stated, "none") if stated else own != "nvfp4"
        states = theirs.workload.optimizer
        trained = states == work.optimizer or (work.optimizer == "adamw" and states in STATES)
        if alike and same_format and trained:
            yield recipe


def _experts(problem: Problem) -> int:
    return problem.model.moe.num_experts if problem.model.moe else 0


def _same_program(framework: str, asked: str) -> bool:
    return framework == asked or (framework in _CORE and asked in _CORE)


def _way(problem: Problem, recipe: PublishedRecipe, precision: str) -> Problem | None:
    """Return the request with a recipe's switches; what it states itself stays. None: not possible."""
    work, theirs = problem.workload, recipe.shape.problem.workload
    problem = replace(problem, workload=replace(work, precision=precision))
    facts = framework_facts(framework_of(problem.priced_as))
    options = {
        name: value
        for name, value in theirs.framework_options.items()
        if name not in _BENCHMARKS_ALONE and name not in work.framework_options
    }
    options = {**work.framework_options, **_unlike(facts, options)}
    optimizer = theirs.optimizer if theirs.optimizer in OPTIMIZERS else work.optimizer
    return _able(problem, options, optimizer)


def _unlike(facts: FrameworkFacts, options: Options) -> Options:
    """Return the options that differ from what the framework does anyway."""
    own = {"flash_attention": facts.flash}
    return {
        name: value for name, value in options.items() if own.get(name, getattr(facts, name, None)) != value
    }


def _able(problem: Problem, options: Options, optimizer: str) -> Problem | None:
    """Return the request with options and an optimizer, but for those that its launcher refuses."""
    own = problem.workload.framework_options
    for _ in range(len(options) + 1):
        way = replace(
            problem, workload=replace(problem.workload, framework_options=options, optimizer=optimizer)
        )
        try:
            with_options(framework_facts(framework_of(way.priced_as)), options)
            faults = list(workload_faults(way, launcher_capabilities(way.launcher)))
        except InvalidProblemError as error:
            faults = list(error.errors)
        if not faults:
            return way
        names = {fault.pointer.replace("/", ".").rpartition(".")[2] for fault in faults}
        refused = names & options.keys() - own.keys()
        if not refused:
            return None
        options = {name: value for name, value in options.items() if name not in refused}
    return None


def _on(problem: Problem, theirs: Configuration) -> Configuration | None:
    """Return a recipe's layout on all GPUs of the request, those that are left data parallel."""
    gpus = gpu_counts(problem)[0]
    model = theirs.tensor_parallel_size * theirs.pipeline_parallel_size * theirs.context_parallel_size
    if gpus % model:
        return None
    replicas = gpus // model
    scaled = replace(
        theirs,
        data_parallel_size=replicas,
        zero_shard_size=replicas * theirs.context_parallel_size if theirs.zero_stage else 1,
    )
    config = settle(problem, scaled)
    same_batch = config is not None and config.global_batch_size == problem.workload.global_batch_size
    return config if same_batch else None


def _on_hosts(problem: Problem, config: Configuration) -> Problem:
    """Return the request with what a configuration needs to be on the hosts."""
    allow = problem.options.allow
    if config.offload == "none" or "offload" in allow:
        return problem
    return replace(problem, options=replace(problem.options, allow=(*allow, "offload")))


def _at_its_risk(problem: Problem, profile: Profile, config: Configuration) -> Problem:
    """Return the request with a configuration's risk of running out of memory, if that is higher."""
    asked = problem.options.max_out_of_memory_probability
    own = predict(problem, profile_of_variant(problem, profile), config).out_of_memory_probability
    if not asked < own < _MOST_RISK:
        return problem
    options = replace(problem.options, max_out_of_memory_probability=ceil(100.0 * own) / 100)
    return replace(problem, options=options)


_MOST_RISK = 0.5  # a layout that more likely fails than not is no candidate, though it ran


def _candidate(
    problem: Problem, profile: Profile, recipe: PublishedRecipe, way: Problem, config: Configuration
) -> Candidate:
    """Return a recipe without what it has in force and does not need to be as fast."""
    own = problem.workload.framework_options
    found = predict(way, profile_of_variant(way, profile), config)
    for name in [*(one for one in way.workload.framework_options if one not in own), "optimizer"]:
        look()
        options = {key: value for key, value in way.workload.framework_options.items() if key != name}
        optimizer = problem.workload.optimizer if name == "optimizer" else way.workload.optimizer
        less = _able(problem, options, optimizer)
        if less is None or less.workload == way.workload or less.workload.framework_options != options:
            continue
        less = replace(less, options=way.options)
        costs = profile_of_variant(less, profile)
        seen = predict(less, costs, config)
        if seen.step_time_s <= _UNFELT * found.step_time_s and not any(violations(less, costs, config)):
            way, found = less, seen
    needs, settings = _needs(problem, way)
    return Candidate(
        name=f"{whose(recipe.source)}'s recipe", source=recipe.source, problem=way, config=config,
        prediction=found, needs=needs, settings=settings,
    )  # fmt: skip


def _needs(problem: Problem, way: Problem) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return what a request must allow to be the other one: in words, and as settings."""
    words, allow, options = list[str](), list[str](), dict[str, Any]()
    work, own = way.workload, dict(problem.workload.framework_options)
    facts = with_options(framework_facts(framework_of(way.priced_as)), work.framework_options)
    settings = dict[str, Any]()
    if work.precision != problem.workload.precision:
        own_format = str(work.framework_options.get("precision_recipe", "none"))
        words.append(f"products in {own_format if own_format != 'none' else work.precision}")
        settings["workload.precision"] = own_format if own_format in FORMATS else work.precision
        own = {**own, "precision_recipe": own_format}
    missing = unallowed(problem.options.allow, way.launcher, facts, way.model)
    if missing:
        words, allow = [*words, *missing], [EVERY_SWITCH]
    if "offload" in {*way.options.allow} - {*problem.options.allow}:
        allow.append("offload")
    if work.optimizer != problem.workload.optimizer:
        words.append(STATES.get(work.optimizer, work.optimizer))
        allow.append(work.optimizer)
    open_ones = {name for one in searched_switches(problem) for name in switches()[one].options}
    for name, value in work.framework_options.items():
        if name in own or name in open_ones:
            continue
        words.append(_WORDS.get((name, value)) or _option_words(name, value))
        beside = next((one.beside for one in switches().values() if name in one.options), None)
        if beside and beside != "offload":
            allow.append(beside)
        else:
            options[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    settings |= {"search.allow": allow} if allow else {}
    if options:
        settings["workload.framework_options"] = options
    risk = way.options.max_out_of_memory_probability
    if risk != problem.options.max_out_of_memory_probability:
        words.append(f"an out-of-memory risk of {100 * risk:.0f} %")
        settings["search.max_out_of_memory_probability"] = risk
    return tuple(words), settings


def _option_words(name: str, value: object) -> str:
    if name == "offload_layers":
        return f"activations of {value:g} layers on the hosts"
    if name == "offload_modules":
        return f"activations of {value} on the hosts"
    if name == "moe_routing_groups":
        groups, _, chosen = str(value).partition("/")
        return f"routing to {chosen} of {groups} groups of experts"
    return f"{name} = {str(value).lower()}"


def in_words(needs: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(needs[:-1]), needs[-1]] if len(needs) > 1 else needs)
