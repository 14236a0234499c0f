import pathlib
def sub(p,a,b,n=1):
    f=pathlib.Path(p); s=f.read_text(); assert a in s,(p,a[:60]); f.write_text(s.replace(a,b,n))
s=pathlib.Path("solver/run_layouts.py").read_text()
i=s.index("            ends = model.num_mtp_layers + 1\n"); j=s.index("        return _even(layers, pp * vpp)\n")
s=s[:i]+'''            return _weighed(model, pp * vpp)
'''+s[j:]
s=s.replace('''def _even(layers''','''def _weighed(model: ModelSpec, chunks: int) -> tuple[int, ...]:
    """Even work: the last chunk carries the head once and once more for each extra token, and its layer."""
    kind = "moe" if model.moe else "dense"
    head = 2.0 * model.vocab_size * model.hidden_size / model.layer_forward_flops_per_token(kind, 4096)
    ends = model.num_mtp_layers + head * (1 + model.num_mtp_layers)
    share = (model.num_layers + ends) / chunks
    last = max(round(share - ends), 0)
    return (*_even(model.num_layers - last, chunks - 1), last)


def _even(layers''')
pathlib.Path("solver/run_layouts.py").write_text(s)
sub("solver/cost/communication.py",'{"hybridep": 0.75, "deepep": 0.85}','{"hybridep": 1.0, "deepep": 1.0}')
sub("profiles/calibration.py",'"update_bytes": 40.0','"update_bytes": 34.0')
