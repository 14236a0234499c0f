"""A model as torchtitan 0.3 builds it: the part of the exported module that calls its builders.

Three of its families: Llama 3, Qwen3 (norms of queries and keys, mixtures of experts) and DeepSeek-V3
(latent attention, multi-token prediction). Every size is a constant at the module's head, from which
the module is read back. Calls: torchtitan 0.3.0, models/llama3, models/qwen3 and models/deepseek_v3
``__init__.py``, models/common/config_utils.py, models/common/moe.py, components/quantization/float8.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.launchers.target import Target
from meshwright.profiles.model import ModelSpec


@dataclass(frozen=True, slots=True)
class TorchtitanModelNames:
    """Names of one of torchtitan's models."""

    name: str
    classes: str  # prefix of their names
    parallelize: str
    adapter: str


LLAMA = TorchtitanModelNames("llama3", "Llama3", "parallelize_llama", "Llama3StateDictAdapter")
QWEN = TorchtitanModelNames("qwen3", "Qwen3", "parallelize_qwen3", "Qwen3StateDictAdapter")
DEEPSEEK = TorchtitanModelNames(
    "deepseek_v3", "DeepSeekV3", "parallelize_deepseekv3", "DeepSeekV3StateDictAdapter"
)


def family_of(model: ModelSpec) -> TorchtitanModelNames:
    """Return the family with the model's layers; Llama 3's have neither norms of queries nor experts."""
    if model.mla is not None:
        return DEEPSEEK
    return LLAMA if model.query_key_norm == "none" and model.moe is None else QWEN


def in_8_bits(target: Target) -> bool:
    """Return whether linear layers multiply in 8 bits."""
    workload = target.workload
    return (
        workload.precision == "fp8" or workload.framework_options.get("precision_recipe", "none") != "none"
    )


def rope_of(model: ModelSpec) -> str:
    """Return the class of the model's rotary embedding; Qwen3's pairs halves, but lacks Llama's scaling."""
    return "ComplexRoPE" if family_of(model) is not QWEN or model.rotary_scaling else "CosSinRoPE"


def rotary_factor(model: ModelSpec) -> float:
    """Return the factor of the rotary scaling; 1, which changes no frequency, without it."""
    return float(model.rotary_scaling.factor) if model.rotary_scaling else 1.0


def norm_epsilon(model: ModelSpec) -> float:
    """Return the epsilon of all norms; Llama's if the model does not state it."""
    return 1e-5 if model.norm_epsilon is None else model.norm_epsilon


def constants_of(target: Target) -> dict[str, object]:
    """Return the module's constants: all that the model's functions read."""
    model, scaling = target.model, target.model.rotary_scaling
    shape: dict[str, object] = {
        "NUM_LAYERS": model.num_layers,
        "HIDDEN_SIZE": model.hidden_size,
        "FFN_HIDDEN_SIZE": model.ffn_hidden_size,
        "NUM_HEADS": model.num_attention_heads,
        "NUM_KV_HEADS": model.num_kv_heads,
        "HEAD_DIM": model.head_dim,
        "VOCAB_SIZE": model.vocab_size,
        "MAX_SEQ_LEN": max(target.workload.seq_length, model.max_position_embeddings or 0),
        "ROTARY_BASE": float(model.rotary_base or 10_000),
        "ROTARY_SCALING": "none" if scaling is None else "yarn" if scaling.kind == "yarn" else "llama",
        "ROTARY_SCALING_FACTOR": rotary_factor(model),
        "NORM_EPSILON": norm_epsilon(model),
    }
    return shape | _latent_constants(model) | _expert_constants(model)


def _latent_constants(model: ModelSpec) -> dict[str, object]:
    mla, scaling = model.mla, model.rotary_scaling
    if mla is None:
        return {}
    return {
        "Q_LORA_RANK": mla.q_lora_rank,
        "KV_LORA_RANK": mla.kv_lora_rank,
        "QK_NOPE_HEAD_DIM": mla.qk_nope_head_dim,
        "QK_ROPE_HEAD_DIM": mla.qk_rope_head_dim,
        "V_HEAD_DIM": mla.v_head_dim,
        "ROTARY_ORIGINAL_LENGTH": 4096 if scaling is None else scaling.original_max_position_embeddings,
        "SOFTMAX_MSCALE": 1.0 if scaling is None else scaling.mscale_all_dim,
        "NUM_MTP_LAYERS": model.num_mtp_layers,
    }


