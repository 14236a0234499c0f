"""Reads GRPO of TRL: a command with its YAML, a YAML next to accelerate's, or a Python script.

Names and defaults: TRL 1.16.0, trainer/grpo_config.py, scripts/grpo.py, accelerate_configs. Of a script,
literal arguments of ``GRPOConfig`` count, and options of the commands in its docstring.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from meshwright.launchers.post_training.recipe import (
    A_MODEL,
    Other,
    Recipe,
    Values,
    adapters_part,
    counted,
    finite,
    mapping_of,
    model_of,
    refused,
    script_in,
    section_of,
    ways_of,
)
from meshwright.launchers.reading.own_defaults import LORA_ARGUMENTS, PEFTS_RANK
from meshwright.profiles.library import find_model
from meshwright.shell.values import UNKNOWN

ACCELERATE_FILE, SERVER_FILE = "accelerate.yaml", "serve.sh"  # of ours, next to the recipe
_NAMES = {"num_generations", "use_vllm", "vllm_mode", "steps_per_generation", "generation_batch_size"}
_STARTED = ("grpo.py", "trl.scripts.grpo")
_DEFAULTS: Values = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8,
    "num_iterations": 1, "max_completion_length": 512, "beta": 0.0, "use_vllm": False,
    "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "vllm_tensor_parallel_size": 1,
    "vllm_enable_sleep_mode": False, "gradient_checkpointing": True, "dtype": "float32", "lora_r": 16,
}  # fmt: skip
_USUAL: Values = {**_DEFAULTS, "num_processes": 8, "num_machines": 1}  # of tips
_OF_MESH = ("num_processes", "num_machines", "zero_stage")
_DTYPES = ("bfloat16", "float32", "auto")  # auto: the checkpoint's, 16-bit brain floats
_OF_LORA = ("use_dora", "lora_bias", "bias", "rank_pattern", "exclude_modules", "layers_to_transform")
# A vLLM server's own (vllm serve, trl vllm-serve), where its command states none.
_SHORT = {"-tp": "tensor_parallel_size", "-dp": "data_parallel_size"}  # of vllm serve
_SERVED: Values = {"tensor_parallel_size": 1, "data_parallel_size": 1, "gpu_memory_utilization": 0.9}
_SHIPPED = ("deepspeed_zero", "zero")  # trl/accelerate_configs and examples/accelerate_configs, by stage
_SHIPPED_GPUS, _ZERO_3 = 8, 3
_DEEPSPEED = "deepspeed"
_PROMPT_TOKENS = 512  # of a recipe that states no room for prompts
_NOT_PRICED = {
    "load_in_4bit": "a policy in 4 bits is not priced in a step yet",
    "load_in_8bit": "a policy in 8 bits is not priced in a step yet",
    "tools": "time of agents and tools is not priced: it is yours",
    "environment_factory": "time of agents and tools is not priced: it is yours",
    "rollout_func": "time of agents and tools is not priced: it is yours",
    "use_transformers_continuous_batching": "generation by transformers is not priced: vLLM's alone",
    "use_transformers_paged": "generation by transformers is not priced: vLLM's alone",
}
_FALSE = (False, "false", "False", None, "", 0, "0", "None", "no", "n", "f")
_TRUE = ("true", "yes", "t", "y", "1")
_SWITCHES = ("use_peft", "gradient_checkpointing", "vllm_enable_sleep_mode")


def read(name: str, text: str, other: Other, stated: Values) -> Recipe | None:
    """Return what a recipe of TRL fixes with ``stated`` values over it; None: the file is another's.

    Raises:
        InvalidProblemError: it is no GRPO that is priced; the field, its value and the reason.
    """
    stated = {LORA_ARGUMENTS.get(own, own): value for own, value in stated.items()}
    if name.endswith(".py"):
        return _script(text, other, stated)
    if name.endswith((".yaml", ".yml")):
        values = mapping_of(text)
        return _recipe(values, _mesh({}, other), other, stated) if is_recipe(name, text) else None
    started = [words for words in _commands(name, text) if _starts(words)]
    if not started:
        return None
    served = next((words for words in _commands(name, text) if _serves(words)), None)
    return _commanded(started[0], served, other, stated)


def is_recipe(name: str, text: str) -> bool:
    """Return whether a file is a recipe of TRL's GRPO, whatever else it states."""
    if name.endswith(".py"):
        return "GRPOTrainer" in text or "GRPOConfig" in text
    if name.endswith((".yaml", ".yml")):
        return is_yaml_of_trl(name, text)
    return any(map(_starts, _commands(name, text)))


