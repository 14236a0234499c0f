"""A short name for what is to be decided."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from profiles.shape import model_to_mapping
from solver.problem import Problem


def problem_digest(problem: Problem) -> str:
    """SHA-256, in hex, of model, cluster, workload and launcher; the limits of the search are left out.

    Facts of the model that have their default are left out, so that a new fact changes no digest.

    So a configuration has one plan id for a problem, however many plans were asked for.
    """
    parts = {
        "model": model_to_mapping(problem.model),
        "cluster": asdict(problem.cluster),
        "workload": asdict(problem.workload),
        "launcher": problem.launcher,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
