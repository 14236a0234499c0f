"""Switches of launchers that a search may choose with the configuration: ``catalog/switches.yaml``.

A switch has settings; a setting states some options of the framework, and who takes it: launchers, each
with its source, models and GPUs. A search may try every combination of settings with options that do not
contradict each other, less those that another one beats.

Dominance: a setting *beats* another of its switch if no configuration that both run, priced under both with
all else alike, has a shorter step or less memory under the other. Then for every plan of a combination with
the other there is one of the combination with this setting, legal for the same kinds of recomputation, that
is no slower and fits where that fits, so that no rank changes when the other is left out. It holds within a
switch and kind of recomputation by kind, and only where the better combination is legal itself
(``_better``). ``tests/property/test_switches.py`` holds each pair against drawn configurations,
``tests/property/test_meaning_of_requests.py`` whole answers against every configuration under every
combination, beaten ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from typing import Any

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import GpuSpec, may_slow
from meshwright.profiles.errors import FieldError, InvalidProblemError, ProfileError
from meshwright.profiles.frameworks import (
    FrameworkFacts,
    framework_facts,
    with_options,
    with_options_if_legal,
)
from meshwright.profiles.model import ModelSpec

Option = str | int | float | bool
Options = Mapping[str, Option]

EVERY_SWITCH = "switches"  # every setting that the launcher has, those that need a package too
NO_SWITCH = "none"  # no switch but those that are named as well
RECOMPUTATION = ("none", "selective", "full")
NEEDS: Mapping[str, Callable[[ModelSpec], bool]] = {
    "experts": lambda model: model.moe is not None,
    "no experts": lambda model: model.moe is None,
    "MLPs": lambda model: any(shape.part != "mixing" for shape in model.layer_shapes()),
    "dense layers": lambda model: "dense" in model.layer_kinds(),
    "shared experts": lambda model: bool(model.moe and model.moe.shared_ffn_hidden_size),
    "latent attention": lambda model: model.mla is not None,
    "no latent attention": lambda model: model.mla is None,
    "no labels": lambda model: not model.num_labels,
    "no tower": lambda model: model.tower is None,
    "self-attention alone": lambda model: not (model.tower or model.mixer or model.diffusion),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One position of a switch."""

    switch: str
    name: str
    options: Options  # of the framework, that it states
    launchers: Mapping[str, str]  # the launchers that take it, with the line that shows it
    needs: tuple[str, ...] = ()  # of NEEDS: a launcher does not start it with another model
    tried: tuple[str, ...] = ()  # of NEEDS: a search does not try it for another model, which may state it
    gpus: tuple[str, ...] = ()  # architectures or types; empty: any
    recompute: tuple[str, ...] = RECOMPUTATION  # kinds of recomputation that it goes with
    beats: tuple[str, ...] = ()  # settings of the switch under which no step is shorter, no memory less
    only: str = ""  # a constraint on the configurations that it is about; empty: it is about all

    def fault(self, model: ModelSpec, gpu: GpuSpec) -> str:
        """Return why a model or GPU does not take it; empty: they do."""
        for need in self.needs:
            if not NEEDS[need](model):
                return f"it needs a model with {need}"
        names = {gpu.slug} if gpu.nearest else {gpu.slug, gpu.architecture}
        if self.gpus and not names & set(self.gpus):
            return f"it runs on {', '.join(self.gpus)}, not on {gpu.slug}"
        return ""

    def is_tried(self, model: ModelSpec, gpus: Sequence[GpuSpec]) -> bool:
        """Return whether a search tries it for a model on all of these GPUs."""
        limit_w = float(self.options.get("power_limit_w", 0.0))
        slows = not limit_w or all(may_slow(gpu, limit_w) for gpu in gpus)
        wanted = slows and all(NEEDS[need](model) for need in self.tried)
        return wanted and not any(self.fault(model, gpu) for gpu in gpus)


