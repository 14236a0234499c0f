"""One placement of the roles to be exported, and what the exporters of both launchers share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

import yaml

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.errors import FieldError, RefusedExportError
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import Configuration
from meshwright.solver.post_training.engines import MOST_RUNNING
from meshwright.solver.post_training.problem import EngineRole, PostTraining, RolePlan, SideRole
from meshwright.solver.post_training.splits import is_expressible

Values = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTarget:
    """A plan of a question, with one layout of engines, as both launchers have."""

    asked: PostTraining
    plan: RolePlan
    engine: EngineRole

    @property
    def config(self) -> Configuration:
        """Return the layout of training."""
        return self.plan.training.plan.config

    @property
    def is_colocated(self) -> bool:
        """Return whether roles take turns on the same GPUs."""
        return self.plan.mode == "colocated"

    @property
    def model_name(self) -> str:
        """Return the model's id on the Hugging Face hub; its own name if the catalog has none."""
        return hub_id(self.asked.model)

    @property
    def reward(self) -> SideRole | None:
        """Return the reward model, if it has GPUs of its own."""
        found = self.plan.reward
        return found if found is not None and found.gpus else None

    @property
    def reward_nodes(self) -> tuple[int, int]:
        """Return the nodes that the reward model has to itself and the GPUs on each; (0, 0): none."""
        role = self.reward
        return (0, 0) if role is None else (role.nodes, role.gpus // role.nodes)

    @property
    def update_answers(self) -> int:
        """Return the answers of one update."""
        return self.asked.samples // self.asked.updates

    @property
    def training_nodes(self) -> tuple[int, int]:
        """Return the nodes of training and the GPUs on each."""
        role = self.plan.training
        return role.nodes, role.gpus // role.nodes

    @property
    def rollout_nodes(self) -> tuple[int, int]:
        """Return the nodes of the engines and the GPUs on each."""
        per_node = self.asked.groups[self.engine.group].gpus_per_node
        if self.engine.gpus <= per_node and self.shares_a_node:
            return 1, self.engine.gpus
        return ceil(self.engine.gpus / per_node), per_node

    @property
    def shares_a_node(self) -> bool:
        """Return whether both roles are on GPUs of their own in one node."""
        group = self.asked.groups[self.plan.training.group]
        same = self.engine.group == self.plan.training.group
        return not self.is_colocated and same and group.num_nodes == 1

    @property
    def most_running(self) -> int:
        """Return the answers that an engine may run at once."""
        return min(MOST_RUNNING, self.engine.answers * max(self.plan.steps_off, 1))

    @property
    def pass_tokens(self) -> int:
        """Return the tokens of one micro-batch."""
        return self.config.micro_batch_size * self.asked.lengths.longest


def hub_id(model: ModelSpec) -> str:
    """Return a model's id on the Hugging Face hub; its own name if the catalog has none."""
    ids: Mapping[str, list[str]] = catalog_file(CATALOG / "model_hub_ids.yaml")
    own = ids.get(model.name)
    return own[0] if own else model.name


def role_target(asked: PostTraining, plan: RolePlan) -> RoleTarget:
    """Return the plan to be exported.

    Raises:
        RefusedExportError: its engines have several layouts, or training is not as it can be stated.
    """
    engine, *others = plan.rollout
    faults = [*_engine_faults(engine, others), *_layout_faults(asked, plan)]
    if faults:
        raise RefusedExportError(faults)
    return RoleTarget(asked=asked, plan=plan, engine=engine)


def _engine_faults(engine: EngineRole, others: list[EngineRole]) -> Iterator[FieldError]:
    layout = engine.group, engine.tensor_parallel_size, engine.memory_share
    if any((one.group, one.tensor_parallel_size, one.memory_share) != layout for one in others):
        groups = ", ".join(dict.fromkeys(one.group for one in (engine, *others)))
        yield FieldError(
            pointer="/rollout",
            message=f"engines on {groups} have several layouts, but the launcher starts all alike",
            allowed="engines of one layout on one node group",
            nearest="training: {group: …} for the group that trains, and rollout.nodes for the rest",
        )


def _layout_faults(asked: PostTraining, plan: RolePlan) -> Iterator[FieldError]:
    config = plan.training.plan.config
    layers = config.stage_layers
    if not is_expressible(layers):
        yield FieldError(
            pointer="/training/pin",
            message=f"stages of {', '.join(map(str, layers))} layers differ in the middle",
            allowed="stages that differ at the first and the last alone",
            nearest=f"training: {{pin: {{pp: {config.pipeline_parallel_size // 2}}}}}",
        )
    if asked.trainer == "fsdp" and config.expert_parallel_size > 1:
        yield FieldError(
            pointer="/training/pin", message="FSDP back ends don't share experts out here",
            allowed="ep 1, or trainer: megatron", nearest="training: {trainer: megatron}",
        )  # fmt: skip


def warnings_of(target: RoleTarget) -> Iterator[str]:
    """Yield what the files leave to the user."""
    groups = {target.plan.training.group, target.engine.group}
    if len(groups) > 1:
        yield (
            "Ray places roles on any free node: it is up to you that training gets "
            f"{target.plan.training.group} and generation {target.engine.group}"
        )
    if target.model_name == target.asked.model.name:
        yield f"{target.asked.model.name} has no known id on the hub: set the model's path"
    reward = target.asked.reward_model
    if reward is not None:
        yield f"the reward model is {hub_id(reward)}: name your checkpoint with a head of one label"
    yield "learning rate, data, rewards and checkpoints are yours: the plan doesn't depend on them"


def yaml_text(head: str, values: Values) -> str:
    """Return a YAML file with a comment at its head."""
    return head + yaml.safe_dump(values, sort_keys=False, default_flow_style=False, width=100)


def head_of(target: RoleTarget, program: str) -> str:
    """Return the comment at the head of a file: the plan, and what it was priced at."""
    plan = target.plan
    way = {"colocated": "colocated", "apart": "apart, in turn"}.get(
        plan.mode, f"apart, at most {plan.steps_off} step{'s' * (plan.steps_off > 1)} off policy"
    )
    return (
        f"# Plan {plan.plan_id} of Meshwright for {program}: {way}.\n"
        f"# Predicted: {plan.step_s:.0f} s a step, {plan.step_low_s:.0f} to {plan.step_high_s:.0f}.\n"
    )
