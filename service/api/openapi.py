"""The OpenAPI document: FastAPI's own, plus the bodies that this API reads strictly by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from meshwright.launchers.reading.registry import reader_names
from meshwright.profiles.calibration import FORMAT as CALIBRATION
from meshwright.profiles.documents import SCHEMA_VERSION, VERSIONED
from meshwright.profiles.measured.profile import FORMAT as MEASURED
from meshwright.service.api.schemas import EventView
from meshwright.service.auth.keys import MAX_LIFE_DAYS, MAX_TITLE, SCOPES
from meshwright.service.fleets.question import (
    EFFORT,
    MAX_EFFORT,
    MAX_STATES,
    MAX_TIME_LIMIT_S,
    TIME_LIMIT_S,
)
from meshwright.service.fleets.request import MAX_HOURS, MAX_JOBS, MAX_STEPS, MAX_WEIGHT
from meshwright.service.fleets.running import STATES
from meshwright.service.post_training.schema import POST_TRAINING_SCHEMA
from meshwright.service.replan.request import ReplanRequest
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.jobs import AXES, MAX_DEADLINE_S, MAX_POINTS, MAX_PRIORITY, MIN_DEADLINE_S
from meshwright.service.requests.labels import MAX_LABELS, NAME_PATTERN, VALUE_PATTERN
from meshwright.service.requests.launch_files import MAX_FILES, MAX_NAME, MAX_TEXT, MAX_VARIABLES
from meshwright.service.requests.parts import SCHEMA
from meshwright.service.requests.schema import ProblemRequest
from meshwright.service.stores.shares import DEFAULT_LIFE_DAYS
from meshwright.service.stores.shares import MAX_LIFE_DAYS as MAX_LINK_LIFE_DAYS
from meshwright.solver.configuration import Configuration
from meshwright.solver.runs.table import MEMORY_KINDS, MEMORY_RANKS

EXAMPLES = Path(__file__).with_name("examples.json")  # recorded: benchmarks.reference.api_examples
SERVERS = [{"url": "/", "description": "the service that sends this document"}]
TAGS = [
    {"name": name, "description": description}
    for name, description in (
        ("jobs", "Submit a question, follow its search, and read the ranked plans."),
        (
            "fleets",
            "Share one cluster among jobs of training and post-training: nodes, layout and time of each.",
        ),
        ("plans", "Read plans of all jobs, export their launch files, verify them, report measured runs."),
        ("reports", "Read answers and plans as pages that need no service, and share them by links."),
        ("predictions", "Predict step time and memory of a configuration or a launch file of your own."),
        ("profiles", "Keep measured and calibrated profiles of your clusters."),
        ("catalogs", "Read the models, clusters and GPU types of the catalog; add your own."),
        ("keys", "Administer keys and tenants, and read what administrators did."),
        ("use", "See who used how much, and which workers are alive."),
        ("probes", "Ask whether the process lives and can serve; its metrics for Prometheus."),
    )
]
_REF = "#/components/schemas/{model}"


def json_body_of(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's ``openapi_extra`` of a route with a body of JSON of this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _partial_configuration() -> dict[str, Any]:
    whole = TypeAdapter(Configuration).json_schema(ref_template=_REF)["$defs"]["Configuration"]
    return {
        "title": "PartialConfiguration",
        "description": "A configuration. Every part is optional",
        "type": "object",
        "properties": whole["properties"],
    }


_PARTIAL = {"$ref": _REF.format(model="PartialConfiguration")}


_QUEUEING: dict[str, Any] = {
    "priority": {"type": "integer", "minimum": 0, "maximum": MAX_PRIORITY, "default": DEFAULT_PRIORITY},
    "deadline_s": {
        "type": "number",
        "description": "the job expires if no worker has started it this many seconds after submission",
        "minimum": MIN_DEADLINE_S,
        "maximum": MAX_DEADLINE_S,
    },
    "labels": {
        "type": "object",
        "description": "names and values of your own, to find the job by",
        "maxProperties": MAX_LABELS,
        "propertyNames": {"pattern": f"^{NAME_PATTERN}$"},
        "additionalProperties": {"type": "string", "pattern": f"^{VALUE_PATTERN}$"},
        "examples": [{"team": "nlp", "run": "7"}],
    },
}


_SCHEMA: dict[str, Any] = {
    SCHEMA: {"type": "string", "description": "address of this schema (/schemas/NAME.json), for editors"},
    VERSIONED: {
        "type": "integer",
        "minimum": 1,
        "maximum": SCHEMA_VERSION,
        "description": "version of this form, as our own files state it; without one, the present one",
    },
}


def _job_request() -> dict[str, Any]:
    problem = ProblemRequest.model_json_schema(ref_template=_REF)
    more: dict[str, Any] = {
        "sweep": {
            "type": "object",
            "description": "lists of values. The search covers every combination and joins the answers",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                name: {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_POINTS,
                    "items": {
                        "type": ["string", "object"]
                        if name == "cluster"
                        else ["integer", "string", "boolean"]
                    },
                }
                for name in AXES
            },
        },
        **_QUEUEING,
        **_SCHEMA,
    }
    return {
        "title": "JobRequest",
        "description": "One request to the planner, or many",
        "type": "object",
        "additionalProperties": False,
        "required": problem["required"],
        "properties": {**problem["properties"], **more},
    }


def _predictions() -> dict[str, Any]:
    """Return the bodies of a prediction: a question as a job's, and what is priced."""
    problem = ProblemRequest.model_json_schema(ref_template=_REF)
    nested = {
        "type": "object",
        "description": "the question in one part, instead of model, cluster, workload, … next to it",
    }
    return {
        name: {
            "title": name,
            "type": "object",
            "additionalProperties": False,
            "required": [next(iter(own))],
            "properties": {**problem["properties"], **_SCHEMA, "problem": nested, **own},
        }
        for name, own in _PREDICTIONS.items()
    }