@dataclass(frozen=True, kw_only=True)  # no slots: sets of names are kept
class Switch:
    """A choice that a search can make, with all its settings."""

    name: str  # as ``search.allow`` calls it
    meaning: str
    settings: tuple[Setting, ...]
    beside: str = ""  # searched where the request allows this; empty: its own name, or every switch
    also: str = ""  # what the request must allow too
    change: str = ""  # what a better plan has: "torch.compile"; empty: none is better by the objective
    effect: str = ""  # of the change, beside the time
    objective: str = "step_time"  # ``search.objective`` of requests to which the change is offered
    frees_memory: bool = False  # so much that a layout far away may fit
    samples: tuple[str, ...] = ()  # kinds of samples for which it is searched; empty: any
    bases: tuple[str, ...] = ()  # precisions of frozen weights for which it is; empty: any
    stated: tuple[str, ...] = ()  # launchers that take it where a request states it, and are not searched
    lacking: Mapping[str, str] = field(
        default_factory=dict
    )  # why launchers do not have it, or not all of it

    @cached_property
    def options(self) -> frozenset[str]:
        """Return the framework options that it states."""
        return frozenset(name for one in self.settings for name in one.options)

    @cached_property
    def launchers(self) -> frozenset[str]:
        """Return the launchers that are searched for the switch."""
        return frozenset(name for one in self.settings for name in one.launchers)

    @cached_property
    def takers(self) -> frozenset[str]:
        """Return the launchers that take it where a request states it."""
        return self.launchers | {*self.stated}

    def settings_of(self, launcher: str, model: ModelSpec, gpus: Sequence[GpuSpec]) -> list[Setting]:
        """Return the settings to try for a model, of those that the launcher takes on all of these GPUs."""
        return [one for one in self.settings if launcher in one.launchers and one.is_tried(model, gpus)]


@cache
def switches() -> Mapping[str, Switch]:
    """Return every switch, by name.

    Raises:
        ProfileError: an entry of the catalog names what does not exist.
    """
    return {name: _switch(name, one) for name, one in catalog_file(CATALOG / "switches.yaml").items()}


def _switch(name: str, entry: Mapping[str, Any]) -> Switch:
    settings = tuple(
        Setting(
            switch=name, name=at, options=one["set"], launchers=one["launchers"], only=one.get("only", ""),
            needs=(*entry.get("needs", ()), *one.get("needs", ())),
            **{key: tuple(one[key]) for key in ("gpus", "recompute", "beats", "tried") if key in one},
        )
        for at, one in entry["settings"].items()
    )  # fmt: skip
    known, launchers = {one.name for one in settings}, {*launcher_names()}
    for one in settings:
        strange = {*one.launchers} - launchers
        strange |= (
            {*one.needs, *one.tried} - {*NEEDS} | {*one.recompute} - {*RECOMPUTATION} | {*one.beats} - known
        )
        if strange:
            raise ProfileError(f"catalog/switches.yaml, {name}/{one.name}: {', '.join(sorted(strange))}")
    return Switch(
        name=name,
        meaning=entry["meaning"],
        settings=settings,
        beside=entry.get("beside", ""),
        also=entry.get("also", ""),
        change=entry.get("change", ""),
        effect=entry.get("effect", ""),
        objective=entry.get("objective", "step_time"),
        frees_memory=entry.get("frees_memory", False),
        stated=launcher_names() if entry.get("stated") == ["any"] else tuple(entry.get("stated", ())),
        samples=tuple(entry.get("samples", ())),
        bases=tuple(entry.get("bases", ())),
        lacking=entry.get("lacking", {}),
    )


def allowed_switches(allow: Collection[str]) -> list[str]:
    """Return the switches that a request leaves open, in alphabetical order.

    Unless it allows ``none``, these are all that do not need another switch (``beside``) that it must
    allow.
    """
    default = NO_SWITCH not in allow or EVERY_SWITCH in allow
    return sorted(
        name
        for name, one in switches().items()
        if (one.beside in allow if one.beside else default or name in allow)
    )


