"""Classes of unlike data-parallel replicas: each node group runs its own pipelines on its share of a batch.

A class is one group with its own tp, cp, pp, micro-batch, ZeRO stage and recomputation, and as many
replicas as fit. What the groups exchange is one gradient all-reduce over the slow link; nothing inside a
step crosses it. ``n_g`` sequences go to group g, in proportion to how fast it works them off:
``S = max_g S_g(n_g) + X``, ``sum n_g = batch``, X the exchange (``NodeGroups.exchange_s``).

``S_g(n)`` is found where it is asked for: every (g, n) starts with a lower bound, that of its best option
by (A) of the slowest stage; the split of the batch that minimises the largest of them is found exactly
(reachable sums of the batch within a time, bisected), its entries are solved, and so on until the best
split has solved entries only. All others are then proved to be no better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.solver.clock import look
from meshwright.solver.configuration import RECOMPUTE, Columns, FloatArray, IntArray
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.cost.price import price, price_memory
from meshwright.solver.cost.stages import OF_EVERY_RANK, RowPrices, objective_s, step_of_end_s
from meshwright.solver.problem import Problem
from meshwright.solver.search.bounds import split_s, whole_layers_s
from meshwright.solver.search.candidates import fastest
from meshwright.solver.search.feasible import fitting
from meshwright.solver.search.fill import can_beat
from meshwright.solver.search.memory_limits import may_fit
from meshwright.solver.search.mixed.rows import (
    PRICED_AT_ONCE,
    StageOption,
    columns_of,
    contexts_of,
    largest_micro_batch,
    options_of,
    rows_in,
    with_tensor_parallel,
)
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from meshwright.solver.space.enumerate import MAX_MICRO_BATCH_SIZE
from meshwright.solver.space.request_rules import group_constraints, limited_by
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import BATCH_RULE, rules_of, violation_masks
from meshwright.solver.splits import divisors

# --------------------------------------------------------------------------------------------------
# Which share of a batch goes to which group so that the slowest is soonest done: exact, for any times.
#
# A time is enough if sums of shares within it reach the batch; the sums that g groups can reach are the
# bits of one integer, so a decision costs a few shifts.


_TOGETHER = 256  # shifts between two looks at the clock


def best_split(shares: list[FloatArray], batch: int) -> tuple[float, tuple[int, ...]]:
    """Return the least largest entry of a split of the batch over ``shares``, and that split.

    Where there is none: +inf, (). Entries (batch + 1,) by number of sequences. Bisects over the values: a
    time is enough if sums of entries within it reach the batch.
    """
    values = np.unique(np.concatenate([one[np.isfinite(one)] for one in shares]))
    low, high = 0, len(values) - 1
    if not len(values) or _sums(shares, float(values[-1]))[-1] >> batch & 1 == 0:
        return np.inf, ()
    while low < high:
        middle = (low + high) // 2
        if _sums(shares, float(values[middle]))[-1] >> batch & 1:
            high = middle
        else:
            low = middle + 1
    return float(values[low]), split_within(shares, float(values[low]), batch) or ()


def _sums(shares: list[FloatArray], limit_s: float) -> list[int]:
    """Reachable sums of the first g entries within a time, as bits."""
    reached, found = 1, [1]
    for one in shares:
        after = 0
        for at, n in enumerate(np.flatnonzero(one <= limit_s).tolist()):
            if at % _TOGETHER == 0:
                look()
            after |= reached << n
        reached = after & ((1 << len(one)) - 1)
        found.append(reached)
    return found


def split_within(shares: list[FloatArray], limit_s: float, batch: int) -> tuple[int, ...] | None:
    """A split of the batch whose entries stay within a time, the quickest at the last group first."""
    sums, left, chosen = _sums(shares, limit_s), batch, list[int]()
    if sums[-1] >> batch & 1 == 0:
        return None
    for at in range(len(shares) - 1, -1, -1):
        able = [n for n in np.flatnonzero(shares[at] <= limit_s).tolist()
                if n <= left and sums[at] >> (left - n) & 1]  # fmt: skip
        best = min(able, key=lambda n: (float(shares[at][n]), n))
        chosen.append(best)
        left -= best
    return tuple(reversed(chosen))


_ROUNDING = 1.0 - 1e-9
_BISECTIONS = 10  # of a bound over splits of the batch
_SOLVED = 8  # options that are solved at once
_AT_ONCE = 2**20  # bounds of options times micro-batches
_BATCH = 64  # options that are held against one another at once


@dataclass(frozen=True, slots=True)
class Share:
    """The best configuration of one group for its sequences."""

    columns: Columns  # one row
    split: tuple[int, ...]
    score_s: float
    objective_s: float


@dataclass
class GroupShares:
    """Least step of one group by its number of sequences."""

    fleet: NodeGroups
    options: Rows  # every configuration, with one micro-batch
    unit: IntArray  # sequences of one micro-batch of all replicas
    stage_s: FloatArray  # least slowest stage of one micro-batch
    tail_s: FloatArray  # least of its first stage
    most_micro: IntArray  # micro-batches beyond which no split fits: fewer than p are in flight
    least_s: FloatArray  # (batch + 1,) lower bound, or the score where it is known; n = 0: +inf
    bound_s: FloatArray  # (batch + 1,) no split of any option simulates faster
    objective_s: FloatArray  # (batch + 1,) no closed form of any option is less
    rules: tuple[Rule, ...]  # of the request, on the number of micro-batches
    group: int
    solved: dict[int, Share | None] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: NodeGroups, group: int, options: Rows, rules: tuple[Rule, ...]) -> GroupShares:
        """Bounds for every number of sequences."""
        columns, batch = options.columns, fleet.problem.workload.global_batch_size
        unit = columns.data_parallel_size * columns.micro_batch_size
        most = -(-options.layout.num_layers // options.p)
        whole = most * options.layer_s.min(axis=1) + options.chunk_s
        stage_s = np.maximum(whole, options.total_s / options.p)
        prices, layers = options.prices, options.layout.cumulative[-1].astype(np.float64)
        all_tails = prices.tail_s[:, :-2] @ layers + prices.tail_s[:, -2:].sum(axis=1)
        tail_s = prices.rank_tail_s + np.where(options.p == 1, all_tails, prices.tail_s[:, :-2].min(axis=1))
        columns_full = replace(columns, num_microbatches=options.p)
        roomy = fitting(replace(options, columns=columns_full))
        most_micro = np.where(roomy, batch, options.p - 1)
        least = np.full(batch + 1, np.inf)
        shares = cls(
            fleet, options, unit, stage_s, tail_s, most_micro, least, least, least.copy(), rules, group,
        )  # fmt: skip
        for size in np.unique(unit[unit <= batch]).tolist():
            every, m = np.flatnonzero(unit == size), np.arange(1, batch // size + 1)
            for own in np.split(every, range(step := _AT_ONCE // len(m) + 1, len(every), step)):
                look()
                roomy_m = m[:, None] <= most_micro[own]
                for kept, bound in (
                    (least, shares.bounds_s(own, m[:, None])),
                    (shares.objective_s, shares.objectives_s(own, m[:, None])),
                ):
                    found = np.where(roomy_m, bound, np.inf).min(axis=1)
                    kept[m * size] = np.minimum(kept[m * size], found)
        shares.bound_s = least.copy()
        return shares

    def bounds_s(self, index: IntArray, m: IntArray | int) -> FloatArray:
        """(A) of the slowest stage for options under m micro-batches."""
        prices = self.options.prices
        ends = m * self.stage_s[index] + self.tail_s[index]
        return step_of_end_s(ends, prices.straggler[index], prices.fixed_s[index]) * _ROUNDING

    def objectives_s(self, index: IntArray, m: IntArray) -> FloatArray:
        """The closed form with its least sum and least slowest stage."""
        prices = self.options.prices
        ends = self.options.total_s[index] + (m - 1.0) * self.stage_s[index] + self.tail_s[index]
        return step_of_end_s(ends, prices.straggler[index], prices.fixed_s[index]) * _ROUNDING

    @cached_property
    def counted(self) -> bool:
        """Return whether passes after the first micro-batch cost more, e.g. by adding up gradients."""
        c, batch = self.options.columns, len(self.least_s) - 1
        alike = np.stack([c.zero_stage, c.recompute, c.pipeline_parallel_size > 1], axis=1)
        some = self.options.take(np.unique(alike, axis=0, return_index=True)[1])
        many = replace(some.columns, num_microbatches=np.full(len(some), batch))
        one, other = (
            some.prices,
            price(self.fleet.problems[self.group], many, self.fleet.profiles[self.group]),
        )
        return not all(
            np.array_equal(getattr(one, name), getattr(other, name))
            for name in ("forward_s", "backward_s", "tail_s", *OF_EVERY_RANK)
        )

    @property
    def likely_s(self) -> FloatArray:
        """Return scores, estimated between known ones by how far those are above their bounds."""
        known = sorted(n for n, share in self.solved.items() if share is not None)
        if not known:
            return self.least_s
        above = np.interp(np.arange(len(self.least_s)), known, self.least_s[known] / self.bound_s[known])
        likely_s = self.bound_s * above
        likely_s[list(self.solved)] = self.least_s[list(self.solved)]
        return likely_s

    def solve(self, n: int) -> None:
        """Find the score of ``n`` sequences: options by bound, a few at a time."""
        index = self.able(n)
        bounds = self.bounds_s(index, n // self.unit[index])
        order = np.argsort(bounds, kind="stable")
        best: Share | None = None
        for start in range(0, len(order), _BATCH):
            look()
            batch = order[start : start + _BATCH]
            if best is not None and bounds[batch[0]] > best.score_s:
                break
            best = self._best_of(self.rows(index[batch], n), best)
        self.solved[n] = best
        self.least_s[n] = np.inf if best is None else best.score_s
        if best is None:
            self.bound_s[n] = np.inf

    def able(self, n: int) -> IntArray:
        """Options that can work ``n`` sequences off."""
        whole = (n % self.unit == 0) & (self.unit <= n)
        index = np.flatnonzero(whole & (n // self.unit <= self.most_micro))
        if not self.rules:
            return index
        return np.asarray(index[violation_masks(self.rules, self.rows(index, n).columns) == 0])

    def rows(self, index: IntArray, n: int) -> Rows:
        """Options under their number of micro-batches."""
        rows = self.options.take(index)
        return replace(rows, columns=replace(rows.columns, num_microbatches=n // self.unit[index]))

    def _priced(self, rows: Rows) -> Rows:
        """Return rows priced with their number of micro-batches, which cost no less than one."""
        if not self.counted:
            return rows
        problem, profile = self.fleet.problems[self.group], self.fleet.profiles[self.group]
        return replace(rows, prices=price(problem, rows.columns, profile))

    def _best_of(self, rows: Rows, best: Share | None) -> Share | None:
        """The best of ``rows`` and what was known before."""
        bounds = whole_layers_s(rows)
        order = np.argsort(bounds, kind="stable")
        for start in range(0, len(order), _SOLVED):
            limit = np.inf if best is None else best.score_s
            index = [row for row in order[start : start + _SOLVED].tolist() if bounds[row] < limit]
            if not index:
                break
            best = self._best_solved(rows.take(index), best)
        return best

    def _best_solved(self, rows: Rows, best: Share | None) -> Share | None:
        """The same for a few rows, all solved: those in question are simulated, by bound."""
        rows = self._priced(rows)
        found = best_splits(rows)
        index = [row for row, split in enumerate(found) if split is not None]
        if not index:
            return best
        rows, splits = rows.take(index), [split for split in found if split is not None]
        stages = rows.stages(splits)
        bounds, objectives = split_s(rows, stages), objective_s(rows.prices, rows.columns, stages)
        for row in np.argsort(bounds, kind="stable").tolist():
            limit = np.inf if best is None else best.score_s
            if bounds[row] >= limit:
                break
            one = rows.take([row])
            score, _ = fastest(one, [splits[row]])
            if score < limit:
                best = Share(one.columns, splits[row], score, float(objectives[row]))
        return best

    def may_step_within(self, n: int, step_s: float) -> bool:
        """Whether the bounds leave a split of some option that works ``n`` sequences off within a time."""
        if step_s < self.bound_s[n]:
            return False
        if step_s >= self.least_s[n] and n in self.solved:
            return True
        index = self.able(n)
        rows = self.rows(index[self.bounds_s(index, n // self.unit[index]) <= step_s], n)
        able = bool(can_beat(rows, np.full(len(rows), step_s)).any())
        if not able:
            self.bound_s[n] = np.nextafter(step_s, np.inf)
        return able


def shares_of(fleet: NodeGroups, *, wide: bool = False) -> list[GroupShares]:
    """Return the classes that each group can run; none where the request limits all replicas together."""
    if limits_all_replicas(fleet.problem) or len(fleet.groups) > MOST_SHARED:
        return []
    every = [rules_of(problem) for problem in fleet.problems]
    return [
        GroupShares.of(fleet, at, _options(fleet, at, rules, wide=wide), late_rules(rules))
        for at, rules in enumerate(every)
    ]


# --------------------------------------------------------------------------------------------------
# What one node group can run as a class of replicas: every configuration of as many replicas as fit.


_OF_ALL_REPLICAS = {"data_parallel_size", "num_gpus", "global_batch_size"}
_SMALL_MICRO_BATCH = 8  # up to here a class may have any, whatever divides the whole batch
MOST_SHARED = 10  # groups of which every set may share a batch
_FULL = RECOMPUTE.index("full")


def limits_all_replicas(problem: Problem) -> bool:
    """Return whether the request concerns what unlike classes only have together; then replicas are alike.

    So they are for launchers without unlike ones, and for documents of unequal length: replicas wait
    for the busiest of all, whichever group it is on.
    """
    together = bool(group_constraints(problem)) or not _OF_ALL_REPLICAS.isdisjoint(limited_by(problem))
    unable = not launcher_capabilities(problem.launcher).unlike_replicas
    return together or unable or problem.workload.lengths is not None


def late_rules(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the request's rules on the number of micro-batches, which the shares of the batch decide."""
    return tuple(rule for rule in rules if rule.of_request and "num_microbatches" in rule.name)