def is_yaml_of_trl(name: str, text: str) -> bool:
    """Return whether a file is a YAML of TRL's GRPO, which does not say how it is started."""
    return name.endswith((".yaml", ".yml")) and bool(_NAMES & {*mapping_of(text)})


def _commands(name: str, text: str) -> list[list[str]]:
    return [[word.text for word in words] for words in script_in(name, text).commands]


def _starts(words: Sequence[str]) -> bool:
    by_name = any(pair[0].endswith("trl") and pair[1] == "grpo" for pair in pairwise(words))
    return by_name or any(word.endswith(_STARTED) for word in words)


def _serves(words: Sequence[str]) -> bool:
    by_name = any(pair[0].endswith("vllm") and pair[1] == "serve" for pair in pairwise(words))
    return by_name or "vllm-serve" in words


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return options by their names, with ``_`` for ``-``; switches are true."""
    found, name = dict[str, Any](), ""
    for word in words:
        if word[:1] == "-" and word[1:2].isalpha():  # not -1, which is a value
            name = _SHORT.get(word, word[1:])
            found[name] = True
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if equals else True
        elif name:
            found[name] = word if found[name] is True else f"{found[name]} {word}"
    return found


def _commanded(words: Sequence[str], served: Sequence[str] | None, other: Other, over: Values) -> Recipe:
    before, behind = _apart(words)
    options = options_of(behind)
    file = options.get("config")
    stated = {} if file is None else _beside(str(file), other)
    starts = [word.rpartition("/")[2] for word in before if word not in ("-m", "-u")]
    if not starts or any("accelerate" in word for word in starts):
        mesh: Values = _mesh({**stated, **options, **options_of(before)}, other)
    elif starts[-1].startswith("python"):
        mesh = {"num_processes": 1, "num_machines": 1}
    elif "num_processes" in over:
        mesh = {}
    else:
        program = starts[0].replace(UNKNOWN, "…")[:40]
        raise refused(
            "/num_processes", f"{program} starts the processes of training, which is not read",
            "accelerate launch, trl grpo, or python for one GPU", usual=_SHIPPED_GPUS,
        )  # fmt: skip
    own = None if served is None else options_of(served)
    return _recipe({**stated, **options}, mesh, other, over, own)


def _apart(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words that start a script, and its own; ``trl grpo`` takes both kinds behind it."""
    for at, word in enumerate(words):
        if word.endswith((".py", "trl.scripts.grpo")):
            return words[:at], words[at + 1 :]
        if word.endswith("trl") and words[at + 1 : at + 2] == ["grpo"]:
            return (), words[at + 2 :]
    return words, ()


def _beside(path: str, other: Other) -> Values:
    """Return the fields of a file that a command names, next to the recipe.

    Raises:
        InvalidProblemError: it is missing.
    """
    found = other(path.rpartition("/")[2] if UNKNOWN in path else path)
    if found is None:
        raise refused("/--config", f"{path.replace(UNKNOWN, '…')[:80]} is not next to the recipe")
    return mapping_of(found)


def _mesh(options: Values, other: Other) -> dict[str, Any]:
    """Return processes, nodes and ZeRO stage of accelerate's options or file; some may miss."""
    path = options.get("config_file") or options.get("accelerate_config") or ACCELERATE_FILE
    path = str(path)
    name = path.rpartition("/")[2]
    text = other(name if UNKNOWN in path else path)
    found = _shipped(name.removesuffix(".yaml")) if text is None else _of_file(mapping_of(text))
    named = {one: options[one] for one in _OF_MESH if one in options}
    return {**found, **named}