def switch_faults(
    launcher: str, stated: Options, *, facts: FrameworkFacts, model: ModelSpec, precision: str,
    gpus: Sequence[GpuSpec], pinned: object,
) -> Iterator[FieldError]:  # fmt: skip
    """Yield stated options that a launcher refuses: on these GPUs, for this model, or together.

    ``facts`` are the framework's with what is ``stated``; ``pinned``: its only recomputation, if any.
    """
    lacking = [*_lacking(launcher, stated, facts)]
    yield from lacking
    reported = {fault.pointer.rpartition("/")[2] for fault in lacking}
    for switch in switches().values():
        if len(switch.settings[0].options) > 1 or switch.options.isdisjoint(stated):
            continue  # options of several are judged one by one elsewhere
        for one in switch.settings:
            ((option, value),) = one.options.items()
            if launcher not in one.launchers or stated.get(option) != value:
                continue
            fault = next(filter(None, (one.fault(model, gpu) for gpu in gpus)), "")
            if fault:
                reported.add(option)
                legal = [one for one in switch.settings if not any(one.fault(model, gpu) for gpu in gpus)]
                able = [str(one.options[option]).lower() for one in legal if launcher in one.launchers]
                yield FieldError(
                    pointer=f"/workload/framework_options/{option}",
                    message=f"{str(value).lower()[:40]}: {fault}",
                    allowed=", ".join(able) or "absent",
                    nearest=able[0] if able else None,
                )
    for clash in clashes(launcher, facts, model, precision):
        option = clash.option(stated)
        if option and option not in reported and (clash.is_stated(stated) or pinned in clash.recompute):
            reported.add(option)
            yield FieldError(
                pointer=f"/workload/framework_options/{option}",
                message=f"{str(stated[option]).lower()[:40]} contradicts {clash.against}",
                allowed=clash.instead if option == clash.options[0] else None,
                nearest=clash.nearest if option == clash.options[0] else None,
            )


def _lacking(launcher: str, stated: Options, facts: FrameworkFacts) -> Iterator[FieldError]:
    """Yield stated options of switches that a launcher has none of, where they change what it does."""
    if launcher in ("none", "any"):
        return
    own = framework_facts(facts.name)
    for switch in switches().values():
        if launcher in switch.takers:
            continue
        for option in sorted(switch.options):
            does, asked = getattr(own, option), getattr(facts, option)
            name = "cuda_graphs" if option == "cuda_graph" and "cuda_graphs" in stated else option
            if name in stated and asked != does:
                usual, takers = str(does).lower(), ", ".join(sorted(switch.takers))
                why = switch.lacking.get(launcher, f"{launcher}'s launch files have no setting for it")
                yield FieldError(
                    pointer=f"/workload/framework_options/{name}",
                    message=f"{str(stated[name]).lower()[:40]}, but {why}",
                    allowed=f"absent, or {usual} (launchers with other values: {takers})",
                    nearest=None if name != option else usual,
                )


def otherwise(
    launcher: str,
    facts: FrameworkFacts,
    stated: Options,
    model: ModelSpec,
    gpus: Sequence[GpuSpec],
    *,
    recompute: str,
) -> Iterator[tuple[str, dict[str, Option]]]:
    """Yield the options in which a switch has another setting, in words, if that may need less memory.

    What is stated is given up, switch by switch. Where selective is the only kind of ``recompute`` that is
    allowed, other modules are replayed, unless that contradicts what is stated; all layers replayed need
    less than any modules of theirs.
    """
    for switch in switches().values():
        if own := [name for name in stated if name in switch.options and name != "gradient_dtype"]:
            words = " and ".join(f"{name} {str(stated[name]).lower()}" for name in own)
            yield f"without {words}", {name: value for name, value in stated.items() if name not in own}
    if recompute == "selective" and "recompute_modules" not in stated:
        for setting in switches()["recompute_modules"].settings_of(launcher, model, gpus):
            words = " ".join(f"{name} {value}" for name, value in setting.options.items())
            with suppress(InvalidProblemError):
                with_options(facts, options := {**stated, **setting.options})
                yield words, options


