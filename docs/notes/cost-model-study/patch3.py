import pathlib
def sub(p,a,b,n=1):
    f=pathlib.Path(p); s=f.read_text(); assert a in s,(p,a[:60]); f.write_text(s.replace(a,b,n))
sub("profiles/frameworks.py",'''    launch_blocking: bool = False
''','''    launch_blocking: bool = False
    fp8_attention: bool = False
    moe_capacity_factor: str = ""
''')
sub("solver/run_shapes.py",'''                           ("overlap_grad_reduce", "overlap_gradients")):''','''                           ("overlap_grad_reduce", "overlap_gradients"), ("fp8_attention", "fp8_attention")):''')
sub("solver/run_shapes.py",'''("offload_modules", "offload_modules")):''','''("offload_modules", "offload_modules"), ("moe_capacity_factor", "moe_capacity_factor")):''')
sub("solver/cost/communication.py",'''    balance = 1.0 if ctx.facts.moe_force_balance else ctx.constants.expert_imbalance
''','''    balance = 1.0 if ctx.facts.moe_force_balance or ctx.facts.moe_capacity_factor else ctx.constants.expert_imbalance
''')
sub("solver/cost/measured.py",'''(not ctx.facts.moe_force_balance)''','''(not (ctx.facts.moe_force_balance or ctx.facts.moe_capacity_factor))''')
sub("solver/cost/floor.py",'''    floor_s = floor_s * (ctx.constants.floor_moe if kind == "moe" else 1.0)
''','''    if kind == "moe":
        floor_s = floor_s * ctx.constants.floor_moe * {"allgather": 0.45, "hybridep": 0.8, "deepep": 0.8}.get(ctx.facts.moe_dispatcher, 1.0)
''')
sub("solver/cost/measured.py",'"ampere": {"flash1": 0.5, "triton": 0.6}','"ampere": {"flash1": 0.5, "triton": 0.72}')
sub("solver/cost/measured.py",'''    return _KERNEL.get(''','''    return (1.35 if ctx.facts.fp8_attention else 1.0) * _KERNEL.get(''')
sub("solver/cost/measured.py","(1.25 if ctx.facts.moe_permute","(1.4 if ctx.facts.moe_permute")
