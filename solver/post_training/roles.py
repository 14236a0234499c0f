"""CP-SAT's model of the roles: who trains, who generates, with which engines, and how far ahead.

Variables: one literal for each way (colocated, apart, so many steps off), for each priced training layout,
and for each layout of engines on a group; whole numbers of engines by their load.
Constraints
  (1) one way; one training layout; at most one layout of engines on a group
  (2) the engines' answers cover the step's
  (3) ``generate`` is one of the priced values and bounds every engine in use
  (4) GPUs of a group: engines and training apart, or engines within training's GPUs if colocated; a reward
      model and a critic each in turn with training or on GPUs of their own, which nothing else has; engines
      next to training take no more memory than its states leave
  (5) ``step >= generate + refit`` and ``step >= side + refit`` in every way; in turn, the sum; and so with
      the reward model's reading, which ends with generation where answers are scored as they end
  (6) the request's constraints on roles, as ``limits`` writes them
Without (5) in every way the bound stays 0 for minutes. The objective is the step in milliseconds; of equal
steps the one with the fewest steps off, the fewest kinds of engines and the fewest GPUs is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.solver.clock import look, running
from meshwright.solver.post_training.calibration import Correction
from meshwright.solver.post_training.limits import add_limits
from meshwright.solver.post_training.problem import MODES, Mode
from meshwright.solver.post_training.training import TrainingPrice, critic_s, passes_s
from meshwright.solver.search.cp_sat import solved_until, solver_within, without_pandas
from meshwright.solver.search.expressions import Number
from meshwright.solver.space.expressions import written_term

MS = 1000.0
EFFORT = 20.0  # deterministic seconds
_HORIZON = 10**9
_GPUS, _KINDS = 10**6, 10**9  # more than there are: staleness comes first, then kinds of engines


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePrice:
    """One engine with one load."""

    group: str
    tensor_parallel_size: int
    memory_share: float
    answers: int  # of a step
    batches: int  # steps of answers in flight
    seconds: float  # of each step's answers: those of all batches in flight over their number
    tail_s: float
    running: int
    cache_tokens: int

    @property
    def layout(self) -> tuple[str, int, float]:
        """Return what all engines of a group have in common."""
        return self.group, self.tensor_parallel_size, self.memory_share


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPrice:
    """A reward model on so many GPUs of its own."""

    group: str
    nodes: int
    gpus: int
    tensor_parallel_size: int  # of each copy
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticPrice:
    """A critic on so many GPUs of its own."""

    group: str
    nodes: int
    gpus: int
    values_s: float
    update_s: float
    of: int | None = None  # the only training choice that it goes with, by its index


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of each role alone."""

    training: Sequence[TrainingPrice]
    engines: Sequence[EnginePrice]
    rewards: Sequence[RewardPrice] = ()  # on GPUs of its own
    critics: Sequence[CriticPrice] = ()  # the same
    has_reward_model: bool = False
    critic_takes_turns: bool = True  # it may
    scores_as_answers_end: bool = False
    gpus: Mapping[str, int]  # of each group
    samples: int
    passes: int
    critic: float = 0.0  # times the price of one: 0, or a measured step's correction
    refit_s: float
    other_s: float
    ways: Sequence[tuple[Mode, int]]  # with the steps off
    colocated_share: float  # memory that an engine may have next to a trainer
    most_rollout_gpus: Mapping[str, int] = field(default_factory=dict)
    gpus_per_node: Mapping[str, int] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()  # on roles
    corrections: Mapping[str, Correction] = field(default_factory=dict)  # that are in the prices

    def side_s(
        self, price: TrainingPrice, critic: CriticPrice | None = None, *, scores_in_turn: bool = False
    ) -> float:
        """Return the seconds of a step besides generation, refit, swap and a reward model on its own GPUs.

        ``critic``: on GPUs of its own; None: in turn, if there is one.
        """
        passes, update, turns = self.passes_s(price), price.update_s, self.critic_s(price)
        if critic is not None:
            passes, update, turns = max(passes, critic.values_s), max(update, critic.update_s), 0.0
        scoring = (price.scoring_s or 0.0) if scores_in_turn else 0.0
        return passes + update + turns + scoring + self.other_s

    def passes_s(self, price: TrainingPrice) -> float:
        """Return the seconds of the log-probabilities of a step."""
        return passes_s(self.passes, price)

    def critic_s(self, price: TrainingPrice) -> float:
        """Return the seconds of a critic in turn with the policy; 0: there is none."""
        return self.critic * critic_s(price) if self.critic else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Roles with their step, and the bound on every step of these prices."""

    mode: Mode
    steps_off: int
    training: int  # index of the prices
    engines: tuple[tuple[int, int], ...]  # (index of the prices, number of engines)
    reward: int | None = None  # index of the prices; None: in turn, or none
    critic: int | None = None  # the same
    step_s: float
    bound_s: float
    proved: bool

    def signature(self, prices: Prices) -> tuple[object, ...]:
        """Return what keeps two placements apart: way, training, layouts of engines."""
        layouts = sorted({prices.engines[at].layout for at, _ in self.engines})
        return self.mode, self.steps_off, self.training, self.reward, self.critic, tuple(layouts)


def placed(
    prices: Prices,
    *,
    ways: Collection[tuple[Mode, int]] | None = None,
    without: Collection[Placement] = (),
    effort: float = EFFORT,
) -> Placement | None:
    """Return the placement with the shortest step; None: there is none, or time ran out first.

    Args:
        prices: of each role alone.
        ways: the only ones; None: all of the prices'.
        without: placements whose way, training and layouts are not to be found again.
        effort: deterministic seconds.
    """
    model = _Model(prices)
    if not model.has_rows:
        return None
    for way, literal in model.way.items():
        if ways is not None and way not in ways:
            model.of.add(literal == 0)
    for one in without:
        model.forbid(one)
    return model.solved(effort)


class _Model:
    def __init__(self, prices: Prices) -> None:
        self.prices, self.cp = prices, without_pandas()
        self.of = self.cp.CpModel()
        self.has_rows = bool(prices.training and prices.engines and prices.ways)
        if not self.has_rows:
            return
        self.way = {way: self.of.new_bool_var(f"{way[0]}{way[1]}") for way in prices.ways}
        self.of.add_exactly_one(self.way.values())
        self.trains = [self.of.new_bool_var(f"t{at}") for at in range(len(prices.training))]
        self.of.add_exactly_one(self.trains)
        self.rewards, self.critics = self._places(len(prices.rewards)), self._places(len(prices.critics))
        if prices.critic and not prices.critic_takes_turns:
            self.of.add_bool_or(self.critics)
        for literal, one in zip(self.critics, prices.critics, strict=True):
            if one.of is not None:
                self.of.add_implication(literal, self.trains[one.of])
        for training, price in zip(self.trains, prices.training, strict=True):
            if prices.has_reward_model and price.scoring_s is None:
                self.of.add_bool_or([*self.rewards, ~training])
        self._engines()
        self._gpus()
        self._step()
        if prices.constraints:
            add_limits(self.cp, self.of, prices.constraints, self._names(), self._sizes())

    def _places(self, number: int) -> list[Any]:
        """Return a literal for each number of GPUs of its own; none of them: in turn with training."""
        found = [self.of.new_bool_var("") for _ in range(number)]
        self.of.add_at_most_one(found)
        return found

    def _engines(self) -> None:
        of, prices = self.of, self.prices
        self.layout = {row.layout: of.new_bool_var(str(row.layout)) for row in prices.engines}
        for group in prices.gpus:
            of.add_at_most_one(lit for layout, lit in self.layout.items() if layout[0] == group)
        values = sorted({_ms(row.seconds) for row in prices.engines})
        self.generate = of.new_int_var_from_domain(self.cp.Domain.from_values(values), "generate")
        self.count, self.on = [], []
        for at, row in enumerate(prices.engines):
            look()
            most = prices.gpus[row.group] // row.tensor_parallel_size
            count, on = of.new_int_var(0, most, f"e{at}"), of.new_bool_var(f"on{at}")
            of.add(count >= 1).only_enforce_if(on)
            of.add(count == 0).only_enforce_if(~on)
            of.add_implication(on, self.layout[row.layout])
            of.add(self.generate >= _ms(row.seconds)).only_enforce_if(on)
            for way, literal in self.way.items():
                if not fits(row, way, prices.colocated_share):
                    of.add_implication(on, ~literal)
            self.count.append(count)
            self.on.append(on)
        self._beside_states()
        for layout, literal in self.layout.items():
            rows = [on for on, row in zip(self.on, prices.engines, strict=True) if row.layout == layout]
            of.add_bool_or(rows).only_enforce_if(literal)
        answers = [row.answers for row in prices.engines]
        of.add(self.cp.LinearExpr.weighted_sum(self.count, answers) >= prices.samples)

    def _beside_states(self) -> None:
        """Leave out engines that take more memory than training's states leave on its GPUs."""
        together = self.way.get(("colocated", 0))
        for training, price in zip(self.trains, self.prices.training, strict=True):
            for layout, literal in self.layout.items():
                if together is not None and layout[2] > price.engine_share:
                    self.of.add_bool_or([~training, ~literal, ~together])

    def _used(self, group: str) -> Any:  # noqa: ANN401 - OR-Tools
        pairs = [
            (count, row.tensor_parallel_size)
            for count, row in zip(self.count, self.prices.engines, strict=True)
            if row.group == group
        ]
        if not pairs:
            return 0
        return self.cp.LinearExpr.weighted_sum([one for one, _ in pairs], [gpus for _, gpus in pairs])

    def _gpus(self) -> None:
        of, prices = self.of, self.prices
        colocated = self.way.get(("colocated", 0))
        for group, gpus in prices.gpus.items():
            used = self._used(group)
            trained, beside = self._trained(group), self._beside(group)
            if group in prices.most_rollout_gpus:
                of.add(used <= prices.most_rollout_gpus[group])
            if colocated is None:
                of.add(used + trained + beside <= gpus)
                continue
            of.add(used + trained + beside <= gpus).only_enforce_if(~colocated)
            of.add(used <= trained).only_enforce_if(colocated)
            of.add(trained + beside <= gpus)

    def _trained(self, group: str) -> Any:  # noqa: ANN401 - OR-Tools
        pairs = zip(self.prices.training, self.trains, strict=True)
        return sum(price.gpus * literal for price, literal in pairs if price.group == group)

    def _beside(self, group: str) -> Any:  # noqa: ANN401 - OR-Tools
        """Return the GPUs of a group that a reward model and a critic have to themselves."""
        priced: list[RewardPrice | CriticPrice] = [*self.prices.rewards, *self.prices.critics]
        rows = zip(priced, [*self.rewards, *self.critics], strict=True)
        return sum(price.gpus * literal for price, literal in rows if price.group == group)

    def _names(self) -> dict[str, Number]:
        """Return what the names of constraints on roles are."""
        prices, most, nodes = self.prices, sum(self.prices.gpus.values()), list[Any]()
        for group, each in prices.gpus_per_node.items():
            found, used = self.of.new_int_var(0, -(-prices.gpus[group] // each), group), self._used(group)
            self.of.add(found * each >= used)
            self.of.add(found * each <= used + each - 1)
            nodes.append(found)
        ways = self.way.items()
        values = {
            "mode": sum(MODES.index(mode) * literal for (mode, _), literal in ways),
            "steps_off": sum(steps * literal for (_, steps), literal in ways),
            "training.num_gpus": sum(map(self._trained, prices.gpus)),
            "training.num_nodes": sum(
                one.nodes * literal for one, literal in zip(prices.training, self.trains, strict=True)
            ),
            "rollout.num_gpus": sum(map(self._used, prices.gpus)),
            "rollout.num_nodes": sum(nodes),
            "rollout.engines": sum(self.count),
            "reward.num_gpus": _gpus(prices.rewards, self.rewards),
            "critic.num_gpus": _gpus(prices.critics, self.critics),
            **{written_term("training.gpus", group): self._trained(group) for group in prices.gpus},
            **{written_term("rollout.gpus", group): self._used(group) for group in prices.gpus},
        }
        return {name: Number(value, 0, most + max(prices.samples, 1)) for name, value in values.items()}

    def _sizes(self) -> dict[int, Any]:
        """Return, by tensor-parallel size, a literal that is true where engines have it."""
        found = dict[int, Any]()
        for (_, size, _), literal in self.layout.items():
            on = found.setdefault(size, self.of.new_bool_var(f"tp{size}"))
            self.of.add_implication(literal, on)
        return found

    def _step(self) -> None:
        of, prices = self.of, self.prices
        side = self._side()
        swap = sum(_ms(one.swap_s) * lit for one, lit in zip(prices.training, self.trains, strict=True))
        refit = _ms(prices.refit_s)
        self.step = of.new_int_var(0, _HORIZON, "step")
        scored = sum(_ms(one.seconds) * lit for one, lit in zip(prices.rewards, self.rewards, strict=True))
        ends = [self.generate, scored] if prices.scores_as_answers_end else [self.generate + scored]
        for end in (self.generate, scored, side):
            of.add(self.step >= end + refit)
        for (mode, _), literal in self.way.items():
            for end in ends if mode != "async" else ():
                whole = end + side + refit + (swap if mode == "colocated" else 0)
                of.add(self.step >= whole).only_enforce_if(literal)

    def _side(self) -> Any:  # noqa: ANN401 - OR-Tools
        """Return the milliseconds of ``Prices.side_s``."""
        prices = self.prices
        if not (self.critics or prices.has_reward_model):
            return self._of_training(prices.side_s)
        before, after = self._of_training(prices.passes_s), self._of_training(lambda one: one.update_s)
        if self.critics:
            rows = [*zip(prices.critics, self.critics, strict=True)]
            before = self._at_least(before, sum(_ms(one.values_s) * lit for one, lit in rows))
            after = self._at_least(after, sum(_ms(one.update_s) * lit for one, lit in rows))
        turns = [
            self._unless(self.critics, self._of_training(prices.critic_s)),
            self._unless(self.rewards, self._of_training(lambda one: one.scoring_s or 0.0)),
        ]
        return before + after + sum(turns) + _ms(prices.other_s)

    def _of_training(self, seconds: Callable[[TrainingPrice], float]) -> Any:  # noqa: ANN401 - OR-Tools
        rows = zip(self.prices.training, self.trains, strict=True)
        return sum(_ms(seconds(one)) * literal for one, literal in rows)

    def _at_least(self, *values: Any) -> Any:  # noqa: ANN401 - OR-Tools
        found = self.of.new_int_var(0, _HORIZON, "")
        for value in values:
            self.of.add(found >= value)
        return found

    def _unless(self, literals: Sequence[Any], value: Any) -> Any:  # noqa: ANN401 - OR-Tools
        """Return a value that counts where none of the literals is true."""
        if not literals:
            return value
        found = self.of.new_int_var(0, _HORIZON, "")
        self.of.add(found >= value).only_enforce_if([~one for one in literals])
        return found

    def forbid(self, found: Placement) -> None:
        """Rule out a placement's way, training and layouts together."""
        used = {self.prices.engines[at].layout for at, _ in found.engines}
        literals = [~self.way[found.mode, found.steps_off], ~self.trains[found.training]]
        literals += [~lit if layout in used else lit for layout, lit in self.layout.items()]
        for own, at in ((self.rewards, found.reward), (self.critics, found.critic)):
            literals += own if at is None else [~own[at]]
        self.of.add_bool_or(literals)

    def solved(self, effort: float) -> Placement | None:
        """Return the shortest step, and of those the one with the fewest kinds of engines and GPUs."""
        self.of.minimize(self.step)
        solver = solver_within(self.cp, effort)
        status = solved_until(solver, self.of, running())
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None
        step, bound = round(solver.objective_value), solver.best_objective_bound
        proved = status == self.cp.OPTIMAL
        self.of.add(self.step <= step)
        sizes = [row.tensor_parallel_size for row in self.prices.engines]
        stale = sum(steps * literal for (_, steps), literal in self.way.items())
        beside = sum(map(self._beside, self.prices.gpus))
        kinds = self.cp.LinearExpr.weighted_sum(self.count, sizes) + beside
        self.of.minimize(_KINDS * stale + _GPUS * sum(self.on) + kinds)
        tidy = solver_within(self.cp, effort / 4.0)
        if solved_until(tidy, self.of, running()) in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            solver = tidy
        return self._placement(solver, bound / MS, proved=proved)

    def _placement(self, solver: Any, bound_s: float, *, proved: bool) -> Placement:  # noqa: ANN401 - OR-Tools
        mode, steps_off = next(way for way, lit in self.way.items() if solver.value(lit))
        training = next(at for at, lit in enumerate(self.trains) if solver.value(lit))
        engines = tuple(
            (at, int(solver.value(count)))
            for at, count in enumerate(self.count)
            if solver.value(count)
        )  # fmt: skip
        reward, critic = (
            next((at for at, lit in enumerate(own) if solver.value(lit)), None)
            for own in (self.rewards, self.critics)
        )
        step_s = step_of(
            self.prices, mode, training, [at for at, _ in engines], reward=reward, critic=critic
        )
        return Placement(
            mode=mode, steps_off=steps_off, training=training, engines=engines, reward=reward,
            critic=critic, step_s=step_s, bound_s=min(bound_s, step_s), proved=proved,
        )  # fmt: skip


def fits(row: EnginePrice, way: tuple[Mode, int], colocated_share: float) -> bool:
    """Return whether an engine may be used in a way: batches in flight, memory next to a trainer."""
    mode, steps_off = way
    if mode == "colocated" and row.memory_share > colocated_share:
        return False
    return row.batches == max(steps_off, 1)


def step_of(
    prices: Prices,
    mode: Mode,
    training: int,
    engines: Collection[int],
    *,
    reward: int | None = None,
    critic: int | None = None,
) -> float:
    """Return the seconds of a step of priced roles."""
    price = prices.training[training]
    generate = max(prices.engines[at].seconds for at in engines)
    scored = 0.0 if reward is None else prices.rewards[reward].seconds
    side = prices.side_s(
        price, None if critic is None else prices.critics[critic],
        scores_in_turn=prices.has_reward_model and reward is None,
    )  # fmt: skip
    if mode == "async":
        return max(generate, scored, side) + prices.refit_s
    swap = price.swap_s if mode == "colocated" else 0.0
    answered = max(generate, scored) if prices.scores_as_answers_end else generate + scored
    return answered + side + prices.refit_s + swap


def _gpus(rows: Sequence[RewardPrice | CriticPrice], literals: Sequence[Any]) -> Any:  # noqa: ANN401 - OR-Tools
    return sum(one.gpus * literal for one, literal in zip(rows, literals, strict=True))


def _ms(seconds: float) -> int:
    return round(MS * seconds)