# --------------------------------------------------------------------------------------------------
# What a search tries.


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A setting of every switch that is searched."""

    options: dict[str, Option] = field(default_factory=dict)  # that differ from the framework's facts
    recompute: tuple[str, ...] = RECOMPUTATION  # kinds of recomputation that it is searched for
    constraints: tuple[str, ...] = ()  # on the configurations that it is searched for


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalCombinations:
    """The combinations of settings that hold together for one launcher, model and precision."""

    facts: FrameworkFacts  # with what the request states
    choices: Sequence[Sequence[Setting]]  # the settings of each switch
    legal: Mapping[tuple[str, ...], tuple[Setting, ...]]  # by the names of the settings
    facts_of: Mapping[tuple[str, ...], FrameworkFacts]  # under each of them

    @classmethod
    def of(
        cls, names: Iterable[str], launcher: str, *, model: ModelSpec, gpus: Sequence[GpuSpec],
        facts: FrameworkFacts, stated: Options, precision: str,
    ) -> LegalCombinations:  # fmt: skip
        """Find them; options that the request has ``stated`` are not varied."""
        facts = with_options(facts, stated)
        varied = [switches()[name] for name in names if not switches()[name].options & stated.keys()]
        choices, legal, facts_of = list[list[Setting]](), {}, {}
        for switch in varied:
            able = switch.settings_of(launcher, model, gpus)
            own = {name: getattr(facts, name) for name in sorted(switch.options)}
            as_now = (one for one in able if {**own, **one.options} == own)
            if not any(one.recompute == RECOMPUTATION for one in as_now):
                able = [Setting(switch=switch.name, name="", options=own, launchers={}), *able]
            choices.append(able)
        for some in product(*choices):
            kinds, key = {*_kinds(some)}, tuple(one.name for one in some)
            found = None if _disagree(some) else with_options_if_legal(facts, _options(some))
            if not kinds or not found:
                continue
            # what the launcher does anyway runs beside these settings, too
            changed = {name for name in _options(some) if getattr(found, name) != getattr(facts, name)}
            contradicts = any(
                (kinds <= {*one.recompute} or one.is_stated(stated))
                and (stated.keys() | changed) & {*one.options}
                for one in clashes(launcher, found, model, precision)
            )
            if not contradicts:
                legal[key], facts_of[key] = some, found
        return cls(facts=facts, choices=choices, legal=legal, facts_of=facts_of)

    def worth_a_search(self, able: Callable[[FrameworkFacts], bool] = lambda _: True) -> list[Combination]:
        """Return the combinations that no other one beats, that which changes most first.

        Args:
            able: Whether an installation runs a combination; one that it does not run beats none.
        """
        runs = {key: some for key, some in self.legal.items() if able(self.facts_of[key])}
        found = []
        for key, some in runs.items():
            beaten = {kind for one in self._better(key, some, runs) for kind in _kinds(one)}
            kinds = tuple(kind for kind in _kinds(some) if kind not in beaten)
            if kinds:
                own, options = self.facts, _options(some)
                changed = {name: value for name, value in options.items() if getattr(own, name) != value}
                only = tuple(one.only for one in some if one.only)
                found.append(Combination(options=changed, recompute=kinds, constraints=only))
        return sorted(
            found, key=lambda one: -sum(len(str(value).split("+")) for value in one.options.values())
        )

    def _better(
        self,
        key: tuple[str, ...],
        some: tuple[Setting, ...],
        runs: Mapping[tuple[str, ...], tuple[Setting, ...]],
    ) -> Iterator[tuple[Setting, ...]]:
        for at, settings in enumerate(self.choices):
            for other in (other for other in settings if some[at].name in other.beats):
                replaced = runs.get((*key[:at], other.name, *key[at + 1 :]))
                if replaced:
                    yield replaced


def _options(some: Sequence[Setting]) -> dict[str, Option]:
    return {name: value for one in some for name, value in one.options.items()}


def _disagree(some: Sequence[Setting]) -> bool:
    """Return whether settings state one option differently: Liger's kernels and operators one by one."""
    together = _options(some)
    return any(together[name] != value for one in some for name, value in one.options.items())


def _kinds(some: Sequence[Setting]) -> list[str]:
    return [kind for kind in RECOMPUTATION if all(kind in one.recompute for one in some)]


# --------------------------------------------------------------------------------------------------
# Options that contradict the model, the precision or each other, as launchers judge them.
#
# Contradictions under every launcher and model are in ``meshwright.profiles.frameworks``.
# Lines of Megatron-Core 0.19.2: tc, transformer_config.py; ta, training/arguments.py.


