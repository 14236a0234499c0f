"""docs/reference/models.md: which model types are planned, and what each launcher makes of them."""

from __future__ import annotations

from meshwright.profiles.capabilities import (
    Capabilities,
    exact_types,
    lacking_facts,
    launcher_capabilities,
    launchers_of,
)
from meshwright.profiles.importers.diffusers import CLASS, diffusion_classes
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.importers.huggingface_keys import config_keys
from meshwright.profiles.importers.huggingface_towers import whole_types
from meshwright.profiles.model import ModelSpec

# What a config of these types has to state, because their classes leave it open.
_BLOCKS = [
    {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
    {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
]
STATED: dict[str, dict[str, object]] = {
    "nemotron-nas": {"num_hidden_layers": 4, "block_configs": 2 * _BLOCKS},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "dbrx": {"ffn_config": {"hidden_size": 2048}},
    "bailing_moe": {"moe_intermediate_size": 1408, "use_bias": False},
    "btlm": {"activation_function": "swiglu", "position_embedding_type": "alibi"},
    "chatglm": {"multi_query_attention": True, "multi_query_group_num": 2},
    "deepseek": {"n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "replit_lm": {"alibi": True, "no_bias": True},
    **{name: {"tie_word_embeddings": False} for name, one in families().items() if one.head_of_whole},
}

_HEAD = """\
# Model types

Run `make reference` to make this page from code. You can plan a Hugging Face `config.json` of one of these
types. Its count of parameters equals the count of the model that `transformers` builds from it.
`make fuzz` draws configs of every type and compares them (`make test WITH=torch`: of a third in each test),
and `.ci/environment torch python -m tests.torch.model_table` prints the result for all types that it has.
Types of remote code are counted by their checkpoints' sizes. If your config leaves a value out, its class's
default counts.

- **exact**: the launch file states the model, and the launcher itself has built models of this type rank
  by rank with exactly the weights that are priced (`make launchers`).
- priced: the launch file states the model, or your script builds it. No builder has confirmed it.
- anything else: **refused** with these [facts](facts.md) of the type, which the launcher's files cannot
  state. Use `--launcher none` to plan it all the same.

You see each type with its class's defaults. A config with other switches may have other facts.

"""


def models_page() -> str:
    """The page."""
    launchers = [launcher_capabilities(name) for name in launchers_of("any")]
    lines = [
        "| model type | " + " | ".join(able.launcher for able in launchers) + " |",
        "|---|" + "---|" * len(launchers),
    ]
    for model_type in sorted(families()):
        model = model_from_config({"model_type": model_type, **STATED.get(model_type, {})}, name=model_type)
        cells = [_cell(able, model_type, model) for able in launchers]
        lines.append(f"| `{model_type}` | " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n\n" + _diffusers() + _towers() + _refused()


def _cell(able: Capabilities, model_type: str, model: ModelSpec) -> str:
    """What one launcher makes of one type."""
    lacking = lacking_facts(able, model)
    if lacking:
        return "; ".join(lacking)
    return "**exact**" if model_type in exact_types(able.launcher) else "priced"


_DIFFUSION = """\
## Classes of diffusers

Your config names the class as `_class_name` ([diffusion transformers](../howto/own-model.md)).

"""


def _diffusers() -> str:
    """Classes of diffusers, and what each launcher makes of them."""
    launchers = [launcher_capabilities(name) for name in launchers_of("any")]
    head = (
        "| class | "
        + " | ".join(able.launcher for able in launchers)
        + " |\n|---|"
        + "---|" * len(launchers)
    )
    rows = [
        f"| `{name}` | "
        + " | ".join(_cell(able, name, model_from_config({CLASS: name}, name=name)) for able in launchers)
        + " |"
        for name in diffusion_classes()
    ]
    return _DIFFUSION + "\n".join([head, *rows]) + "\n\n"


_TOWERS = """\
## Types with a vision or audio tower

A config of such a type has its language model in `text_config` and its tower in `vision_config` (Voxtral:
`audio_config`). Both are counted as `transformers` builds them ([images](../howto/images.md)). You can
plan all of them with `--launcher none`, and each with the launchers in its row.

| model type | language model | launchers |
|---|---|---|
"""


def _towers() -> str:
    """Types with a vision tower, and the launchers that train them."""
    able = {name: launcher_capabilities(name) for name in launchers_of("any")}
    rows = (
        f"| `{name}` | {f'`{one.text}`' if one.text else 'any planned one'} | "
        f"{', '.join(launcher for launcher, own in able.items() if own.trains_tower(name)) or '–'} |\n"
        for name, one in sorted(whole_types().items())
    )
    return _TOWERS + "".join(rows) + "\n"


def _refused() -> str:
    """Types that are refused whatever the launcher."""
    head = """\
## Types that are refused

For any other type you get an error with the nearest planned type. If your model is inside a model (vision,
audio), give the `text_config` as a separate config, with the `tie_word_embeddings` of the whole config. If
your type has the layers of a planned type, plan it under that `model_type`, or as
[a shape](../howto/own-model.md).

| model type | why |
|---|---|
"""
    return head + "".join(
        f"| `{name}` | {why} |\n" for name, why in sorted(config_keys().refused_types.items())
    )
