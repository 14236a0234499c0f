"""One step of reinforcement learning after pre-training: what is asked, and the roles that answer it.

A step of GRPO (Shao et al. 2024, arXiv:2402.03300) draws ``responses`` answers to each of ``prompts``
prompts from an inference engine, scores them, takes the log-probabilities of the policy and of a reference
model in one forward pass each, and updates the policy in ``updates`` mini-batches. Then the engine gets the
new weights. PPO also trains a critic of the policy's size: its values, and its update. It takes turns with
the policy on the same GPUs, with both models' states to the host and back, or has GPUs of its own. A reward
model reads all answers once, on GPUs of its own or in turn on those of training.

    side                max(passes x forward, values) + max(update, critic's update) + in turn + other
    in turn             both models' states, critic's values and update; the reward model's reading
    colocated           generate + reward + side + refit + swap
    apart, in turn      generate + reward + side + refit
    k steps off policy  max(generate with k batches in flight / k, reward, side) + refit

A launcher that scores answers as they end has max(generate, reward) for their sum. Where adapters of a
frozen policy are trained, the reference is the policy without them, and takes no memory of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from meshwright.profiles.adapters import ALL_LINEAR, adapter_parameters
from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.model import ModelSpec
from meshwright.solver.answer import Plan, Status
from meshwright.solver.post_training.engines import MEMORY_SHARES
from meshwright.solver.post_training.lengths import AnswerLengths
from meshwright.solver.problem import Problem

Mode = Literal["colocated", "apart", "async"]
MODES: tuple[Mode, ...] = ("colocated", "apart", "async")
MODE_WORDS: Mapping[str, str] = {
    "colocated": "colocated, in turn on the same GPUs",
    "apart": "on GPUs of their own, in turn",
    "async": "on GPUs of their own, at the same time",
}
PARTS = ("generate", "reward", "refit", "swap", "log_probabilities", "update", "critic", "other")
ALGORITHMS = ("grpo", "ppo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a launcher can put a critic and a reward model."""

    critic: tuple[str, ...] = ()  # own, turn; empty: it has none
    reward: tuple[str, ...] = ()
    reward_modes: tuple[Mode, ...] = MODES  # with a reward model
    critic_modes: tuple[Mode, ...] = MODES
    scores_as_answers_end: bool = False  # with a reward model on GPUs of its own
    modes: tuple[Mode, ...] = MODES
    engines: tuple[str, ...] = ("vllm",)  # the first is the default
    trainers: tuple[str, ...] = ("megatron", "fsdp")  # the same
    precisions: tuple[str, ...] = ("bf16", "fp8")  # of an engine's weights
    memory_shares: tuple[float, ...] = MEMORY_SHARES  # that an engine is offered
    most_steps_off: int | None = None
    offloads: bool = True  # training's states are on the host while engines run on its GPUs
    stays_awake: bool = False  # its engines may keep their memory while training runs on their GPUs
    adapts: tuple[str, ...] = ()  # trainers that train adapters of a frozen policy
    adapted: tuple[str, ...] = ALL_LINEAR  # the layers that get them, where nothing names any
    base_of: Mapping[str, str] = field(default_factory=dict)  # precision of frozen weights, by trainer
    reference_precision: str = "bf16"  # of a reference model that stays on training's GPUs
    swaps_reference: bool = False  # with adapters, too: a copy with adapters of 0 takes the policy's place
    syncs_adapters: bool = False  # engines get adapters alone, and run them beside the weights
    pads: bool = False  # answers of an update to the longest, instead of packing them
    constraints: tuple[str, ...] = ()  # on roles, in the language of search.constraints
    with_engine: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)  # fewer of these

    def able(self, what: str, engine: str) -> tuple[str, ...]:
        """Return the modes, trainers or precisions that the launcher has with an engine."""
        every: tuple[str, ...] = getattr(self, what)
        return self.with_engine.get(engine, {}).get(what, every)