@dataclass(frozen=True, slots=True)
class Clash:
    """Options that a launcher does not start with."""

    options: tuple[str, ...]  # the first of them that is stated is refused
    against: str  # what they contradict
    instead: str  # what the first of them may be
    nearest: str  # of that
    recompute: tuple[str, ...] = RECOMPUTATION  # the kinds of recomputation with which it does not start

    def option(self, stated: Collection[str]) -> str:
        """Return the option to refuse; empty if none of them is stated."""
        return next((name for name in self.options if name in stated), "")

    def is_stated(self, stated: Collection[str]) -> bool:
        """Return whether the clash holds for every recomputation; modules are about one kind of it."""
        return self.option(stated) == "recompute_modules" or self.recompute == RECOMPUTATION


def clashes(launcher: str, facts: FrameworkFacts, model: ModelSpec, precision: str) -> Iterator[Clash]:
    """Yield the options that a launcher would refuse at the start, or accept and not apply."""
    if launcher == "none":
        return
    eight_bits = precision == "fp8" or facts.precision_recipe != "none"
    for name in ("fp8_attention", "low_precision_weights", "low_precision_gathers"):
        if getattr(facts, name) and not eight_bits:
            yield Clash((name,), f"precision = {precision}", "false, or precision = fp8", "false")
    weights = "fp16" if precision == "fp16" else "bf16"
    if facts.gradient_dtype not in ("fp32", weights):
        # Megatron-LM takes --grad-reduce-in-bf16 with --fp16 and does not do it (ta:1172)
        against = f"precision = {precision}, with weights in {weights}"
        yield Clash(("gradient_dtype",), against, f"fp32, {weights}", weights)
    elif launcher == "llama-factory" and precision == "bf16" and facts.gradient_dtype != "fp32":
        # mcore_adapter/training_args.py __post_init__ overwrites the value in the file
        yield Clash(
            ("gradient_dtype",),
            "precision = bf16 (its adapter keeps gradients in fp32)",
            "fp32",
            "fp32",
        )
    if launcher == "torchtitan" and facts.overlap_tensor and not facts.elementwise_fused:
        # distributed/compile.py:80 sets inductor's passes, which blocks that are not compiled never run
        against = "elementwise_fused = false (only compiled blocks overlap)"
        yield Clash(("overlap_tensor", "elementwise_fused"), against, "false", "false")
    if launcher in switches()["recompute_modules"].launchers:  # those over Megatron-Core
        yield from _graph_clashes(facts, model)
        if eight_bits:
            yield from _delayed_clashes(facts)
        yield from _part_clashes(facts, model)


_UNEVEN = "moe_capacity_factor = 0 (exchange sizes change from step to step)"


def _without(joined: str, parts: Collection[str], otherwise: str) -> str:
    return "+".join(part for part in joined.split("+") if part not in parts) or otherwise


def _graph_clashes(facts: FrameworkFacts, model: ModelSpec) -> Iterator[Clash]:
    """Yield clashes of CUDA graphs with parts that the model lacks, or with sizes that vary by step."""
    graph = set() if facts.cuda_graph == "none" else {*facts.cuda_graph.split("+")}
    whole = facts.cuda_graph in ("layer", "full_iteration")

    def without(*parts: str) -> str:
        return _without(facts.cuda_graph, (*parts, "layer", "full_iteration"), "none")

    experts = [one for one in ("moe", "moe_router", "moe_preprocess") if one in graph]
    if experts and model.moe is None:  # tc:2496
        instead = f"a scope without {', '.join(experts)}"
        yield Clash(("cuda_graph",), "a model without experts", instead, without(*experts))
    if "mlp" in graph and model.moe is not None and "dense" not in model.layer_kinds():  # tc:2502
        against = "a model with experts in all layers"
        yield Clash(("cuda_graph",), against, "a scope without mlp", without("mlp"))
    if model.moe is not None and not facts.moe_capacity_factor and (whole or "moe" in graph):
        # tc:2511; of whole layers token_dispatcher.py: the host waits for sizes, which no capture can
        instead = "a scope without experts, or moe_capacity_factor above 0"
        yield Clash(("cuda_graph",), _UNEVEN, instead, without("moe"))
    elif model.moe is not None and "moe" in graph and facts.moe_dispatcher == "deepep":  # tc:1605: unpadded
        against = "moe_dispatcher = deepep (it doesn't pad the experts' tokens)"
        yield Clash(("cuda_graph", "moe_dispatcher"), against, "a scope without moe", without("moe"))
    biased = model.qkv_bias or model.attention_output_bias
    if biased and facts.delay_wgrad and "attn" in graph:  # ta:1846
        against = "delay_wgrad = true with biases of attention"
        instead = "a scope without attn, or delay_wgrad = false"
        yield Clash(("cuda_graph", "delay_wgrad"), against, instead, without("attn"))
    drawn = {"core_attn": "attn", "mlp": "mlp", "moe": "moe"}  # modules with dropout, and their scopes
    replayed = [name for name in facts.recomputed if name in drawn and (whole or drawn[name] in graph)]
    if facts.dropout and replayed:  # tc:2550 and 2566
        yield Clash(
            ("recompute_modules", "dropout", "cuda_graph"),
            f"dropout = true under cuda_graph = {facts.cuda_graph}",
            f"modules without {', '.join(replayed)}",
            _without(facts.recompute_modules, replayed, "layernorm"), recompute=("selective",),
        )  # fmt: skip


