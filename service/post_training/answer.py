"""The answer on post-training as JSON: everything that a page, a table or an export reads."""

from __future__ import annotations

from typing import Any

from meshwright.service.post_training.request import PostTrainingRequest
from meshwright.service.report.formatting import configuration_words
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.solver.post_training.problem import PostTraining, PostTrainingAnswer


def post_training_document(request: PostTrainingRequest, answer: PostTrainingAnswer) -> dict[str, Any]:
    """Return the answer with its question as plain JSON values."""
    found = answer.to_json()
    for shown, plan in zip(found["plans"], answer.plans, strict=True):
        shown["training"]["layout"] = configuration_words(plan.training.plan.config)
    return {"kind": POST_TRAINING, **question_words(request.asked), **found, "problem": request.canonical}


def question_words(asked: PostTraining) -> dict[str, Any]:
    """Return what is asked, in words and figures."""
    return {
        "name": asked.name or f"{asked.model.title}, {asked.algorithm.upper()}",
        "algorithm": asked.algorithm,
        "model": asked.model.title,
        "cluster": asked.training.cluster.title,
        "groups": {name: group.num_gpus for name, group in asked.groups.items()},
        "launcher": asked.launcher,
        "trainer": asked.trainer,
        "engine": asked.engine,
        **({} if asked.reward_model is None else {"reward_model": asked.reward_model.title}),
        "prompts": asked.prompts,
        "responses": asked.responses,
        "updates": asked.updates,
        "mean_tokens": asked.lengths.mean,
        "longest_tokens": asked.lengths.longest,
    }
