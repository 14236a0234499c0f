"""Drawn requests, and how they are read; UPDATE_GOLDEN=1 writes the outcomes anew.

A line holds the request of ``BASES`` that was changed, the changes by their paths, and either the sentences
that refuse the request or the values in which it is read otherwise. ``drawing.py`` drew the changes.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.configuration import assumed_values, broken_rules, completed
from meshwright.service.requests.jobs import read_job_request
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from tests.golden.answers.test_answers import values_of

FILE = Path(__file__).with_name("requests.jsonl")
BASES: Mapping[str, Mapping[str, Any]] = {
    "dense": {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 4},
        "workload": {"global_batch_size": 256, "seq_length": 8192},
    },
    "experts": {
        "model": {"name": "mixtral-8x7b"},
        "cluster": {"name": "dgx-a100", "num_nodes": 2},
        "workload": {"global_batch_size": 64, "seq_length": 4096},
        "launcher": "none",
    },
    "images": {
        "model": {
            "num_layers": 4,
            "hidden_size": 512,
            "ffn_hidden_size": 1024,
            "num_attention_heads": 8,
            "vocab_size": 1000,
            "tower": {
                "num_layers": 2,
                "hidden_size": 64,
                "ffn_hidden_size": 128,
                "num_attention_heads": 4,
                "patch_size": 16,
                "patch_inputs": 1536,
                "merged_patches": 4,
                "tile_patches": 1024,
                "projector_matrices": 256 * 512,
            },
        },
        "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1}]},
        "workload": {"global_batch_size": 32, "seq_length": 4096, "images_per_sample": 1.0},
        "launcher": "none",
    },
    "unlike nodes": {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {
            "groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}, {"gpu": "a100-sxm-80gb", "num_nodes": 2}]
        },
        "workload": {"global_batch_size": 128, "seq_length": 4096},
        "launcher": "none",
    },
}
Changes = Mapping[str, Any]


class PathError(Exception):
    """Raised where a path leads into a value without such a part."""


def request_with(base: str, changes: Changes) -> dict[str, Any]:
    """Return a base with a value at each path; a path that ends in a number changes an entry of a list."""
    request = copy.deepcopy(dict(BASES[base]))
    for path, value in changes.items():
        at: Any = request
        *sections, last = (int(one) if one.isdigit() else one for one in path.split("."))
        try:
            for section in sections:
                if isinstance(at, dict) and not isinstance(at.get(section), dict | list):
                    at[section] = {}
                at = at[section]
            at[last] = copy.deepcopy(value)
        except (IndexError, TypeError):
            raise PathError(path) from None
    return request


def read(base: str, changes: Changes) -> dict[str, Any] | str:
    """Return every value of the request as it is read, or the sentences that refuse it."""
    request = request_with(base, changes)
    own = request.pop("configuration", None)
    try:
        found = read_job_request(request, parse_problem)
        values: dict[str, Any] = {
            "problem": problem_to_mapping(found.problem),
            "points": [dict(point.values) for point in found.sweep.points] if found.sweep else [],
            "waits": [found.priority, found.deadline_s, dict(found.labels)],
        }
        if own is not None:
            configuration = completed(own, found.problem)
            values |= {
                "configuration": asdict(configuration),
                "assumed": assumed_values(own, configuration),
                "broken": broken_rules(found.problem, configuration),
            }
    except InvalidProblemError as refused:
        return " | ".join(f"{one.pointer}: {one.sentence()}" for one in refused.errors)
    return dict(values_of(json.loads(json.dumps(values))))


@cache
def usual(base: str) -> Mapping[str, Any]:
    found = read(base, {})
    assert isinstance(found, dict), found
    return found


def outcome(base: str, changes: Changes) -> object:
    """Return the sentences that refuse the changes, or what they change."""
    now, was = read(base, changes), usual(base)
    if isinstance(now, str):
        return now
    return {at: now.get(at) for at in sorted({**now, **was}) if now.get(at) != was.get(at)}


def test_drawn_requests_are_refused_or_read_as_they_were_reviewed() -> None:
    reviewed = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    found = [[base, changes, outcome(base, changes)] for base, changes, _ in reviewed]
    if os.environ.get("UPDATE_GOLDEN"):
        write(found)
        reviewed = found
    now = json.loads(json.dumps(found))
    assert [f"{was} -> {one[2]}" for was, one in zip(reviewed, now, strict=True) if was != one] == []


def write(found: list[list[Any]]) -> None:
    lines = [json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in found]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