def sets_of(count: int) -> list[tuple[int, ...]]:
    """Return sets of two or more of ``count`` groups, the largest first."""
    return [one for size in range(count, 1, -1) for one in combinations(range(count), size)]


def _options(fleet: NodeGroups, group: int, rules: tuple[Rule, ...], *, wide: bool) -> Rows:
    """Return every configuration of one group: as many replicas as fit, one micro-batch."""
    own = [one for one in options_of(fleet) if one.group == group]
    late = {BATCH_RULE, *(rule.name for rule in late_rules(rules))}
    rules = tuple(rule for rule in rules if rule.name not in late)
    every = Columns.concatenate([_filled(fleet, _sizes(fleet, one, wide=wide), one) for one in own])
    every = every.take(np.flatnonzero(violation_masks(rules, every) == 0))
    kept = list(_that_fit(fleet, every, group))
    columns, prices = Columns.concatenate([one.columns for one in kept]), [one.prices for one in kept]
    return replace(kept[0], columns=columns, prices=RowPrices.concatenate(prices))


def _that_fit(fleet: NodeGroups, columns: Columns, group: int) -> Iterator[Rows]:
    """Yield the rows with a split that fits; others are refuted by their memory before they are priced."""
    for start in range(0, max(len(columns), 1), PRICED_AT_ONCE):
        some = columns.take(slice(start, start + PRICED_AT_ONCE))
        rows = rows_in(fleet, some, group, price_memory)
        decided = rows.is_uniform or bool(rows.only_split)
        able = fitting(rows) if decided else may_fit(rows)
        rows = rows_in(fleet, some.take(np.flatnonzero(able)), group)
        yield rows if decided else rows.take(np.flatnonzero(fitting(rows)))


