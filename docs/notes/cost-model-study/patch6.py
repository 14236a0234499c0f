import pathlib
def sub(p,a,b,n=1):
    f=pathlib.Path(p); s=f.read_text(); assert a in s,(p,a[:60]); f.write_text(s.replace(a,b,n))
sub("solver/run_shapes.py",'''    return Workload(
''','''    import os
    for one in os.environ.get("OFF", "").split(","):
        options.pop(one, None)
    return Workload(
''')
sub("solver/run_shapes.py",'''        num_mtp_layers=cells.count("mtp_layers") or 0,
''','''        num_mtp_layers=0 if "mtp" in __import__("os").environ.get("OFF", "").split(",") else cells.count("mtp_layers") or 0,
''')
sub("solver/cost/floor.py",'''    power = ctx''','''    if "floor_tp" in __import__("os").environ.get("OFF", ""):
        return np.full_like(ctx.t, 1.0) * floor_s * left(ctx.facts, kind)
    power = ctx''')
s=pathlib.Path("solver/cost/floor.py").read_text(); print(s[s.index("def layer_floor_s"):s.index("_SHARES")])
sub("solver/cost/measured.py",'''    return (1.35 if''','''    if "attn" in __import__("os").environ.get("OFF", "").split(","):
        return 1.0
    return (1.35 if''')
sub("solver/cost/measured.py","(1.4 if ctx.facts.moe_permute","(1.4 if \"experts\" not in __import__(\"os\").environ.get(\"OFF\", \"\") and ctx.facts.moe_permute")
