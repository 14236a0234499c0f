import pathlib
def sub(p,a,b,n=1):
    f=pathlib.Path(p); s=f.read_text(); assert a in s,(p,a[:60]); f.write_text(s.replace(a,b,n))
sub("solver/run_shapes.py",'''    stated |= {name: cells.flag(name) for name in ("norm_fused", "loss_fused")}
''','''    stated |= {name: cells.flag(name) for name in ("norm_fused", "loss_fused")}
    if stated["attention_kernel"] == "torch" and cells.text("framework_family") == "megatron-core":
        stated["attention_kernel"] = "megatron-fused"
''')
sub("solver/cost/memory.py",'''    keeps = np.where(ctx.selective, ctx.facts.selective_keeps, 1.0)
    return (outer + inner) * keeps * ctx.constants.activation
''','''    keeps = np.where(ctx.selective, ctx.facts.selective_keeps, 1.0)
    freed = np.where(ctx.selective, freed_bytes(ctx, kind), 0.0)
    spill = 0.6 if ctx.facts.offload_modules else 1.0
    return np.maximum(outer + inner - freed, 0.1 * outer) * keeps * ctx.constants.activation * spill


def freed_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Activations that recomputed modules do not keep."""
    model, moe, t = ctx.model, ctx.model.moe, ctx.t
    modules, total = ctx.facts.recompute_modules.split("+"), np.zeros_like(ctx.t)
    per_width = 2.0 * model.mlp_matrices - (1.0 if ctx.low_precision else 0.0)
    routed = ctx.moe_tokens * (moe.top_k if moe else 0) * (1.0 if ctx.facts.moe_force_balance else ctx.constants.expert_imbalance)
    if "mla_up_proj" in modules and model.mla is not None:
        total = total + ctx.tokens * 2.0 * model.num_attention_heads / t * (2.0 * model.head_dim + model.v_head_dim)
    if "mlp" in modules and (kind == "dense" or moe is None):
        total = total + ctx.tokens * per_width * model.ffn_hidden_size / t
    if kind == "moe" and moe is not None:
        if "shared_experts" in modules:
            total = total + ctx.tokens * per_width * moe.shared_ffn_hidden_size / t
        if "moe" in modules:
            total = total + routed * (4.0 * model.hidden_size + per_width * moe.ffn_hidden_size)
        elif "moe_act" in modules:
            total = total + routed * 2.0 * moe.ffn_hidden_size
    if "layernorm" in modules:
        total = total + ctx.tokens * model.hidden_size * (2.0 if ctx.low_precision else 4.0) * ctx.row_share
    return total
''')
sub("solver/cost/memory.py",'''    routed = ctx.moe_tokens * moe.top_k * ctx.constants.expert_imbalance
    # the''','''    balanced = ctx.facts.moe_force_balance or ctx.facts.moe_capacity_factor
    routed = ctx.moe_tokens * moe.top_k * (1.0 if balanced else ctx.constants.expert_imbalance)
    if ctx.facts.moe_dispatcher in ("hybridep", "deepep"):
        return shared + routed * (1.0 * model.hidden_size * 2.0 + per_width * moe.ffn_hidden_size)
    # the''')