PLACES: Mapping[str, Places] = {
    # NeMo-RL 0.7.0: env.reward_model.resources (nemo_rl/algorithms/grpo.py:526) are nodes of their own; a
    # batch of answers is scored when all have ended (experience/rollouts.py run_multi_turn_rollout). SGLang
    # takes new weights from DTensor workers on the same GPUs alone (grpo.py:1936,
    # dtensor_policy_worker_v2.py stream_weights_via_http). TensorRT-LLM comes after 0.7.0
    "nemo-rl": Places(
        reward=("own",),
        adapts=("megatron", "fsdp"),
        base_of={"fsdp": "fp32"},  # automodel/setup.py:671: all in one type, which FSDP requires
        swaps_reference=True,  # megatron/setup.py:1489 setup_reference_model_state
        engines=("vllm", "sglang"),
        with_engine={
            "sglang": {"modes": ("colocated",), "trainers": ("fsdp",), "precisions": ("bf16",)},
        },
    ),
    # verl 0.7.0: reward_model.enable_resource_pool (trainer/main_ppo.py:202), else the global pool; the
    # critic is in the global pool (:192). fully_async_main.py:117 has the reward model's older worker alone
    "verl": Places(
        critic=("turn",),
        reward=("own", "turn"),
        reward_modes=("colocated",),
        scores_as_answers_end=True,
        adapts=("fsdp",),  # workers/fsdp_workers.py:435; :725 has its engines' adapters
        syncs_adapters=True,
        engines=("vllm", "sglang"),
    ),
    # slime: SGLang and Megatron alone. train_async.py draws one step ahead. slime 0.2.4's critic has GPUs
    # of its own (slime/ray/placement_group.py:101); colocated, its engines take the critic's too
    "slime": Places(
        critic=("own",),
        critic_modes=("apart", "async"),
        engines=("sglang",),
        trainers=("megatron",),
        most_steps_off=1,
    ),
    # TRL 1.16.0: GRPOTrainer generates in turn (trainer/grpo_trainer.py _prepare_inputs), in its own
    # processes or with one vLLM server (generation/vllm_generation.py:300), here on one node. Nothing goes
    # to the host, and a rank pads its answers to their longest (grpo_trainer.py:2454). Engines take the
    # policy's 16-bit weights. AsyncGRPOTrainer (trl.experimental) has no command. PPO is experimental too.
    # vllm_enable_sleep_mode is off by default. peft's default adapts queries and values
    "trl": Places(
        stays_awake=True,
        reference_precision="fp32",  # trainer/model_config.py dtype: float32; grpo_trainer.py:1001
        adapts=("fsdp",),
        adapted=("q_proj", "v_proj"),
        modes=("colocated", "apart"),
        trainers=("fsdp",),
        precisions=("bf16",),
        memory_shares=(0.3, *MEMORY_SHARES),  # GRPOConfig vllm_gpu_memory_utilization: 0.3
        most_steps_off=0,
        offloads=False,
        pads=True,
        constraints=("mode != 'colocated' => rollout.num_nodes <= 1",),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What a request fixes; None: the search decides."""

    mode: Mode | None = None
    steps_off: int | None = None
    training_nodes: int | None = None
    training_group: str | None = None
    tensor_parallel_size: int | None = None  # of an engine
    memory_share: float | None = None  # of a GPU's memory that an engine takes
    rollout_nodes: int | None = None
    reward_nodes: int | None = None
    reward_tensor_parallel_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """What a trainer printed of a step, and the question that has its roles pinned."""

    asked: PostTraining
    parts_s: Mapping[str, float]  # of PARTS, those that were measured


@dataclass(frozen=True, kw_only=True)
class PostTraining:
    """The question: one step of GRPO on a pool of GPUs."""

    training: Problem  # model, the whole pool, and the policy update's workload
    launcher: str  # of PLACES
    trainer: str  # megatron, fsdp: back end of the policy
    prompts: int
    responses: int  # to each prompt
    updates: int  # mini-batches of a step
    reference: bool  # whether a reference model scores the answers
    lengths: AnswerLengths
    mean_is_assumed: bool = False  # not the user's
    reference_precision: str = "bf16"  # of the reference's weights, where they stay on training's GPUs
    algorithm: str = "grpo"  # of ALGORITHMS; ppo trains a critic as well
    reward_model: ModelSpec | None = None  # that scores the answers; None: code does
    reward_s: float = 0.0  # of a step, by code, beyond what other counts
    engine: str = "vllm"
    precision: str = "bf16"  # of the engine's weights
    sleeps: bool = True  # whether engines give their memory back while training runs on their GPUs
    max_steps_off: int = 1
    pins: Pins = field(default_factory=Pins)
    top_k: int = 3
    name: str = ""
    constraints: tuple[str, ...] = ()  # on roles; those on training's layout too
    measured: tuple[MeasuredStep, ...] = ()  # of the trainer, maybe with other roles

    @property
    def model(self) -> ModelSpec:
        """Return the policy's model."""
        return self.training.model

    @property
    def samples(self) -> int:
        """Return the answers of one step."""
        return self.prompts * self.responses

    @property
    def passes(self) -> int:
        """Return the forward passes of a step: the policy's, and the reference model's."""
        return 1 + int(self.reference)

    @property
    def adapts(self) -> bool:
        """Return whether adapters are trained: the reference is the policy without them."""
        return self.training.workload.lora_rank > 0

    @cached_property
    def trained_parameters(self) -> int:
        """Return the weights that the policy's optimizer updates."""
        work = self.training.workload
        if not self.adapts:
            return self.model.num_parameters()
        return adapter_parameters(self.model, work.lora_rank, work.lora_targets)

    @property
    def has_critic(self) -> bool:
        """Return whether a critic is trained."""
        return self.algorithm == "ppo"

    @property
    def places(self) -> Places:
        """Return what its launcher has, and where it puts a critic and a reward model."""
        return PLACES[self.launcher]

    @property
    def trained_tokens(self) -> float:
        """Return the tokens of a step's answers that training passes over, with their padding."""
        return self.samples * (self.lengths.longest if self.places.pads else self.lengths.mean)

    @cached_property
    def groups(self) -> Mapping[str, NodeGroup]:
        """Return the node groups of the pool by name."""
        return self.training.cluster.group_named


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRole:
    """The policy update on some nodes of one group."""

    group: str
    nodes: int
    gpus: int
    plan: Plan  # of an update's packed sequences
    sequences: int  # packed, of one update


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRole:
    """Engines of one layout on one group of nodes."""

    group: str
    engines: int
    tensor_parallel_size: int
    memory_share: float
    answers: int  # of a step, of the busiest engine
    running: int  # at once, at the most
    cache_tokens: int  # whose keys and values one engine holds
    generate_s: float  # of the busiest engine
    tail_s: float  # of that after nine of ten answers have ended

    @property
    def gpus(self) -> int:
        """Return the GPUs of all engines."""
        return self.engines * self.tensor_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRole:
    """A reward model or a critic: on GPUs of its own, or in turn on those of training."""

    group: str
    nodes: int
    gpus: int  # 0: in turn
    tensor_parallel_size: int = 0  # of a copy of a reward model; 0: a critic, laid out as the policy
    seconds: float  # of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """One placement of the roles, with its step."""

    plan_id: str
    rank: int
    mode: Mode
    steps_off: int
    training: TrainingRole
    rollout: tuple[EngineRole, ...]
    parts_s: Mapping[str, float]  # generate, update, refit, …; what overlaps counts in full
    step_s: float
    step_low_s: float  # 80 % interval
    step_high_s: float
    tokens_per_s_per_gpu: float  # of prompts and answers, over all GPUs of the pool
    num_gpus: int  # in use
    binds: str
    slower: float | None = None  # than the first plan, as a share
    reward: SideRole | None = None  # None: code scores the answers
    critic: SideRole | None = None  # None: there is none

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        found = asdict(self)
        found["training"]["plan"] = self.training.plan.to_json()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsOutcome:
    """The best plan if answers have other lengths than is assumed."""

    percentile: str  # mean, p90, p99: what is varied
    words: str
    step_s: float
    roles: str  # of the best plan
    changes: bool  # whether another placement is best


@dataclass(frozen=True, slots=True, kw_only=True)
class PostTrainingAnswer:
    """Ranked placements with what is proved of them."""

    status: Status
    plans: tuple[RolePlan, ...]
    bound_s: float | None  # no placement of the priced roles takes a shorter step
    choices: int  # priced placements of single roles
    searches: int  # for training layouts
    outcomes: tuple[LengthsOutcome, ...] = ()
    deciding: str = ""  # the percentile that decides the choice, or that moves the step most
    notes: tuple[str, ...] = ()
    measure_next: str = ""
    corrections: Mapping[str, float] = field(default_factory=dict)  # factors of parts, by measured steps

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {
            **found,
            "plans": [plan.to_json() for plan in self.plans],
            "outcomes": [asdict(one) for one in self.outcomes],
            "notes": list(self.notes),
            "corrections": dict(self.corrections),
        }


def role_plan_id(problem_digest: str, roles: Mapping[str, Any]) -> str:
    """Return a stable name: 12 hex digits of SHA-256 over the question and the roles."""
    text = problem_digest + json.dumps(roles, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
