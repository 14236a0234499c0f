"""Questions on post-training: what is read, and what is refused with the nearest that works."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.post_training.request import read_post_training
from meshwright.service.post_training.schema import POST_TRAINING_SCHEMA
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.post_training.plan import plan_post_training, question_digest
from meshwright.solver.post_training.problem import MODES

REQUEST: dict[str, Any] = {
    "kind": "post_training",
    "model": "qwen3-8b",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]},
    "algorithm": {"name": "grpo", "prompts": 128, "responses": 16, "updates": 2},
    "lengths": {"prompt": 200, "mean": 2500, "max": 8192},
    "launcher": "nemo-rl",
}
ONE_GPU = {"cluster": {"groups": [{"gpu": "h200-sxm-141gb", "num_nodes": 1, "gpus_per_node": 1}]}}
REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"lengths": {"mean": 9000, "max": 90000}}, "/lengths/max", "40960"),
    ({"lengths": {"mean": 9000, "max": 8192}}, "/lengths/mean", "4196"),
    ({"lengths": {"percentiles": {"p50": 2000}}}, "/lengths/percentiles/p100", None),
    ({"lengths": {"percentiles": {"p50": 2000, "p100": 1000}}}, "/lengths/percentiles/p100", "2000"),
    ({"algorithm": {"name": "ppo", "prompts": 8, "responses": 8}}, "/algorithm/name", "grpo"),  # of verl
    ({"algorithm": {"name": "vapo", "prompts": 8, "responses": 8}}, "/algorithm/name", None),
    ({"algorithm": {"prompts": 3, "responses": 5, "updates": 2}}, "/algorithm/updates", "1"),
    ({"rollout": {"engine": "sglang"}, "training": {"trainer": "megatron"}}, "/training/trainer", "fsdp"),
    ({"rollout": {"engine": "sglang"}, "asynchrony": {"mode": "async"}}, "/asynchrony/mode", "colocated"),
    ({"rollout": {"engine": "trtllm"}}, "/rollout/engine", "vllm"),
    ({"launcher": "slime", "rollout": {"engine": "TensorRT-LLM"}}, "/rollout/engine", "sglang"),
    ({"launcher": "areal"}, "/launcher", "nemo-rl"),
    ({"launcher": "trl", "asynchrony": {"mode": "async"}}, "/asynchrony/mode", "colocated"),
    ({"launcher": "trl", "rollout": {"precision": "fp8"}}, "/rollout/precision", "bf16"),
    ({"launcher": "trl", "training": {"trainer": "megatron"}}, "/training/trainer", "fsdp"),
    ({"launcher": "slime", "rollout": {"engine": "vllm"}}, "/rollout/engine", "sglang"),
    ({"launcher": "slime", "training": {"trainer": "fsdp"}}, "/training/trainer", "megatron"),
    ({"launcher": "slime", "reward": {"model": "qwen3-8b"}}, "/reward/model", "launcher: verl"),
    (
        {"launcher": "slime", "asynchrony": {"max_steps_off": 3, "steps_off": 2}},
        "/asynchrony/steps_off",
        "1",
    ),
    (
        {
            "launcher": "slime",
            "algorithm": {"name": "ppo", "prompts": 8, "responses": 8},
            "asynchrony": {"mode": "colocated"},
        },
        "/asynchrony/mode",
        "apart",
    ),
    ({"launcher": "slime", "adapters": {"rank": 8}}, "/adapters/rank", "launcher: nemo-rl"),
    (
        {"launcher": "verl", "adapters": {"rank": 8}},  # under Megatron, its default
        "/adapters/rank",
        "training: {trainer: fsdp}",
    ),
    (
        {"training": {"trainer": "fsdp"}, "adapters": {"rank": 8, "base_precision": "bf16"}},
        "/adapters/base_precision",
        "fp32",
    ),
    ({"launcher": "trl", "adapters": {"rank": 8, "targets": ["linear_qkv"]}}, "/adapters/targets", None),
    (
        {"launcher": "trl", "adapters": {"rank": 8, "base_precision": "nf4"}},
        "/adapters/base_precision",
        None,
    ),
    ({"rollout": {"sleep": False}}, "/rollout/sleep", "true"),
    ({"launcher": "trl", "rollout": {"sleep": False}}, "/rollout/sleep", "true"),
    ({"rollout": {"tp": 3}}, "/rollout/tp", "2"),
    ({"rollout": {"nodes": 3}}, "/rollout/nodes", "2"),
    ({"reward": {"nodes": 1}}, "/reward/nodes", None),  # code scores
    ({"reward": {"model": "qwen3-8b", "nodes": 3}}, "/reward/nodes", "2"),
    ({"reward": {"model": "qwen3-8b", "tp": 3}}, "/reward/tp", "2"),
    ({"reward": {"model": "qwen3-9b"}}, "/reward/model/name", "qwen3-8b or qwen3-4b or qwen3-32b"),
    ({"reward": {"model": "olmo-2-7b"}}, "/reward/model", "lengths: {max: 4096}"),
    (
        {"launcher": "verl", "reward": {"model": "qwen3-8b"}, "asynchrony": {"mode": "async"}},
        "/asynchrony/mode",
        "colocated",
    ),
    ({"asynchrony": {"max_steps_off": 0, "mode": "async"}}, "/asynchrony/mode", "apart"),
    ({"asynchrony": {"max_steps_off": 1, "steps_off": 2}}, "/asynchrony/steps_off", "1"),
    ({"training": {"group": "b200"}}, "/training/group", None),
    ({"cluster": {"groups": [{"gpu": "v100-sxm-32gb", "num_nodes": 4}]}}, "/cluster", None),  # no bf16
    ({"model": "jamba-v0.1"}, "/model/mixer", None),
    ({"model": "qwen3-vl-8b"}, "/model/tower", None),
    ({"launcher": "verl", "reward": {"model": "qwen3-vl-8b"}}, "/reward/model/tower", None),
    ({"lenghts": {}}, "/lenghts", "lengths"),
    *(
        ({"search": {"constraints": ["steps_off <= 1", text]}}, "/search/constraints/1", nearest)
        for text, nearest in {
            "rollout.nodes <= 2": "rollout.num_nodes",
            "training.tensor_paralel_size <= 2": "training.tensor_parallel_size",
            "mode == 'asink'": "async",
            "training.tp <= rollout.tp": None,
            "rollout.gpus('h100') <= 8": "rollout.gpus('h100-sxm-80gb')",
        }.items()
    ),
]
SMALL = {"model": "llama-3.2-1b", "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1}]}}
IMPOSSIBLE: list[tuple[dict[str, Any], str, str | None]] = [
    ({"model": "llama-3.1-70b", "rollout": {"tp": 1}}, "/rollout/tp", "4"),
    ({**SMALL, "search": {"constraints": ["rollout.engines > 99"]}}, "/search/constraints/0", None),
    ({**SMALL, "search": {"constraints": ["training.dp == 7"]}}, "/search/constraints/0", None),
    ({"model": "llama-3.2-1b", "asynchrony": {"mode": "apart"}, **ONE_GPU}, "/cluster", None),
    ({**SMALL, "model": "deepseek-v3"}, "/rollout/engine", "precision: fp8 and 2 nodes"),
    ({**SMALL, "reward": {"model": "llama-3.1-405b"}}, "/reward/model", None),
    ({"model": "llama-3.2-1b", "reward": {"model": "qwen3-8b"}, **ONE_GPU}, "/cluster", None),
    ({**SMALL, "reward": {"model": "llama-3.1-70b", "tp": 1}}, "/reward/tp", "4"),
    (
        {"model": "llama-3.1-70b", "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1}]}},
        "/cluster",
        "4 nodes",
    ),
]


@pytest.mark.parametrize(("changes", "pointer", "nearest"), REFUSED)
def test_what_cannot_be_is_refused_by_its_field(
    changes: dict[str, Any], pointer: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read_post_training({**REQUEST, **changes})
    found = {error.pointer: error.nearest for error in caught.value.errors}
    assert found == {pointer: nearest}


def test_what_a_question_lacks_is_named_with_what_it_may_be() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read_post_training({"model": "qwen3-8b", "gpus": "8xH100", "algorithm": {"name": "grpo"}})
    assert [error.sentence() for error in caught.value.errors] == [
        "algorithm.prompts: is required. Allowed: 1 to 1048576",
        "algorithm.responses: is required. Allowed: 1 to 4096",
        "lengths: is required. Allowed: an object, as in {prompt: 200, mean: 2500, max: 8192}",
        'gpus: unknown field. Nearest: cluster, as in "cluster: 8xH100"',
    ]


@pytest.mark.parametrize(("changes", "pointer", "nearest"), IMPOSSIBLE)
def test_a_pool_without_room_for_a_role_names_what_would_hold_it(
    changes: dict[str, Any], pointer: str, nearest: str | None
) -> None:
    asked = read_post_training({**REQUEST, **changes}).asked
    with pytest.raises(InvalidProblemError) as caught:
        plan_post_training(asked)
    (error,) = caught.value.errors
    assert error.pointer == pointer
    assert nearest in (None, error.nearest)


def test_a_plan_keeps_constraints_on_roles_and_on_the_layout_of_training() -> None:
    kept = ["rollout.num_gpus == 3 * training.num_gpus", "mode != 'colocated'", "training.zero_stage == 0"]
    answer = plan_post_training(
        read_post_training({**REQUEST, **SMALL, "search": {"constraints": kept}}).asked
    )
    for plan in answer.plans:
        assert sum(role.gpus for role in plan.rollout) == 3 * plan.training.gpus
        assert plan.mode != "colocated"
        assert plan.training.plan.config.zero_stage == 0


def test_a_critic_trains_in_turn_with_the_policy() -> None:
    of_verl = {**REQUEST, **SMALL, "launcher": "verl", "asynchrony": {"mode": "colocated"}}
    grpo, ppo = (
        plan_post_training(
            read_post_training({**of_verl, "algorithm": {**REQUEST["algorithm"], "name": name}}).asked
        ).plans[0]
        for name in ("grpo", "ppo")
    )
    assert grpo.parts_s["critic"] == 0.0
    assert ppo.parts_s["critic"] > ppo.parts_s["update"]
    assert ppo.step_s == pytest.approx(sum(ppo.parts_s.values()))


def test_a_critic_of_slime_has_as_many_gpus_of_its_own_as_the_policy() -> None:
    of_slime = {**REQUEST, **SMALL, "launcher": "slime"}
    ppo = {**REQUEST["algorithm"], "name": "ppo"}
    for plan in plan_post_training(read_post_training({**of_slime, "algorithm": ppo}).asked).plans:
        role, parts = plan.critic, plan.parts_s
        assert role is not None
        assert role.gpus == plan.training.gpus
        assert plan.num_gpus <= 8
        passes, update = parts["log_probabilities"], parts["update"]
        values = role.seconds - update  # its update takes what the policy's does
        side = max(passes, values) + update + parts["other"]
        answered = parts["generate"]
        step = max(answered, side) if plan.mode == "async" else answered + side
        assert plan.step_s == pytest.approx(step + parts["refit"])


@pytest.mark.parametrize("launcher", ["nemo-rl", "verl"])
def test_a_reward_model_has_gpus_of_its_own_or_takes_turns(launcher: str) -> None:
    """NeMo-RL's has its own; verl's either. Both score what code leaves, and a step waits for both."""
    of_reward = {"model": "qwen3-8b", "seconds": 9.0}
    asked = read_post_training({**REQUEST, **SMALL, "launcher": launcher, "reward": of_reward}).asked
    plans = plan_post_training(asked).plans
    assert {plan.mode for plan in plans} == ({"colocated"} if launcher == "verl" else set(MODES))
    for plan in plans:
        role, parts = plan.reward, plan.parts_s
        assert role is not None
        assert parts["other"] == 4.0 + 9.0
        assert launcher == "verl" or role.gpus
        assert plan.num_gpus <= 8
        side = parts["log_probabilities"] + parts["update"] + parts["other"] + parts["swap"]
        scored = role.gpus > 0 and (launcher == "verl" or plan.mode == "async")
        answered = (
            max(parts["generate"], parts["reward"]) if scored else parts["generate"] + parts["reward"]
        )
        step = max(answered, side) if plan.mode == "async" else answered + side
        assert plan.step_s == pytest.approx(step + parts["refit"])


def test_a_head_of_one_label_replaces_what_predicts_tokens() -> None:
    for name in ("llama-3.2-1b", "deepseek-v3"):  # a tied head, a prediction layer
        model = read_post_training({**REQUEST, "reward": {"model": name}}).asked.reward_model
        assert model is not None
        assert (model.num_labels, model.tied_embeddings, model.num_mtp_layers) == (1, False, 0)


def test_plans_of_rewards_that_take_longer_have_other_names() -> None:
    rewards: tuple[dict[str, Any], ...] = (
        {},
        {"seconds": 9.0},
        {"model": "qwen3-8b"},
        {"model": "qwen3-8b", "seconds": 9.0},
    )
    asked = [read_post_training({**REQUEST, "reward": reward}).asked for reward in rewards]
    assert len({question_digest(one) for one in asked}) == len(rewards)


def test_the_stored_question_reads_as_itself() -> None:
    first = read_post_training({**REQUEST, "reward": {"model": "llama-3.2-1b"}})
    again = read_post_training(first.canonical)
    assert (again.asked, again.canonical) == (first.asked, first.canonical)


def test_commands_for_training_name_the_kind() -> None:
    with pytest.raises(InvalidProblemError, match="question of its own"):
        parse_problem(REQUEST)


def test_the_schema_lists_the_fields_that_are_read() -> None:
    """Each field of the schema is known to the reader, whatever its value."""
    for part in ("algorithm", "lengths", "rollout", "training", "reward", "asynchrony", "search"):
        for name in POST_TRAINING_SCHEMA["properties"][part]["properties"]:
            with pytest.raises(InvalidProblemError) as caught:
                read_post_training({**REQUEST, part: {name: {"x": [1]}}})
            unknown = [error for error in caught.value.errors if "unknown field" in error.message]
            assert not [error for error in unknown if error.pointer == f"/{part}/{name}"]
