"""Single decisions about a launcher's arguments: which name gets which value, and what follows from it.

Names, values and what goes together come from the tables of arguments (``launchers/*/flags.yaml``): each
row that sets a size of the plan, or an option without effect on results, with each of its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from meshwright.launchers.editing.edits import TextEdit, Texts
from meshwright.launchers.editing.sites import Site
from meshwright.launchers.flags import Flag, flag_names, flags_of, is_off
from meshwright.launchers.table import tables_of

Setting = tuple[str, str | None]  # an argument and its value; ``on`` for a switch, None: not given

# Options whose values train the same, but for the order of sums.
SAME_RESULTS = frozenset(
    {
        "overlap_gradients", "overlap_tensor", "overlap_transfer", "overlap_experts", "delay_wgrad",
        "shared_expert_overlap", "loss_fused", "recompute_modules", "bucket_bytes", "logits_sharded",
        "moe_permute_fusion", "attention_kernel",
    }
)  # fmt: skip
_CHOSEN = SAME_RESULTS - {"attention_kernel"}  # this one needs a package that may not be installed
_FOLLOWS = ("plan.num_microbatches", "plan.data_parallel_size", "plan.offload", "plan.rank_order")
_OFFLOAD = "plan.offload"  # what is on the host may come back; only the user may move more there
_SIZES = ("1", "2", "4", "8", "16", "32")
_DEGREES = (
    "plan.tensor_parallel_size", "plan.pipeline_parallel_size", "plan.context_parallel_size",
    "plan.expert_parallel_size", "plan.expert_tensor_parallel_size", "plan.virtual_pipeline_size",
    "plan.micro_batch_size", "plan.zero_shard_size",
)  # fmt: skip
_MICRO = "plan.micro_batch_size"
_MESH = ("plan.tensor_parallel_size", "plan.pipeline_parallel_size", "plan.context_parallel_size")
_REPLICAS = ("plan.data_parallel_size", "plan.zero_shard_size")
_PROCESSES = (
    "num_processes", "num_machines", "nnodes", "nproc_per_node", "num_nodes", "num_gpus", "multi_gpu",
    "experiment.runner.nnodes", "experiment.runner.nproc_per_node", "ray_num_workers",
)  # fmt: skip
_ON = "on"
# These choose another engine, with checkpoints of its own: no edit of a flag.
_ENGINES = (
    "use_megatron_fsdp", "use_custom_fsdp", "use_fsdp", "use_deepspeed", "use_parallelism_config",
    "distributed_type", "fsdp", "fsdp_version", "deepspeed", "deepspeed_config", "fsdp_config",
    "deepspeed_config_file", "fsdp_auto_wrap_policy", "auto_wrap_policy",
)  # fmt: skip
# The files that the command ``trl`` has for accelerate differ in the stage alone (trl/accelerate_configs).
_OF_COMMANDS: Mapping[str, Flag] = {
    "accelerate_config": Flag(
        type="str",
        role="priced",
        sets="plan.zero_stage",
        words=("zero1", "zero2", "zero3"),
        of="the command",
    )
}
# Transformers' words for the types that frozen weights are loaded in, by those of ``base_precision``.
LOADED: Mapping[str, str] = {"bf16": "bfloat16", "fp32": "float32"}
BASE_FIELD = "workload.base_precision"  # what an argument of that type sets
# What an argument needs beside it where its parser would refuse it alone (Megatron-LM arguments.py,
# validate_args: full recomputation with a method and a number of layers).
_BESIDE: Mapping[Setting, tuple[Setting, ...]] = {
    ("recompute_granularity", "full"): (("recompute_method", "uniform"), ("recompute_num_layers", "1")),
    ("overlap_param_gather", _ON): (("overlap_grad_reduce", _ON), ("use_distributed_optimizer", _ON)),
}


# What ms-swift computes in follows from the type that it loads weights in (4.6, model_args.py:130-143).
OF_SWIFT: Mapping[Setting, tuple[Setting, ...]] = {
    ("torch_dtype", "float32"): (("bf16", "true"), ("fp16", "false")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One argument before and after, with the place where it is set."""

    name: str
    old: str | None
    new: str | None
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One decision: its first argument, with what follows from it, as edits of the texts."""

    changes: tuple[Change, ...]
    edits: tuple[TextEdit, ...]
    names: frozenset[str]
    ranks: Fraction = Fraction(1)  # of data parallelism, for each rank before
    micro: Fraction = Fraction(1)  # micro-batches of a rank, for each one before


class Arguments:
    """The arguments of some launch files: what is given, and how each can be changed."""

    def __init__(
        self,
        launchers: Sequence[str],
        texts: Texts,
        *,
        base: str | None = None,
        takes_base: bool = True,
        beside: Mapping[Setting, tuple[Setting, ...]] | None = None,
    ) -> None:
        """Take the arguments of the launchers in the texts.

        Args:
            launchers: that read the texts.
            texts: of the files.
            base: a word of ``LOADED``: what frozen weights may be loaded in; None: what the files say.
            takes_base: whether the started program has an argument for it where none is given.
            beside: what arguments of the started program need beside them.
        """
        self.texts, self._base, self._takes_base = texts, base, takes_base
        self._beside = {**_BESIDE, **(beside or {})}
        self._programs = tuple(dict.fromkeys(one for name in launchers for one in tables_of(name)))
        self.rows: dict[str, Flag] = {**_OF_COMMANDS, **flag_names(*self._programs).rows}
        self.given: dict[str, tuple[str, Site]] = {}
        for name, row in self.rows.items():
            if row.role in ("priced", "means") and (found := texts.named(name)):
                self.given[name] = found[0]
        self._anchors = self._found_anchors()
        self._at_home = self._found_homes()

    def _found_homes(self) -> dict[str, frozenset[str]]:
        """Return the programs whose arguments each file holds: those with at least half of them."""
        found = dict[str, frozenset[str]]()
        for file in self.texts.files:
            held = [name for name, place in self.given.items() if place[0] == file]
            known = {one: sum(name in flags_of(one) for name in held) for one in self._programs}
            found[file] = frozenset(one for one, count in known.items() if 2 * count >= len(held) > 0)
        return found

    def _row(self, name: str) -> Flag:
        """Return the row of an argument, or of the one that it is another spelling of."""
        row = self.rows[name]
        if row.role == "means" and len(row.means) == 1:
            target, value = next(iter(row.means.items()))
            if value == "$" and target in self.rows:
                return self.rows[target]
        return row

    def settings(self, wanted: Mapping[str, Sequence[str]]) -> Iterator[Setting]:
        """Yield every single setting that differs from the files.

        Args:
            wanted: further values by name, those of a plan's own files.
        """
        yield from self.loadings()
        for name in dict.fromkeys(chain(self.given, self.rows)):
            row, place = self._row(name), self.given.get(name)
            if row.sets == _OFFLOAD and place is not None:
                yield from ((name, value) for value in _without_offload(row, self._value(name)))
            if not _is_decided(row):
                continue
            is_addition = place is None and (row is not self.rows[name] or _is_seldom_added(name, row))
            if is_addition or name.rpartition(".")[2] in _ENGINES:
                continue
            old = self._value(name)
            for value in dict.fromkeys((*_values(row, old), *wanted.get(name, ()))):
                others = [one for one in self.texts.named(name) if self._value(name, one) != value]
                if others if place else not (value is None or row.is_usual(value)):
                    yield name, value

    def loadings(self) -> Iterator[Setting]:
        """Yield every single setting that loads frozen weights in the type that they may have.

        A ``dtype`` within ``model_init_kwargs`` is one of them.
        """
        word = LOADED.get(self._base or "")
        for name in dict.fromkeys(chain(self.given, self.rows)) if word else ():
            row, old = self._row(name), self._value(name)
            if row.sets != BASE_FIELD or (old is None and not self._may_add(name, row)):
                continue
            known = word in row.choices or (name, word) in self._beside
            if known or (old or "").removeprefix("torch.") in LOADED.values():
                yield name, word

    def _may_add(self, name: str, row: Flag) -> bool:
        return self._takes_base and not _is_seldom_added(name, row)

    def _value(self, name: str, at: tuple[str, Site] | None = None) -> str | None:
        """Return the given value (at a place), with its variable resolved; None: not given."""
        place = at or self.given.get(name)
        if place is None or self._is_switch(name, place):
            return None if place is None else _ON
        literals = self.texts.literals(*place)
        return literals[0][1].value if literals else place[1].value

    def _is_switch(self, name: str, place: tuple[str, Site]) -> bool:
        """Return whether an argument is given as a switch, without a value."""
        site = place[1]
        bare = site.value is None or site.value.lower() not in ("true", "false", "0", "1")
        return site.is_flag and self._row(name).type.startswith("bool") and bare and not site.variables

    def moves(self, setting: Setting) -> Iterator[Move]:
        """Yield the ways to make one setting in the texts, with what follows from it."""
        yield from self._moves_of(self._bundled(setting))
        name, value = setting
        if twins := [(one, value) for one in self._twins(name)]:  # transformers stops where they differ
            yield from self._moves_of([*self._bundled(setting), *twins])

    def _twins(self, name: str) -> list[str]:
        """Return the other names under which the files state the same size with the same value."""
        sets, old = self._row(name).sets, self._value(name)
        if sets != _MICRO or name not in self.given:
            return []
        same = [one for one in self.given if self._row(one).sets == sets and self._value(one) == old]
        places = {(file, site.begin): one for one in same[::-1] for file, site in [self.given[one]]}
        return [one for one in places.values() if one != name and self.given[one] != self.given[name]]

    def _moves_of(self, bundle: Sequence[Setting]) -> Iterator[Move]:
        ways = [list(self._ways(*one)) for one in bundle]
        if not all(ways):
            return
        for first in ways[0][:_WAYS]:
            parts = list(
                {
                    edits: (edits, change) for edits, change in (first, *(some[0] for some in ways[1:]))
                }.values()
            )
            ranks, micro = self._factors(bundle[0][0], first[1])
            yield Move(
                ranks=ranks,
                micro=micro,
                changes=tuple(change for _, change in parts),
                edits=tuple(edit for edits, _ in parts for edit in edits),
                names=frozenset(name for name, _ in bundle),
            )

    def _factors(self, name: str, change: Change) -> tuple[Fraction, Fraction]:
        """Return what a new size makes of the ranks of data parallelism, and of a rank's micro-batches."""
        sets, new = self._row(name).sets, change.new or "1"
        old = change.old if (change.old or "1").isdecimal() else self._value(name)  # else of a variable
        old = old or "1"
        if not (old.isdecimal() and new.isdecimal() and int(old) and int(new)):
            return Fraction(1), Fraction(1)
        ratio = Fraction(int(old), int(new))
        return (
            (ratio, 1 / ratio) if sets in _MESH else (Fraction(1), ratio if sets == _MICRO else Fraction(1))
        )

    def _bundled(self, setting: Setting) -> list[Setting]:
        """Return a setting with those that must change with it: what it requires, and what it excludes."""
        found, queue = dict[str, str | None](), [setting]
        while queue:
            name, value = queue.pop(0)
            if name in found:
                continue
            found[name] = value
            queue += self._following(name, value)
        return list(found.items())

    def _following(self, name: str, value: str | None) -> Iterator[Setting]:
        row = self.rows.get(name, Flag(type="text"))
        if value is None:
            yield from self._without(name)
            return
        beside = self._beside.get((name, value), ())
        yield from (one for one in beside if one[0] in self.rows and not self._has(*one))
        for one in row.requires:
            other, _, word = one.partition(" ")
            if not self._has(other, word or None):
                yield other, word or ("1" if self.rows[other].type == "int" else _ON)
        excluded = [one.partition(" ") for one in row.excludes]
        yield from ((other, None) for other, _, word in excluded if self._has(other, word or None))
        for other in self.given:
            if any(one in (name, f"{name} {value}") for one in self.rows[other].excludes):
                yield other, None

    def _without(self, name: str) -> Iterator[Setting]:
        """Yield what goes with an argument that is removed."""
        for other in self.given:
            if any(one.split(" ")[0] == name for one in self.rows[other].requires):
                yield other, None
        for (one, _), others in self._beside.items():
            yield from ((other, None) for other, _ in others if one == name and other in self.given)

    def _has(self, name: str, word: str | None = None) -> bool:
        """Return whether an argument is given, with a word if one is named."""
        if name not in self.given:
            return False
        literals = self.texts.literals(*self.given[name])
        value = literals[0][1].value if literals else self.given[name][1].value
        return word in (None, _ON, value)

    def _ways(self, name: str, value: str | None) -> Iterator[tuple[tuple[TextEdit, ...], Change]]:
        """Yield the edits that make one setting, each with the change in words."""
        row = self._row(name) if name in self.rows else Flag(type="text")
        if name not in self.given:
            if value is not None:
                yield from self._additions(name, row, value)
            return
        for file, site in self.texts.named(name)[:_WAYS]:
            yield from self._ways_at(row, name, value, (file, site))

    def _ways_at(
        self, row: Flag, name: str, value: str | None, place: tuple[str, Site]
    ) -> Iterator[tuple[tuple[TextEdit, ...], Change]]:
        file, site = place
        if self._is_switch(name, place):
            if value is None or is_off(value):
                end = site.begin + len(site.shown)
                bare = replace(site, value=None, start=end, end=end)
                gone = Change(name=site.shown, old="", new=None, file=file, line=site.line)
                yield from ((edits, gone) for edits in self.texts.removed(file, bare))
            return
        if value is None:
            gone = Change(name=site.shown, old=site.value, new=None, file=file, line=site.line)
            yield from ((edits, gone) for edits in self.texts.removed(file, self._whole(row, file, site)))
            return
        text = "true" if value == _ON else value
        whole = self._whole(row, file, site)
        if whole != site and site.variables:
            return
        shown = name if site.form == "json" and name.endswith(f".{site.shown}") else site.shown
        for edits in self.texts.replaced(file, whole, text):
            at, new = self._set_at(edits[0]), edits[0].text
            yield edits, Change(name=shown, old=at[1], new=new, file=edits[0].file, line=at[0])

    def _set_at(self, edit: TextEdit) -> tuple[int, str]:
        text = self.texts.files[edit.file]
        return text.count("\n", 0, edit.start) + 1, text[edit.start : edit.end]

    def _whole(self, row: Flag, file: str, site: Site) -> Site:
        """Return a site that covers all words of a list."""
        if site.form != "flag" or row.kind != "words" or site.value is None:
            return site
        text, end = self.texts.files[file], site.end
        while (found := _NEXT_WORD.match(text, end)) is not None:
            end = found.end()
        return replace(site, value=text[site.start : end], end=end) if end > site.end else site

    def _additions(self, name: str, row: Flag, value: str) -> Iterator[tuple[tuple[TextEdit, ...], Change]]:
        is_switch = row.type.startswith("bool")
        for file, site in self._anchors_for(name):
            if not any(name in flags_of(one) for one in self._at_home[file]):
                continue
            if site.form == "assignment" and "." in site.shown and "." not in name:  # model.name=value
                name = f"{site.shown.rpartition('.')[0]}.{name}"
            bare = is_switch and value == _ON and site.is_flag and site.value != "true"
            word = None if bare else "true" if value == _ON else value
            for edits in self.texts.added((file, site), name, word):
                shown = f"--{name}" if site.is_flag else name
                shown = shown.replace("_", "-") if site.is_flag and "_" not in site.shown else shown
                yield edits, Change(name=shown, old=None, new=word or "", file=file, line=site.line)

    def _found_anchors(self) -> dict[str, list[tuple[str, Site]]]:
        """Return given sizes, beside which arguments are added, by their sections."""
        found = dict[str, list[tuple[str, Site]]]()
        order = [*_MESH, *_DEGREES]
        places = {name: self._row(name).sets for name in self.given}
        priced = sorted(
            places, key=lambda one: order.index(places[one]) if places[one] in order else len(order)
        )
        for name in priced:
            file, site = self.given[name]
            row = self._row(name)
            if row.type.startswith("int") and (site.form != "assignment" or "." in site.shown):
                found.setdefault(name.rpartition(".")[0], []).append((file, site))
        for name in priced:  # of sections without sizes
            file, site = self.given[name]
            if site.form in ("yaml", "json", "toml", "python"):
                found.setdefault(name.rpartition(".")[0], []).append((file, site))
        return found

    def _anchors_for(self, name: str) -> list[tuple[str, Site]]:
        section = name.rpartition(".")[0]
        found = self._anchors.get(section, [])
        by_kind = {(file, site.form): (file, site) for file, site in reversed(found)}
        return list(by_kind.values())[::-1]

    def unchangeable(self) -> Iterator[tuple[str, Site]]:
        """Yield the given sizes that no literal of the files sets, with their files."""
        for name, (file, site) in self.given.items():
            row = self._row(name)
            is_size = row.sets in (*_DEGREES, "plan.recompute_granularity", "plan.zero_stage")
            is_switch = self._is_switch(name, (file, site))  # a word after it is another argument
            has_value = site.value is not None and not is_switch
            if is_size and has_value and not self.texts.literals(file, site):
                yield file, site

    def accumulations(self, micro_batches: int) -> Iterator[Move]:
        """Yield the ways to state a number of micro-batches."""
        names = [name for name, row in self.rows.items() if row.sets == "plan.num_microbatches"]
        for name in sorted(names, key=lambda one: (one not in self.given, "." in one)):
            row = self.rows[name]
            if name in self.given or not (row.of or row.until):
                for edits, change in self._ways(name, str(micro_batches)):
                    yield Move(changes=(change,), edits=edits, names=frozenset({name}))

    def accumulations_everywhere(self, micro_batches: int) -> Iterator[Move]:
        """Yield the way to state a number of micro-batches in each file that has one.

        transformers stops where its own differs from that of DeepSpeed's file.
        """
        names = [name for name in self.given if self.rows[name].sets == "plan.num_microbatches"]
        names.sort(key=lambda one: "." not in one)  # the plain name of a place counts last
        ways = [way for name in names for way in self._ways(name, str(micro_batches))]
        stated = [(edits, change) for edits, change in ways if (change.old or "").isdecimal()]
        places = {(edits[0].file, edits[0].start): (edits, change) for edits, change in stated}
        if len({file for file, _ in places}) > 1:
            edits = tuple(edit for some, _ in places.values() for edit in some)
            changes = tuple(change for _, change in places.values())
            yield Move(changes=changes, edits=edits, names=frozenset(names))

    def factors(self, factor: Fraction) -> Iterator[Move]:
        """Yield the ways to multiply a number in an expression: ``ACC`` of ``$((MBS * ACC * DP))``."""
        for file, text in self.texts.files.items():
            names = {name for found in _COMPUTED.finditer(text) for name in _WORD.findall(found[0])}
            for site in self.texts.sites[file]:
                value = site.value or ""
                is_factor = site.form == "assignment" and site.shown in names and value.isdecimal()
                if is_factor and int(value) and (int(value) * factor).denominator == 1:
                    new = str(int(int(value) * factor))
                    change = Change(name=site.shown, old=value, new=new, file=file, line=site.line)
                    edit = TextEdit(file, site.start, site.end, new)
                    yield Move(changes=(change,), edits=(edit,), names=frozenset({site.shown}))

    def replicas(self, factor: Fraction) -> Iterator[Move]:
        """Yield the ways to multiply a stated number of ranks of data parallelism."""
        for name, (file, site) in self.given.items():
            if self._row(name).sets not in _REPLICAS or name in _PROCESSES:
                continue
            literals = self.texts.literals(file, site)
            value = literals[0][1].value or "" if literals else ""
            if value.isdecimal() and int(value) and (int(value) * factor).denominator == 1:
                for edits, change in self._ways(name, str(int(int(value) * factor))):
                    yield Move(changes=(change,), edits=edits, names=frozenset({name}))