def _texts_of(description: str, most: int, longest: int) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "maxProperties": most,
        "additionalProperties": {"type": "string", "maxLength": longest},
    }


_LAUNCH_FILE: dict[str, Any] = {
    "type": "object",
    "description": "a launch file of any launcher. Files that it names are looked up only in `files`",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_NAME,
            "examples": ["train.sh"],
            "description": "its extension tells its format. Default: detected from the text",
        },
        "text": {"type": "string", "maxLength": MAX_TEXT},
        "launcher": {"enum": list(reader_names()), "description": "detected from its contents if left out"},
        "files": _texts_of("files of the same folder, by name", MAX_FILES, MAX_TEXT),
        "variables": _texts_of("values of shell variables", MAX_VARIABLES, MAX_TEXT),
        "ignore": {
            "type": "array",
            "description": "flags and names of the file to ignore",
            "maxItems": MAX_VARIABLES,
            "items": {"type": "string", "maxLength": MAX_NAME},
        },
        "run": {"type": "integer", "minimum": 1, "description": "which of several runs that it starts"},
    },
}
JOB_BODY = json_body_of(
    {
        "anyOf": [
            {"$ref": _REF.format(model="JobRequest")},
            {
                "type": "object",
                "required": ["cluster", "launch_file"],
                "description": "as a JobRequest; the files give its model, workload and launcher",
                "properties": {"launch_file": _LAUNCH_FILE},
            },
            # next to how it waits: priority, deadline_s, labels
            {**POST_TRAINING_SCHEMA, "additionalProperties": True},
        ]
    }
)
_PREDICTIONS: Mapping[str, Mapping[str, Any]] = {  # by the name of their schema
    "ConfigurationPrediction": {"configuration": _PARTIAL},
    "LaunchFilePrediction": {"launch_file": _LAUNCH_FILE, "configuration": _PARTIAL},
    "PlanPrediction": {
        "plan": {
            "type": "string",
            "description": "plan_id of a plan that a job found; by default its newest job's question",
        }
    },
}
PREDICTION_BODY = json_body_of({"anyOf": [{"$ref": _REF.format(model=name)} for name in _PREDICTIONS]})