def _shipped(name: str) -> dict[str, Any]:
    if name == "single_gpu":
        return {"num_processes": 1, "num_machines": 1}
    if name in ("fsdp1", "fsdp2"):
        return {"num_processes": _SHIPPED_GPUS, "num_machines": 1, "zero_stage": _ZERO_3}
    stage = next((name.removeprefix(one) for one in _SHIPPED if name.startswith(one)), "")
    if stage in ("1", "2", "3") or name == "multi_gpu":
        shipped = {"num_processes": _SHIPPED_GPUS, "num_machines": 1, "zero_stage": int(stage or 0)}
        return {**shipped, **({"engine": _DEEPSPEED} if stage else {})}
    return {}


def _of_file(values: Values) -> dict[str, Any]:
    kind, found = values.get("distributed_type"), dict[str, Any]()
    if kind == "FSDP":
        reshards = str(section_of(values, "fsdp_config").get("fsdp_reshard_after_forward", "FULL_SHARD"))
        found["zero_stage"] = _ZERO_3 if reshards in ("True", "true", "FULL_SHARD") else 2
    elif kind == "DEEPSPEED":
        found["zero_stage"] = section_of(values, "deepspeed_config").get("zero_stage", 2)
        found["engine"] = _DEEPSPEED
    elif kind is not None:
        found["zero_stage"] = 0
    return {**found, **{one: values[one] for one in ("num_processes", "num_machines") if one in values}}


# --------------------------------------------------------------------------------------------------
# A Python script.


def _script(text: str, other: Other, over: Values) -> Recipe:
    try:
        tree = ast.parse(text)
    except SyntaxError as fault:
        raise refused("", f"is no Python: line {fault.lineno}") from None
    calls = {name: found for name in _CALLS for found in [_keywords(tree, name)] if found is not None}
    if not calls:
        raise refused("", "has no GRPOTrainer of TRL, the only trainer in Python that is read")
    if "AsyncGRPOConfig" in calls or "AsyncGRPOTrainer" in calls:
        reason = "AsyncGRPOTrainer, which is experimental, is not priced: GRPOTrainer alone"
        raise refused("/AsyncGRPOTrainer", reason)
    passed = calls.get("GRPOTrainer", {})
    for name in passed:  # whatever it is given
        if name in _NOT_PRICED and name != "peft_config" and name not in over:
            raise refused(f"/{name}", _NOT_PRICED[name], usual=False)
    stated = {name: value for name, value in calls.get("GRPOConfig", {}).items() if value is not ...}
    if passed.get("model") not in (None, ...):
        stated["model_name_or_path"] = passed["model"]
    lines = _docstring_commands(ast.get_docstring(tree) or "")
    commands = _commands("script.sh", lines)
    started = next((one for one in commands if any(word.endswith(".py") for word in one)), ["python"])
    served = next((words for words in commands if _serves(words)), None)
    before, behind = _apart(started)
    options = options_of(behind)
    _require_literals({**calls.get("GRPOConfig", {}), **options, **over})
    stated |= _lora_of_script(tree, passed, text, over)
    mesh = _mesh({**options, **options_of(before)}, other)
    if "launch" not in started:
        mesh = {"num_processes": 1, "num_machines": 1, **mesh}
    own = None if served is None else options_of(served)
    return _recipe({**stated, **options}, mesh, other, over, own)