_COMPUTED = re.compile(r"\$\(\((.*?)\)\)|\$\(expr ([^)]*)\)|\blet ([^\n;]*)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_WAYS = 4  # of one setting that are tried
_NEXT_WORD = re.compile(r"[ \t]+[\w.:]+(?=[ \t\r\n\\\"']|$)")


def _is_seldom_added(name: str, row: Flag) -> bool:
    """Return whether an argument is of forks or older releases, or turns something off."""
    return bool(row.of or row.until) or name.startswith(("no_", "disable_"))


def _is_decided(row: Flag) -> bool:
    """Return whether a row sets what may be changed: the plan's own, or an option with the same results."""
    if row.role != "priced" or row.sets in _FOLLOWS:
        return False
    part, _, name = row.sets.partition(".")
    return part == "plan" or (part == "option" and name in _CHOSEN)


def _values(row: Flag, old: str | None) -> Iterable[str | None]:
    """Return the values that a row's argument can have; None: not given."""
    words = tuple(str(one) for one in (row.words or row.choices or row.priced_as))
    removed = (None,) if old is not None else ()
    if row.type.startswith("bool") or (not words and str(row.default).lower() in ("true", "false")):
        return _opposite(row, old)
    if row.sets == "plan.zero_stage" and row.most is not None and not words:
        return tuple(map(str, range(row.most + 1)))
    if row.sets in (*_DEGREES, "plan.recompute_layers") and not words:
        return (*_SIZES, *removed) if row.sets in _UNSET else _SIZES
    return (*words, *removed) if words or row.sets in _UNSET else ()


_UNSET = ("plan.virtual_pipeline_size", "plan.stage_layers")  # what one may leave to the launcher


def _without_offload(row: Flag, old: str | None) -> Iterable[str | None]:
    """Return the values with which an argument keeps nothing on the host."""
    if "none" in (row.words or row.choices):
        return ("none",) if old not in (None, "none") else ()
    is_on = row.type.startswith("bool") or str(row.default).lower() == "false"
    return _opposite(row, old) if is_on and old is not None and not is_off(old) else ()


def _opposite(row: Flag, old: str | None) -> Iterable[str | None]:
    if old is None:
        return ("false" if str(row.default).lower() == "true" else _ON,)
    if old == _ON:
        return (None,)
    return ("false" if old.lower() in ("true", "1") else "true",)