PROFILE_BODY = json_body_of(
    {
        "type": "object",
        "description": "what `meshwright calibrate --out`, `profile --out` or `import --out` writes",
        "required": ["format"],
        "properties": {"format": {"enum": [CALIBRATION, MEASURED]}},
    }
)
KEY_BODY = json_body_of(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "scope": {"enum": list(SCOPES), "default": "submit"},
            "title": {"type": "string", "maxLength": MAX_TITLE},
            "expires_in_days": {"type": "number", "minimum": 1e-5, "maximum": MAX_LIFE_DAYS},
            "max_cpu_s_per_day": {
                "type": "number",
                "description": "CPU seconds of its searches per day (UTC). Default: the service's setting",
                "minimum": 0.001,
                "maximum": 1e9,
            },
        },
    }
)
SHARE_BODY = json_body_of(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "expires_in_days": {
                "type": "number",
                "default": DEFAULT_LIFE_DAYS,
                "minimum": 1e-5,
                "maximum": MAX_LINK_LIFE_DAYS,
            },
        },
    }
)
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": _REF.format(model="EventView")},
        },
        "retry": {"type": "integer", "minimum": 0},
    },
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events named after the job's state; their data is an EventView",
        "content": {"text/event-stream": {"itemSchema": _EVENT}},  # OpenAPI 3.2's, as FastAPI has it
    },
    204: {"description": "The job has ended, and its last event was seen"},
}
_FORM = {"type": "object", "minProperties": 1}
MODEL_BODY = json_body_of(
    {**_FORM, "description": "a shape as in a problem's `model`, or a Hugging Face config.json"}
)
CLUSTER_BODY = json_body_of(
    {**_FORM, "description": "node groups as in a problem's `cluster`", "required": ["groups"]}
)
GPU_BODY = json_body_of(
    {
        **_FORM,
        "description": "a GPU type as a node group's `gpu` may state it inline",
        "properties": {
            "memory_gib": {"type": "number", "description": "or memory_bytes"},
            "hbm_gb_per_s": {"type": "number", "description": "memory bandwidth (or hbm_bytes_per_s)"},
            "peak_tflops": {
                "type": "object",
                "description": "dense peak by precision, including bf16 or fp16 (or peak_flops in FLOP/s)",
                "additionalProperties": {"type": "number"},
                "examples": [{"bf16": 1835, "fp8": 1835}],
            },
            "power_watts": {"type": "number", "description": "power that it may draw continuously"},
            "intra_node": {"type": "object", "description": "link inside a node: kind, gb_per_s"},
            "inter_node": {"type": "object", "description": "network of one GPU: kind, gb_per_s"},
            "gpus_per_node": {"type": "integer", "default": 8},
            "architecture": {"type": "string", "description": "a GPU of the catalog. Default: the nearest"},
        },
    }
)
MEASUREMENT_BODY = json_body_of(
    {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            "step_time_s": {"type": "number", "exclusiveMinimum": 0},
            "peak_memory_bytes": {"type": "integer", "minimum": 1},
            "memory_kind": {"enum": list(MEMORY_KINDS), "default": "unknown"},
            "memory_rank": {"enum": list(MEMORY_RANKS), "default": "unknown"},
            "out_of_memory": {"type": "boolean", "default": False},
        },
    }
)
_NAMES = {"type": "array", "items": {"type": "string"}}
_HOURS = {"type": "number", "minimum": 0, "maximum": MAX_HOURS}
_NODES = {"type": "integer", "minimum": 1}
_FLEET_JOB: dict[str, Any] = {
    "type": "object",
    "required": ["name", "problem", "steps"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "examples": ["chat"]},
        "problem": {
            "type": "object",
            "description": "as a ProblemRequest, or a question of kind post_training, without its cluster",
        },
        "steps": {"type": "integer", "minimum": 1, "maximum": MAX_STEPS},
        "release_hours": {**_HOURS, "description": "earliest start, from the beginning of the plan"},
        "due_hours": {**_HOURS, "description": "due date; default: never late"},
        "start_hours": {**_HOURS, "description": "pins the start"},
        "weight": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT, "default": 1},
        "least_nodes": {**_NODES, "default": 1},
        "most_nodes": _NODES,
        "nodes": {**_NODES, "description": "the only number of nodes to consider"},
        "node_counts": {"type": "array", "items": _NODES},
        "after": {**_NAMES, "description": "jobs that must have ended"},
        "never_with": {**_NAMES, "description": "jobs that never run at the same time"},
        "as_many_nodes_as": {"type": "string", "description": "a job with an equal number of nodes"},
        "kinds": {**_NAMES, "description": "on a mixed cluster: node groups that it may use"},
    },
}
_FLEET_STATE: dict[str, Any] = {
    "type": "object",
    "required": ["now_hours"],
    "additionalProperties": False,
    "properties": {
        "now_hours": {**_HOURS, "description": "time since the beginning of the plan"},
        "lost_nodes": {
            "description": "lost nodes (by kind on a mixed cluster)",
            "type": ["integer", "object"],
        },
        "jobs": {
            "type": "object",
            "description": "jobs that have begun or grown, by name",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "state": {"enum": list(STATES), "default": STATES[0]},
                    "nodes": {**_NODES, "description": "that a running job has"},
                    "kind": {"type": "string", "description": "of these nodes, on a mixed cluster"},
                    "steps_done": {"type": "integer", "minimum": 0, "default": 0},
                    "steps": {"type": "integer", "minimum": 1, "description": "of a job that has grown"},
                },
            },
        },
        "arrived": {"type": "array", "description": "new jobs", "items": _FLEET_JOB},
    },
}
FLEET_STATE_BODY = json_body_of(_FLEET_STATE)
_FLEET: dict[str, Any] = {
    "type": "object",
    "required": ["cluster", "jobs"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "description": "default: the name of the cluster"},
        "cluster": {"type": ["string", "object"], "description": "as in a ProblemRequest"},
        "jobs": {"type": "array", "minItems": 1, "maxItems": MAX_JOBS, "items": _FLEET_JOB},
        "begin": {"type": "string", "examples": ["2026-01-05T20:00"], "description": "time of hour 0"},
        "node_hour_price": {
            "type": ["number", "object"],
            "description": "price of a node-hour, or one for each kind. Cost then replaces node-hours",
        },
        "max_power_kw": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "that the GPUs of all jobs draw together at most; sets limits of their power",
        },
        "effort": {
            "type": "number",
            "description": "deterministic seconds of CP-SAT for a fleet that is hard to prove",
            "maximum": MAX_EFFORT,
            "default": EFFORT,
        },
        "seed": {"type": "integer", "minimum": 0, "default": 0},
        "skip_impossible": {
            "type": "boolean",
            "default": False,
            "description": "skip jobs without a plan and schedule the others",
        },
        "time_limit_s": {"type": "number", "maximum": MAX_TIME_LIMIT_S, "default": TIME_LIMIT_S},
        "states": {
            "type": "array",
            "maxItems": MAX_STATES,
            "description": "later states of the fleet, each planned from the result of the one before",
            "items": _FLEET_STATE,
        },
        **_QUEUEING,
        **_SCHEMA,
    },
}
FLEET_BODY = json_body_of(_FLEET)
REPLAN_BODY = json_body_of({"$ref": _REF.format(model="ReplanRequest")})