def _lora_of_script(tree: ast.AST, passed: Values, text: str, over: Values) -> dict[str, Any]:
    """Return what a script's LoraConfig states, by ModelConfig's names.

    Raises:
        InvalidProblemError: the adapters are another kind, or no literals.
    """
    if "FastLanguageModel" in text:
        raise refused("/FastLanguageModel", "Unsloth's kernels and engine are not priced in a step yet")
    if _keywords(tree, "BitsAndBytesConfig") is not None:
        raise refused("/quantization_config", _NOT_PRICED["load_in_4bit"])
    wrapped = "peft_config" if passed.get("peft_config") is not None else "get_peft_model"
    if "get_peft_config" in text or (wrapped != "peft_config" and _keywords(tree, wrapped) is None):
        return {}  # of options, if at all
    found = _keywords(tree, "LoraConfig")
    if found is None:
        raise refused(f"/{wrapped}", "has no LoraConfig in the script, the only adapters that are priced")
    for name, value in found.items():
        known = LORA_ARGUMENTS.get(name, name)
        if value is ... and (name in LORA_ARGUMENTS or name in _OF_LORA) and known not in over:
            raise refused(f"/{name}", "is no literal in the script", "a literal", usual=_USUAL.get(known))
    return {
        "use_peft": True,
        "lora_r": PEFTS_RANK,
        **{LORA_ARGUMENTS.get(name, name): found[name] for name in found},
    }


def _require_literals(values: Values) -> None:
    """Refuse a script that computes what is read of it, rather than to count TRL's default.

    Raises:
        InvalidProblemError: with the argument.
    """
    for name in (*_DEFAULTS, *_NAMES, "max_prompt_length", "vllm_max_model_length"):
        if values.get(name) is ...:
            allowed = f"a literal, or --{name} …"
            raise refused(f"/{name}", "is no literal in the script", allowed, usual=_USUAL.get(name))


_CALLS = ("GRPOConfig", "GRPOTrainer", "AsyncGRPOConfig", "AsyncGRPOTrainer")


def _keywords(tree: ast.AST, name: str) -> dict[str, Any] | None:
    """Return the arguments of the first call of a name; ``...``: no literal; None: there is no call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (
            getattr(node.func, "id", ""), getattr(node.func, "attr", "")
        ):  # fmt: skip
            return {one.arg: _literal(one.value) for one in node.keywords if one.arg is not None}
    return None


def _literal(node: ast.expr) -> Any:  # noqa: ANN401 - Python
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "torch":
        return node.attr
    if isinstance(node, ast.Dict):
        return {
            key.value: _literal(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...


def _docstring_commands(text: str) -> str:
    """Return the commands in a script's docstring: lines that start one, and those that go on with it."""
    found, goes_on = list[str](), False
    for line in text.splitlines():
        words = line.strip().split()
        programs = [word for word in words if "=" not in word][:1]
        if goes_on or programs in (["python"], ["accelerate"], ["trl"], ["vllm"]):
            found.append(line)
            goes_on = line.rstrip().endswith("\\")
    return "\n".join(found)


# --------------------------------------------------------------------------------------------------
# The roles.