def _delayed_clashes(facts: FrameworkFacts) -> Iterator[Clash]:
    """Yield clashes of scaling by past maxima, which replays no norms and no activations of experts."""
    replayed = [name for name in ("layernorm", "moe_act") if name in facts.recomputed]
    if replayed and facts.precision_recipe in ("none", "fp8-delayed"):  # tc:1825
        yield Clash(
            ("recompute_modules", "precision_recipe"), "fp8 with delayed scaling (precision_recipe)",
            f"modules without {', '.join(replayed)}, or another precision_recipe",
            _without(facts.recompute_modules, replayed, "core_attn"), recompute=("selective",),
        )  # fmt: skip


def _layer_clashes(facts: FrameworkFacts, model: ModelSpec) -> Iterator[Clash]:
    """Yield clashes of whole layers on the host: their number, modules next to them, graphs of layers."""
    layers, sent = facts.offload_layers, facts.offload_modules
    if not layers:
        return
    if layers >= model.num_layers:  # tc:1884
        most = model.num_layers - 1
        yield Clash(("offload_layers",), f"a model of {model.num_layers} layers", f"0 to {most}", str(most))
    if sent != "all":  # tc:2127
        yield Clash(("offload_layers",), f"offload_modules = {sent}", "0, or offload_modules = all", "0")
    if facts.cuda_graph not in ("none", "full_iteration"):  # tc:2800
        against = f"offload_layers = {layers:g}"
        yield Clash(("cuda_graph", "offload_layers"), against, "none, full_iteration", "none")


def _part_clashes(facts: FrameworkFacts, model: ModelSpec) -> Iterator[Clash]:
    """Yield clashes of replayed or offloaded modules that the model lacks, and groups of its experts."""
    experts = [] if model.moe else ["moe_act", "moe", "shared_experts"]
    for words, parts in (("experts", experts), ("latent attention", [] if model.mla else ["mla_up_proj"])):
        replayed = [name for name in facts.recomputed if name in parts]
        if replayed:  # tc:1786 and 1791; of the others nothing would be replayed
            instead = f"modules without {', '.join(replayed)}"
            nearest = _without(facts.recompute_modules, replayed, "core_attn")
            yield Clash(
                ("recompute_modules",), f"a model without {words}", instead, nearest, ("selective",)
            )
    sent = [one for one in facts.offload_modules.split("+") if one in ("expert_fc1", "moe_act")]
    if sent and model.moe is None:
        instead, nearest = (
            f"modules without {', '.join(sent)}",
            _without(facts.offload_modules, sent, "all"),
        )
        yield Clash(("offload_modules",), "a model without experts", instead, nearest)
    yield from _layer_clashes(facts, model)
    groups, chosen = facts.routing_groups
    if model.moe is not None and model.moe.num_experts % groups:  # tc:2350
        experts_in_all = model.moe.num_experts
        most = max(one for one in range(1, groups) if experts_in_all % one == 0)
        yield Clash(
            ("moe_routing_groups",), f"{experts_in_all} experts, not divided by {groups} groups",
            f"a number of groups that divides {experts_in_all}", f"{most}/{min(chosen, most)}",
        )  # fmt: skip
