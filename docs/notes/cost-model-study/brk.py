import sys
from lab import *
from solver.cost.price import price, _part_prices, LayerLayout
from solver.cost.context import context_of
from solver.cost import compute as C, communication as K, floor as FL
from solver.columns import Columns
tag=sys.argv[1]; ids=sys.argv[2].split(",")
fp,G,S=pickle.load(open(CACHE/f"{tag}_fit.pkl","rb"))
pof=with_constants(S)
for i in range(N):
    if raw[i]["run_id"] not in ids: continue
    o=obs[i]; p=pof(o); c=o.configuration
    pr=predict(o.problem,p,c)
    print(raw[i]["run_id"],raw[i]["model"],raw[i]["gpu"],f"meas {np.exp(measured[i]):.3f} pred {pr.step_time_s:.3f}",{k:round(v,3) for k,v in pr.time_breakdown_s.items()})
    ctx=context_of(o.problem,Columns.of([c]),p)
    kind="moe" if o.problem.model.moe else "dense"
    at=C.core_attention(ctx); li=C.linear_seconds(ctx,kind); mb=C.memory_bound(ctx,kind); ep_=K.expert_parallel(ctx) if kind=="moe" else at; tp_=K.tensor_parallel(ctx)
    f=FL.layer_floor_s(ctx,kind)
    ms=lambda x: f"{float(np.ravel(x.forward)[0])*1e3:.2f}/{float(np.ravel(x.backward)[0])*1e3:.2f}"
    print("   layer ms fwd/bwd: attention",ms(at),"linear",ms(li),"membound",ms(mb),"expert a2a",ms(ep_) if kind=="moe" else "-","tp",ms(tp_),"floor",f"{float(f[0])*1e3:.2f}", "head",ms(C.head_seconds(ctx)), "layers",o.problem.model.num_layers)