def _recipe(
    values: Values, mesh: Values, other: Other, over: Values, served: Values | None = None
) -> Recipe:
    whole = {**_DEFAULTS, **values, **over}
    mesh = {**mesh, **{name: over[name] for name in _OF_MESH if name in over}}
    adapts = whole.get("use_peft") not in _FALSE
    _require_priced(whole)
    notes = [*_require_mesh(mesh, adapts=adapts)]
    processes, nodes = _whole(mesh, "num_processes"), _whole(mesh, "num_machines")
    device = _whole(whole, "per_device_train_batch_size") * processes
    accumulated = _whole(whole, "gradient_accumulation_steps")
    steps = _whole({"steps_per_generation": accumulated, **whole}, "steps_per_generation")
    if "generation_batch_size" in whole:
        answers = _whole(whole, "generation_batch_size")
        steps = _divided(answers, device, "/generation_batch_size", "answers of a micro-batch")
    updates = _divided(steps, accumulated, "/steps_per_generation", "micro-batches of an update")
    responses, completion = _whole(whole, "num_generations"), _whole(whole, "max_completion_length")
    prompt = whole.get("max_prompt_length") or _PROMPT_TOKENS
    room = whole.get("vllm_max_model_length") or completion + counted(prompt, "/max_prompt_length")
    colocated = whole["vllm_mode"] == "colocate"
    rollout, beside = _engines(whole, other, served)
    where = "/model_name_or_path"
    if whole.get("model_name_or_path") in _FALSE or UNKNOWN in str(whole["model_name_or_path"]):
        model = ""  # the question's counts
    else:
        model = model_of(str(whole["model_name_or_path"]), where)
        if find_model(model).tower is not None:
            reason = f"{model}: images of prompts are not priced in a step yet"
            raise refused(where, reason, usual=A_MODEL)
    copied: dict[str, Any] = {}
    if _number(whole, "beta") > 0.0 and not adapts:
        copied["reference_precision"] = _reference_precision(whole, mesh, over)
    return Recipe(
        launcher="trl", model=model, nodes=nodes + beside, gpus_per_node=processes // nodes,
        longest_tokens=counted(room, "/vllm_max_model_length"),
        parts={
            "algorithm": {
                "prompts": _divided(device * steps, responses, "/num_generations", "answers to a prompt"),
                "responses": responses, "updates": updates,
                "reference": _number(whole, "beta") > 0.0, **copied,
            },
            "rollout": rollout,
            "training": {
                "trainer": "fsdp", "nodes": nodes, "pin": _layout(whole, mesh, adapts=adapts)
            },
            "asynchrony": ways_of(colocated=colocated, steps=0),
            **({"adapters": adapters_part(whole, model, _loaded_in(whole, over), None)} if adapts else {}),
            **_reward(whole),
        },
        notes=tuple(notes),
    )  # fmt: skip


def _layout(whole: Values, mesh: Values, *, adapts: bool) -> dict[str, Any]:
    """Return the sizes of training that a recipe fixes."""
    replays = whole["gradient_checkpointing"] not in _FALSE
    found: dict[str, Any] = {
        "dp": _whole(mesh, "num_processes"), "cp": 1,
        "mbs": _whole(whole, "per_device_train_batch_size"),
        "recompute_granularity": "full" if replays else "none",
    }  # fmt: skip
    ranks = found["dp"]
    if ranks == 1 or (adapts and _stage(mesh) != _ZERO_3):
        return {**found, "zero_stage": 0}
    return {**found, "zero_stage": _ZERO_3, "zero_shard_size": ranks}


def _reference_precision(whole: Values, mesh: Values, over: Values) -> str:
    """Return the precision of a reference model: as loaded, but for DeepSpeed's engine, which casts."""
    return "bf16" if mesh.get("engine") == _DEEPSPEED else _loaded_in(whole, over)


def _loaded_in(whole: Values, over: Values) -> str:
    """Return what weights are loaded in: fp32 by default, unless ``model_init_kwargs`` say otherwise."""
    given = whole.get("model_init_kwargs")
    stated = given.get("dtype", given.get("torch_dtype")) if isinstance(given, dict) else None
    if stated is ... and "dtype" not in over:
        raise refused("/dtype", "is no literal in the script", "a literal", usual=_DTYPES[0])
    dtype = str(whole["dtype"] if stated is None or "dtype" in over else stated)
    if dtype not in _DTYPES:
        raise refused(
            "/dtype", f"{dtype[:40]}: weights are priced as loaded in 16-bit brain floats or in fp32",
            ", ".join(_DTYPES),
        )  # fmt: skip
    return "fp32" if dtype == "float32" else "bf16"


def _reward(whole: Values) -> dict[str, Any]:
    name = whole.get("reward_model_name_or_path")
    return {} if name in _FALSE else {"reward": {"model": str(name)}}