def _sizes(fleet: NodeGroups, option: StageOption, *, wide: bool) -> IntArray:
    """Return (cp, ep, micro-batch, ZeRO stage, recompute, pp) that a class may have, each once, (n, 6).

    Its share of the batch is not known yet, so a micro-batch need not divide the whole batch.
    """
    problem = fleet.problem
    gpus = fleet.groups[option.group].num_gpus // option.tensor_parallel_size
    contexts = [cp for cp in contexts_of(problem, wide=wide) if cp <= gpus]
    experts = divisors(problem.model.moe.num_experts) if problem.model.moe else (1,)
    zeros, micro = launcher_capabilities(problem.launcher).zero_stages, _micro_batches(problem, wide=wide)
    found = [np.zeros((0, 6), dtype=np.int64)]
    for cp in contexts:
        look()
        stages = range(1, min(gpus // cp, problem.model.num_layers) + 1)
        grid = np.meshgrid([cp], experts, micro, zeros, range(_FULL + 1), stages, indexing="ij")
        found.append(np.stack([axis.ravel() for axis in grid], axis=1))
    return np.concatenate(found)


def _micro_batches(problem: Problem, *, wide: bool) -> list[int]:
    """Return small ones, and those that divide the whole batch; where named, or wide, others too."""
    batch, most = problem.workload.global_batch_size, largest_micro_batch(problem, wide=wide)
    small = _SMALL_MICRO_BATCH if most == MAX_MICRO_BATCH_SIZE else MAX_MICRO_BATCH_SIZE
    sizes = {size for size in divisors(batch) if size <= most} | {*range(1, min(batch, small) + 1)}
    return sorted(sizes | {int(problem.options.pin.get("micro_batch_size", 1))})


def _filled(fleet: NodeGroups, sizes: IntArray, option: StageOption) -> Columns:
    """Return options with as many replicas as fill the group, and one micro-batch."""
    cp, ep, micro, zero, again, pp = sizes.T
    replicas = fleet.groups[option.group].num_gpus // (option.tensor_parallel_size * cp * pp)
    kept = (replicas > 0) & ((zero == 0) | (replicas * cp > 1))
    shards = np.where(zero > 0, cp * replicas, 1)
    rows = np.stack([cp, replicas, ep, micro, zero, again, shards], axis=1)[kept]
    columns = columns_of(fleet.problem, rows, pp[kept], by_stage=False)
    columns = with_tensor_parallel(columns, option.tensor_parallel_size)
    return replace(columns, num_microbatches=np.ones_like(rows[:, 0]))


# --------------------------------------------------------------------------------------------------
# Which split of the batch over some groups is the best.


@dataclass(frozen=True, slots=True)
class Split:
    """The best shares of some groups."""

    groups: tuple[int, ...]
    sequences: tuple[int, ...]
    score_s: float  # with the exchange
    objective_s: float


def least_split_s(shares: list[GroupShares], groups: tuple[int, ...]) -> float:
    """The least that a split over all of ``groups`` may take without the exchange; +inf: there is none."""
    mine = [shares[at] for at in groups]
    return best_split([one.least_s for one in mine], len(mine[0].least_s) - 1)[0]


def least_step_s(shares: list[GroupShares]) -> float:
    """Return a lower bound of the step of every split over any set of groups, in s."""
    idle = [np.concatenate([[0.0], one.bound_s[1:]]) for one in shares]  # a group may have no sequences
    return best_split(idle, len(idle[0]) - 1)[0]


def split_bound_s(
    shares: list[GroupShares], groups: tuple[int, ...], exchange_s: float, limit_s: float
) -> float:
    """No split of the batch over all of ``groups`` simulates faster; at most ``limit_s``."""
    mine = [shares[at] for at in groups]
    low, _ = best_split([one.bound_s for one in mine], len(mine[0].bound_s) - 1)
    high = limit_s - exchange_s
    if not np.isfinite(low) or not _may_split_within(mine, high):
        return limit_s
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if _may_split_within(mine, middle) else (middle, high)
    return low + exchange_s


def _may_split_within(shares: list[GroupShares], step_s: float) -> bool:
    """Whether the bounds leave a split of the batch whose shares step within a time; *no* is a proof."""
    while True:
        split = split_within([one.bound_s for one in shares], step_s, len(shares[0].bound_s) - 1)
        if split is None:
            return False
        able = [one.may_step_within(n, step_s) for one, n in zip(shares, split, strict=True)]
        if all(able):
            return True


def solve_split(
    shares: list[GroupShares],
    groups: tuple[int, ...],
    exchange_s: float,
    *,
    limit_s: float = np.inf,
    proved: bool = True,
) -> Split | None:
    """The best split of the batch over all of ``groups``; None: nothing fits within the limit.

    Not ``proved``: the best by estimates, which takes a few solved shares in place of many.
    """
    mine = [shares[at] for at in groups]
    batch = len(mine[0].least_s) - 1
    while True:
        look()
        found = best_split([one.least_s if proved else one.likely_s for one in mine], batch)
        if not found[1] or found[0] + exchange_s > limit_s:
            return None
        fresh = [(one, n) for one, n in zip(mine, found[1], strict=True) if n not in one.solved]
        for one, n in fresh:
            one.solve(n)
        if not fresh:
            chosen = [one.solved[n] for one, n in zip(mine, found[1], strict=True)]
            slowest = max(share.objective_s for share in chosen if share is not None)
            return Split(groups, found[1], found[0] + exchange_s, slowest + exchange_s)