# Of files that users write, by the name of their schema.
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "problem": {"$ref": _REF.format(model="JobRequest")},
    "fleet": _FLEET,
}


def schema_of(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the JSON Schema of a file of ``SCHEMAS``, with all that it refers to in ``$defs``."""
    beginning, parts = _REF.partition("{")[0], document["components"]["schemas"]
    found: dict[str, Any] = {}

    def standalone(value: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(value, list):
            return [standalone(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        reference = value.get("$ref", "")
        if isinstance(reference, str) and reference.startswith(beginning):
            part = reference.removeprefix(beginning)
            if part not in found:
                found[part] = {}
                found[part] = standalone(parts[part])
            return {**value, "$ref": f"#/$defs/{part}"}
        return {key: standalone(one) for key, one in value.items()}

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Meshwright {name}",
        **standalone(SCHEMAS[name]),
        "$defs": dict(sorted(found.items())),
    }


def install(app: FastAPI) -> None:
    """Serve the completed document at ``/openapi.json``."""
    fastapis = app.openapi

    def completed() -> dict[str, Any]:
        document = fastapis()  # cached by FastAPI: completing it again changes nothing
        _, definitions = models_json_schema(
            [
                (ProblemRequest, "validation"),
                (ReplanRequest, "validation"),
                (EventView, "serialization"),
            ],
            ref_template=_REF,
        )
        document["components"]["schemas"].update(
            {**definitions["$defs"], **_predictions()},
            JobRequest=_job_request(),
            PartialConfiguration=_partial_configuration(),
        )
        _add_examples(document)
        return document

    app.openapi = completed  # type: ignore[method-assign]


def _add_examples(document: dict[str, Any]) -> None:
    """Show in each operation a request and the answer that a service gave to it."""
    for operation, example in json.loads(EXAMPLES.read_text(encoding="utf-8")).items():
        method, path = operation.split()
        described = document["paths"][path][method.lower()]
        if "answer" in example:
            content = described["responses"][example["status"]]["content"]
            content[example["kind"]]["example"] = example["answer"]
        for parameter in described.get("parameters", ()):
            if parameter["name"] in example.get("parameters", {}):
                parameter["example"] = example["parameters"][parameter["name"]]
        if "body" in example:
            described["requestBody"]["content"]["application/json"]["example"] = example["body"]