def _engines(whole: Values, other: Other, served: Values | None) -> tuple[dict[str, Any], int]:
    """Return the engines, and the nodes that they have to themselves."""
    if whole["vllm_mode"] == "colocate":
        return {
            "engine": "vllm", "tp": _whole(whole, "vllm_tensor_parallel_size"),
            "sleep": whole["vllm_enable_sleep_mode"] not in _FALSE,
            "memory_share": _number(whole, "vllm_gpu_memory_utilization"),
        }, 0  # fmt: skip
    text = other(SERVER_FILE) if served is None else None
    if text is not None:
        served = next((options_of(one) for one in _commands(SERVER_FILE, text) if _serves(one)), None)
    if served is None:
        raise refused(
            "/vllm_mode", "server: the file has no command that starts the server",
            f"trl vllm-serve or vllm serve in the file, or in {SERVER_FILE} next to it", usual="colocate",
        )  # fmt: skip
    own = {**_SERVED, **served}
    return {
        "engine": "vllm", "tp": _whole(own, "tensor_parallel_size"),
        "memory_share": _number(own, "gpu_memory_utilization"),
    }, 1  # fmt: skip


def _require_priced(whole: Values) -> None:
    for name, reason in _NOT_PRICED.items():
        if whole.get(name) not in _FALSE:
            raise refused(f"/{name}", reason, usual=False)
    for name in _SWITCHES:
        given = whole.get(name)
        if isinstance(given, str) and given not in _FALSE and given.lower() not in _TRUE:
            raise refused(f"/{name}", f"{given[:40]} is neither true nor false", "true, false")
    if whole["use_vllm"] in _FALSE:
        reason = "false: generation by transformers is not priced"
        raise refused("/use_vllm", reason, "use_vllm: true", usual=True)
    if whole["vllm_mode"] not in ("colocate", "server"):
        raise refused("/vllm_mode", f"{str(whole['vllm_mode'])[:40]} is no mode", "colocate, server")
    if _whole(whole, "num_iterations") > 1:
        reason = "each answer is trained once in a priced step"
        raise refused("/num_iterations", f"{whole['num_iterations']}: {reason}", "1")


def _stage(mesh: Values) -> int:
    return _whole({"zero_stage": _ZERO_3, **mesh}, "zero_stage")


def _require_mesh(mesh: Values, *, adapts: bool) -> Iterator[str]:
    """Yield what is priced otherwise than a mesh is.

    Raises:
        InvalidProblemError: it is not priced.
    """
    if "num_processes" not in mesh:
        raise refused(
            "/num_processes", "is not stated: the number of training's GPUs",
            f"--num_processes, or accelerate's file next to the recipe ({ACCELERATE_FILE})",
            usual=_SHIPPED_GPUS,
        )  # fmt: skip
    stage, words = _stage(mesh), f"ZeRO {_stage(mesh)}" if _stage(mesh) else "whole replicas"
    if adapts and 0 < stage < _ZERO_3:
        yield f"{words} of adapters is priced as whole replicas, with all states of adapters on each GPU"
    elif not adapts and stage != _ZERO_3 and _whole(mesh, "num_processes") > 1:
        reason = f"{words}: the policy is priced with ZeRO 3 alone"
        raise refused("/zero_stage", reason, "FSDP, or ZeRO 3", usual=_ZERO_3)
    nodes = _whole(mesh, "num_machines")
    _divided(_whole(mesh, "num_processes"), nodes, "/num_processes", "nodes (num_machines)")


def _divided(whole: int, part: int, where: str, words: str) -> int:
    """Return how often a part is in a whole.

    Raises:
        InvalidProblemError: it is no multiple.
    """
    if whole % part:
        usual, allowed = max(whole // part, 1) * part, f"multiples of {part}"
        if where == "/num_generations":  # it is the part
            usual, allowed = math.gcd(whole, part), f"divisors of {whole}"
        raise refused(where, f"{whole} is no multiple of the {part} {words}", allowed, usual=usual)
    return whole // part


def _whole(values: Values, name: str) -> int:
    least = 0 if name == "zero_stage" else 1
    return counted(values.get(name, 1), f"/{name}", least, usual=_USUAL.get(name))


def _number(values: Values, name: str) -> float:
    return finite(values[name], f"/{name}", usual={**_SERVED, **_USUAL}.get(name))