def _expert_constants(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    if moe is None:
        return {}
    dense = [layer for layer, kind in enumerate(model.layer_kinds()) if kind == "dense"]
    return {
        "NUM_EXPERTS": moe.num_experts,
        "TOP_K": moe.top_k,
        "EXPERT_HIDDEN_SIZE": moe.ffn_hidden_size,
        "SHARED_HIDDEN_SIZE": moe.shared_ffn_hidden_size,
        "DENSE_LAYERS": dense,
        "ROUTER_SCORE": moe.router_score,
        "ROUTER_NORMALIZED": moe.normalized_top_k,
        "ROUTER_GROUPS": moe.router_groups or None,
        "ROUTER_TOP_GROUPS": moe.router_top_groups or None,
        "ROUTER_SCALING": float(moe.router_scaling),
        "ROUTER_BIAS": moe.selection_bias,  # all mixtures of torchtitan have one: for readers
    }


# --------------------------------------------------------------------------------------------------
# The text of the functions.


_ROPE = """\
    rope = @ROPE@.Config(
        dim=@ROTARY_DIM@,
        max_seq_len=MAX_SEQ_LEN,
        theta=ROTARY_BASE,
        scaling=ROTARY_SCALING,
        @FACTOR@=ROTARY_SCALING_FACTOR,@LENGTH@
    )"""
_GROUPED_QUERIES = """\
make_gqa_config(
            dim=HIDDEN_SIZE,
            n_heads=NUM_HEADS,
            n_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            wqkv_param_init=_LINEAR,
            wo_param_init=_LINEAR,
            inner_attention=get_attention_config("flex"),
            fuse_qkv=True,
            rope=rope,@NORM@
        )"""
_QUERY_KEY_NORM = """
            qk_norm=RMSNorm.Config(normalized_shape=HEAD_DIM, eps=NORM_EPSILON, param_init=_NORM),"""
_LATENT = """\
Attention.Config(
            dim=HIDDEN_SIZE,
            n_heads=NUM_HEADS,
            q_lora_rank=Q_LORA_RANK,
            kv_lora_rank=KV_LORA_RANK,
            qk_nope_head_dim=QK_NOPE_HEAD_DIM,
            qk_rope_head_dim=QK_ROPE_HEAD_DIM,
            v_head_dim=V_HEAD_DIM,
            mscale=SOFTMAX_MSCALE,
            wq=None if Q_LORA_RANK else linear(HIDDEN_SIZE, queries),
            wq_a=linear(HIDDEN_SIZE, Q_LORA_RANK) if Q_LORA_RANK else None,
            wq_b=linear(Q_LORA_RANK, queries) if Q_LORA_RANK else None,
            q_norm=RMSNorm.Config(normalized_shape=Q_LORA_RANK or 1, eps=NORM_EPSILON, param_init=_NORM),
            wkv_a=linear(HIDDEN_SIZE, KV_LORA_RANK + QK_ROPE_HEAD_DIM),
            kv_norm=RMSNorm.Config(normalized_shape=KV_LORA_RANK, eps=NORM_EPSILON, param_init=_NORM),
            wkv_b=linear(KV_LORA_RANK, NUM_HEADS * (QK_NOPE_HEAD_DIM + V_HEAD_DIM)),
            wo=linear(NUM_HEADS * V_HEAD_DIM, HIDDEN_SIZE),
            inner_attention=get_attention_config("flex"),
            rope=rope,
        )"""
_QUERIES = """
    queries = NUM_HEADS * (QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM)"""
_MLP = """\
make_ffn_config(
            dim=HIDDEN_SIZE,
            hidden_dim=FFN_HIDDEN_SIZE,
            w1_param_init=_LINEAR,
            w2w3_param_init=_LINEAR,
        )"""
_LAYER = '''\
def layer(@INDEX@):
    """One transformer layer."""
@ROPE_TEXT@@QUERIES@
    return @FAMILY@TransformerBlock.Config(
        attention_norm=RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM),
        ffn_norm=RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM),
        attention=@ATTENTION@,
        feed_forward=@MLP@,@MOE@
    )
'''
_PRODUCT = '''\
def linear(inputs, outputs):
    """One linear layer without a bias."""
    return Linear.Config(in_features=inputs, out_features=outputs, param_init=_LINEAR)


'''
_EXPERTS = '''\
_EXPERTS = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), _LINEAR["weight"])


def mlp(width):
    """A gated MLP."""
    return make_ffn_config(
        dim=HIDDEN_SIZE, hidden_dim=width, w1_param_init=_LINEAR, w2w3_param_init=_LINEAR
    )


def experts():
    """Routed experts, and those that see every token; a bias of the router's choice balances them.

    torchtitan has no loss that balances; its own mixtures all have this bias.
    """
    return make_moe_config(
        num_experts=NUM_EXPERTS,
        load_balance_coeff=LOAD_BALANCE,
        router=make_router_config(
            dim=HIDDEN_SIZE,
            num_experts=NUM_EXPERTS,
            gate_param_init=_LINEAR,
            top_k=TOP_K,
            score_func=ROUTER_SCORE,
            route_norm=ROUTER_NORMALIZED,
            route_scale=ROUTER_SCALING,
            num_expert_groups=ROUTER_GROUPS,
            num_limited_groups=ROUTER_TOP_GROUPS,
        ),
        routed_experts=make_routed_experts_config(
            dim=HIDDEN_SIZE,
            hidden_dim=EXPERT_HIDDEN_SIZE,
            num_experts=NUM_EXPERTS,
            top_k=TOP_K,
            param_init=_EXPERTS,
            comm_backend="standard",
        ),
        shared_experts=mlp(SHARED_HIDDEN_SIZE) if SHARED_HIDDEN_SIZE else None,
    )


'''
_MTP = '''\
def further_tokens():
    """The layers that predict further tokens, each with a layer of the last one's kind."""
    inner = layer(NUM_LAYERS - 1)
    norm = RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM)
    return [
        MTPTransformerBlock.Config(
            attention=copy.deepcopy(inner.attention),
            feed_forward=copy.deepcopy(inner.feed_forward),
            moe=copy.deepcopy(inner.moe),
            attention_norm=copy.deepcopy(norm),
            ffn_norm=copy.deepcopy(norm),
            enorm=copy.deepcopy(norm),
            hnorm=copy.deepcopy(norm),
            eh_proj=linear(2 * HIDDEN_SIZE, HIDDEN_SIZE),
            mtp_norm=copy.deepcopy(norm),
        )
        for _ in range(NUM_MTP_LAYERS)
    ]


'''
_MODEL = '''\
@PARTS@def model_spec():
    """The model as torchtitan builds it."""
    model = @FAMILY@Model.Config(
        dim=HIDDEN_SIZE,
        vocab_size=VOCAB_SIZE,@TIED@
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=HIDDEN_SIZE, param_init=_EMBEDDING
        ),
        norm=RMSNorm.Config(normalized_shape=HIDDEN_SIZE, eps=NORM_EPSILON, param_init=_NORM),
        lm_head=Linear.Config(in_features=HIDDEN_SIZE, out_features=VOCAB_SIZE, param_init=_LINEAR),
        layers=[layer(@EACH@) for @EACH_NAME@ in range(NUM_LAYERS)],@MTP@
    )@CONVERTED@
    return ModelSpec(
        name="@NAME@",
        flavor="@FLAVOR@",
        model=model,
        parallelize_fn=@PARALLELIZE@,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=@HOOK@,
        state_dict_adapter=@ADAPTER_NAME@,
    )'''
_CONVERTED = """
    # Products in 8 bits, every row with its scale; the output head and routers stay in bf16.
    for converter in (@CONVERTERS@):
        model = converter.build().convert(model)"""
_LINEAR_CONVERTER = (
    'Float8LinearConverter.Config(filter_fqns=["lm_head", "router.gate"], model_compile_enabled=True),'
)
_EXPERT_CONVERTER = " Float8GroupedExpertsConverter.Config(model_compile_enabled=True),"
_TIED = """
        enable_weight_tying=True,"""
_LOAD_BALANCE = """
LOAD_BALANCE = 1e-3  # torchtitan's own: how fast the bias of the router's choice moves"""


_LINE = 110  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """The model's part of the module."""

    imports: list[str]  # lines, or several if one is too long
    standard: str  # imports from Python's own library
    constants: str
    functions: str
    loss: str


def model_text(target: Target, flavor: str) -> ModelText:
    """Return the text of one model, which is registered as ``flavor``."""
    model, family = target.model, family_of(target.model)
    shape = constants_of(target)
    adapted = family is not QWEN or model.query_key_norm != "none"  # Qwen3's names for Qwen3's layers
    words = {
        "PARTS": _parts(target),
        "TIED": _TIED if model.tied_embeddings else "",
        "EACH_NAME": "index" if model.moe else "_",
        "EACH": "index" if model.moe else "",
        "MTP": "\n        mtp_layers=further_tokens()," if model.num_mtp_layers else "",
        "CONVERTED": _converted(target),
        "HOOK": "register_moe_load_balancing_hook" if model.moe else "None",
        "ADAPTER_NAME": family.adapter if adapted else "None",
        "FLAVOR": flavor,
        "FAMILY": family.classes,
        "NAME": family.name,
        "PARALLELIZE": family.parallelize,
    }
    constants = "\n".join(f"{name} = {value!r}" for name, value in shape.items())
    return ModelText(
        imports=_imports(target, adapted=adapted),
        standard="import copy\nimport os" if model.num_mtp_layers else "import os",
        constants=constants + (_LOAD_BALANCE if model.moe else ""),
        functions=_filled(_MODEL, words),
        loss="MTPLoss" if model.num_mtp_layers else "CrossEntropyLoss",
    )


def _filled(text: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


def _imports(target: Target, *, adapted: bool) -> list[str]:
    model, family = target.model, family_of(target.model)
    latent, routed, further = model.mla is not None, model.moe is not None, model.num_mtp_layers > 0
    builders = ["get_attention_config", "make_ffn_config", *([] if latent else ["make_gqa_config"])]
    builders += ["make_moe_config", "make_routed_experts_config", "make_router_config"] if routed else []
    own = f"models.{family.name}"
    names = {
        "components.loss": [] if further else ["CrossEntropyLoss"],
        "components.optimizer": [
            "default_adamw",
            *(["register_moe_load_balancing_hook"] if routed else []),
        ],
        "models.common": [rope_of(model), "Embedding", "Linear", "RMSNorm"],
        "models.common.config_utils": builders,
        f"{own}.model": ["Attention"] * latent
        + [f"{family.classes}Model", f"{family.classes}TransformerBlock"],
        f"{own}.mtp": ["MTPLoss", "MTPTransformerBlock"] if further else [],
        f"{own}.parallelize": [family.parallelize],
        f"{own}.state_dict_adapter": [family.adapter] if adapted else [],
    }
    if in_8_bits(target):
        names["components.quantization"] = [
            *(["Float8GroupedExpertsConverter"] if routed else []), "Float8LinearConverter",
        ]  # fmt: skip
    return [_import(module, found) for module, found in names.items() if found]


def _import(module: str, names: list[str]) -> str:
    line = f"from torchtitan.{module} import {', '.join(names)}"
    if len(line) <= _LINE:
        return line
    inner = "".join(f"    {name},\n" for name in names)
    return f"from torchtitan.{module} import (\n{inner})"


def _converted(target: Target) -> str:
    """Return the converters to 8 bits; nothing in 16."""
    if not in_8_bits(target):
        return ""
    return _CONVERTED.replace(
        "@CONVERTERS@", _LINEAR_CONVERTER + (_EXPERT_CONVERTER if target.model.moe else "")
    )


def _parts(target: Target) -> str:
    model = target.model
    latent, routed = model.mla is not None, model.moe is not None
    norm = _QUERY_KEY_NORM if model.query_key_norm == "per_head" else ""
    yarn = model.rotary_scaling is not None and model.rotary_scaling.kind == "yarn"
    layer = _filled(
        _LAYER,
        {
            "INDEX": "index" if routed else "",
            "ROPE_TEXT": _ROPE,
            "ROPE": rope_of(model),
            "ROTARY_DIM": "QK_ROPE_HEAD_DIM" if latent else "HEAD_DIM",
            "FACTOR": "rope_factor" if yarn else "scaling_factor",
            "LENGTH": "\n        original_seq_len=ROTARY_ORIGINAL_LENGTH," if latent else "",
            "QUERIES": _QUERIES if latent else "",
            "ATTENTION": _LATENT if latent else _GROUPED_QUERIES.replace("@NORM@", norm),
            "MLP": "mlp(FFN_HIDDEN_SIZE) if index in DENSE_LAYERS else None" if routed else _MLP,
            "MOE": "\n        moe=None if index in DENSE_LAYERS else experts()," if routed else "",
        },
    )
    parts = [_PRODUCT if latent else "", _EXPERTS if routed else "", layer + "\n\n"]
    return "".join(parts) + (_MTP if model.num_mtp_layers else "")
