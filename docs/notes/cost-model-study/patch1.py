import re,pathlib
def sub(p,a,b,n=1):
    f=pathlib.Path(p); s=f.read_text(); assert a in s,(p,a[:60]); f.write_text(s.replace(a,b,n))
# --- facts
sub("profiles/frameworks.py",'''    precision_recipe: str = "none"  # recipe of fp8 / fp4 runs
''','''    precision_recipe: str = "none"  # recipe of fp8 / fp4 runs
    cuda_graph: str = ""  # scope; empty: cuda_graphs decides
    moe_dispatcher: str = ""  # empty: deepep-like default
    moe_grouped_mlp_fused: bool = False
    moe_permute_fusion: bool = True
    moe_force_balance: bool = False
    delay_wgrad: bool = False
    recompute_modules: str = ""
    launch_blocking: bool = False
    expert_overlap_known: bool = False
''')
sub("profiles/frameworks.py",'''    if isinstance(current, bool) and value''','''    if isinstance(current, str):
        return value
    if isinstance(current, bool) and value''')
# --- reader
sub("solver/run_shapes.py",'''    if cells.text("framework_family") == "megatron-core" and precision == "fp8":
''','''    for column, option in (("tp_comm_overlap", "overlap_tensor"), ("expert_overlap", "overlap_experts"),
                           ("moe_grouped_mlp_fused", "moe_grouped_mlp_fused"), ("moe_permute_fusion", "moe_permute_fusion"),
                           ("moe_router_force_balance", "moe_force_balance"), ("delay_wgrad", "delay_wgrad"),
                           ("overlap_grad_reduce", "overlap_gradients")):
        value = cells.flag(column)
        if value is not None:
            options[option] = value
    for column, option in (("cuda_graph", "cuda_graph"), ("moe_dispatcher", "moe_dispatcher"), ("recompute_modules", "recompute_modules")):
        value = cells.text(column)
        if value is not None:
            options[option] = value
    if cells.text("cluster") == "jeanzay-a100":
        options["launch_blocking"] = True
    if cells.text("framework_family") == "megatron-core" and precision == "fp8":
''')
sub("solver/run_shapes.py",'''        moe=_moe_of(cells),
''','''        moe=_moe_of(cells),
        num_mtp_layers=cells.count("mtp_layers") or 0,
''')
sub("solver/run_layouts.py",'''    if model.moe is None or tp == 1:
        return 1
''','''    if model.moe is None or tp == 1:
        return 1
    if cells.count("expert_tensor_parallel_size"):
        return cells.count("expert_tensor_parallel_size") or 1
''')
# --- floor
sub("solver/cost/floor.py",'''    floor_s = ctx.constants.floor_s * ctx.operators.host
    floor_s = floor_s * (ctx.constants.floor_moe if kind == "moe" else 1.0)
    return np.full_like(ctx.t, 1.0) * floor_s * (_GRAPHED[kind] if ctx.facts.cuda_graphs else 1.0)
''','''    floor_s = ctx.constants.floor_s * ctx.operators.host
    floor_s = floor_s * (ctx.constants.floor_moe if kind == "moe" else 1.0)
    across = (ctx.p > 1) & (ctx.columns.num_gpus > ctx.fabric.lines.island_gpus) & (ctx.facts.stack == "nanotron")
    grow = ctx.t ** ctx.constants.floor_tensor * np.where(across, ctx.constants.floor_across, 1.0)
    return grow * floor_s * left(ctx.facts, kind)


_SHARES = {
    "dense": {"attn": 0.6, "mlp": 0.3},
    "moe": {"attn": 0.25, "moe_router": 0.12, "moe_preprocess": 0.13, "moe": 0.45},
}


def left(facts, kind):
    """Share of launches that graphs leave."""
    scope = facts.cuda_graph or ("layer" if facts.cuda_graphs else "none")
    if scope == "none":
        return 1.0
    if scope == "full_iteration":
        return 0.03
    if scope == "layer":
        return _GRAPHED[kind]
    return max(1.0 - sum(_SHARES[kind].get(one, 0.0) for one in scope.split("+")), 0.1)
''')
sub("solver/cost/floor.py",'''        np.full_like(ctx.t, 1.0) * ctx.constants.fixed_s * (_GRAPHED_STEP if ctx.facts.cuda_graphs else 1.0)
''','''        np.full_like(ctx.t, 1.0) * ctx.constants.fixed_s * (_GRAPHED_STEP if left(ctx.facts, "dense") < 0.5 else 1.0)
''')
sub("solver/cost/price.py",'''    passes = floored(busy, layer_floor_s(ctx, kind), ctx.constants.floor_backward) + beyond
''','''    if ctx.facts.launch_blocking:
        floor_s = layer_floor_s(ctx, kind)
        passes = busy + PassSeconds(forward=floor_s, backward=floor_s * ctx.constants.floor_backward) + beyond
    else:
        passes = floored(busy, layer_floor_s(ctx, kind), ctx.constants.floor_backward) + beyond
''')
sub("solver/cost/price.py",'''    again = np.where(ctx.selective, attention.forward, 0.0)
''','''    again = replayed_s(ctx, kind, attention)
''')
sub("solver/cost/compute.py",'''def head_seconds(''','''def replayed_s(ctx: Context, kind: LayerKind, attention: PassSeconds) -> FloatArray:
    """What selective recomputation replays, module by module."""
    modules = ctx.facts.recompute_modules
    if not modules or modules in ("op", "layer"):
        return np.where(ctx.selective, attention.forward, 0.0)
    total = np.zeros_like(ctx.t)
    model, moe, h = ctx.model, ctx.model.moe, ctx.model.hidden_size
    for one in modules.split("+"):
        if one == "core_attn":
            total = total + attention.forward
        elif one == "mla_up_proj" and model.mla is not None:
            gemms = attention_gemms(ctx)
            total = total + gemm_seconds(ctx, [gemms[0], gemms[3] if model.mla.q_lora_rank else gemms[2]], ctx.linear_precision).forward
        elif one == "mlp" and (kind == "dense" or moe is None):
            total = total + gemm_seconds(ctx, _mlp_gemms(model, ctx.tokens, model.ffn_hidden_size / ctx.t), ctx.linear_precision).forward
        elif one == "shared_experts" and kind == "moe" and moe is not None and moe.shared_ffn_hidden_size:
            total = total + gemm_seconds(ctx, _mlp_gemms(model, ctx.tokens, moe.shared_ffn_hidden_size / ctx.t), ctx.linear_precision).forward
        elif one == "moe_act" and kind == "moe" and moe is not None:
            total = total + 6.0 * ctx.moe_tokens * ctx.et * moe.top_k * moe.ffn_hidden_size / ctx.hbm_bytes_per_s
        elif one == "layernorm":
            total = total + 8.0 * ctx.tokens * ctx.row_share * h / ctx.hbm_bytes_per_s
    return np.where(ctx.selective, total, 0.0)


def head_seconds(''')
sub("solver/cost/price.py","    memory_bound,\n","    memory_bound,\n    replayed_s,\n")
# --- permute
sub("solver/cost/compute.py",'''permute = ctx.constants.permute_bytes * ctx.moe_tokens * ctx.et * moe.top_k * h
''','''permute = ctx.constants.permute_bytes * ctx.moe_tokens * ctx.et * moe.top_k * h * permute_share(ctx)
''')
sub("solver/cost/compute.py",'''def replayed_s(''','''def permute_share(ctx: Context) -> float:
    """Permutation traffic by dispatcher and fusion over that of a fused all-to-all."""
    facts = ctx.facts
    if facts.moe_grouped_mlp_fused:
        return 0.08
    base = {"hybridep": HYBRID_SHARE, "deepep": HYBRID_SHARE}.get(facts.moe_dispatcher, 1.0)
    return base * (1.0 if facts.moe_permute_fusion else 1.5)


HYBRID_SHARE = 0.7


def replayed_s(''')
# --- dispatch
sub("solver/cost/communication.py",'''    islands = ctx.expert_group.islands
    distinct = islands * (1.0 - (1.0 - 1.0 / islands) ** moe.top_k)
    copies = np.where(islands > 1, distinct, moe.top_k)
    visits = ctx.moe_tokens * copies * ctx.constants.expert_imbalance
''','''    islands, kind = ctx.expert_group.islands, ctx.facts.moe_dispatcher
    distinct = islands * (1.0 - (1.0 - 1.0 / islands) ** moe.top_k)
    if kind in ("deepep", "hybridep"):
        ranks = ctx.e * (1.0 - (1.0 - 1.0 / ctx.e) ** moe.top_k)
        copies = np.where(islands > 1, distinct, ranks)
    elif kind == "alltoall":
        copies = np.full_like(ctx.t, float(moe.top_k))
    elif kind == "allgather":
        copies = ctx.e
    else:
        copies = np.where(islands > 1, distinct, moe.top_k)
    balance = 1.0 if ctx.facts.moe_force_balance else ctx.constants.expert_imbalance
    visits = ctx.moe_tokens * copies * balance
''')
sub("solver/cost/communication.py",'''    seconds = 2.0 * once * np.where(hidden, ctx.constants.expert_exposed, 1.0)
''','''    if ctx.facts.overlap_experts and kind:
        hidden = np.ones_like(ctx.t, dtype=bool)
    seconds = 2.0 * once * np.where(hidden, ctx.constants.expert_exposed, 1.0)
''')
sub("solver/cost/measured.py",'''    busiest = np.where(ctx.e > 1, ctx.constants.expert_imbalance, 1.0)
''','''    busiest = np.where((ctx.e > 1) & (not ctx.facts.moe_force_balance), ctx.constants.expert_imbalance, 1.0)
''')
# --- constants
sub("profiles/profile.py",'''    floor_moe: float  #''','''    floor_tensor: float  # power of tp
    floor_across: float
    floor_moe: float  #''')
sub("profiles/catalog/calibration/stacks.yaml",'''    floor_moe: {value: 4.6''','''    floor_tensor: {value: 0.1, log_sd: 0.5, source: x}
    floor_across: {value: 2.2, log_sd: 0.5, source: x}
    floor_moe: {value: 4.6''')
sub("solver/calibration/priors.py",'''"floor_moe": 0.3,
''','''"floor_moe": 0.3, "floor_tensor": 1.0, "floor_across": 0.5,
''')
