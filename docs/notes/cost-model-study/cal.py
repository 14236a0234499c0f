"""Calibrated on <=16 runs of each cluster after leaving its pair out; prints order, regret, coverage, memory."""
import sys
from lab import *
from solver.accuracy import validate
from solver.figures import figures_of
tag=sys.argv[1]; count=int(sys.argv[2]) if len(sys.argv)>2 else 16
lpo,consts=pickle.load(open(CACHE/f"{tag}_lpo.pkl","rb"))
def profile_of(one):
    key=None
    p=default_profile_of(one)
    k=one.problem.cluster.groups[0].gpu.slug
    c=bykey.get((k,p.framework.stack))
    return p if c is None else replace(p,constants=replace(p.constants,**{n:getattr(c,n) for n in names}))
# key: gpu slug + stack (pairs with the same gpu+stack use their own constants by family where unique)
bykey={}
for i in range(N):
    g=obs[i].problem.cluster.groups[0].gpu.slug; s=default_profile_of(obs[i]).framework.stack
    bykey[(g,s)]=consts[pair[i]][s]
out={}
for name,k in (("uncal",0),("cal",count)):
    r=validate(runs,calibrate=k,profile_of=profile_of)
    sc=[x.scored() for x in r.runs]; out[name]=[(None if x is None else (x.predicted_s,x.low_s,x.high_s)) for x in sc]
    out[name+"_mem"]=[None if x is None else (x.measured_bytes,x.predicted_bytes,x.memory_kind,x.out_of_memory,x.out_of_memory_probability) for x in sc]
pickle.dump(out,open(CACHE/f"{tag}_cal{count}.pkl","wb"))
kept=np.array([x is not None for x in out["cal"]])
def report(kept):
    for name in ("uncal","cal"):
        P=np.array([np.nan if x is None else np.log(x[0]) for x in out[name]])
        lo=np.array([np.nan if x is None else np.log(x[1]) for x in out[name]]); hi=np.array([np.nan if x is None else np.log(x[2]) for x in out[name]])
        e=100*(np.exp(P-measured)-1); inside=(lo<=measured)&(measured<=hi)
        c,n=mean_over(e,cluster,kept,1); c5,n5=mean_over(e,cluster,kept,5); p,_=mean_over(e,pair,kept,5)
        s,rg,ng=ranking(P,kept)
        w=np.array([min(1,60/(kept&(cluster==k)).sum()) for k in cluster])
        print(f"{tag} {name:6s} rows {kept.sum()} all {np.abs(e[kept]).mean():.1f} clusters {c:.2f} ({n}) >=5 {c5:.2f} ({n5}) pairs {p:.2f} rank {s:.3f} regret {rg:.2f} ({ng}) cover {inside[kept].mean():.2f} cluster-capped {np.average(inside[kept],weights=w[kept]):.2f}")
        print("   cover by stack",{k:(round(float(inside[kept&(stack==k)].mean()),2),int((kept&(stack==k)).sum())) for k in sorted(set(stack))})
        bc=ranking(P,kept,True); print("   rank by cluster",{k:(round(v[0],2),round(v[1],1),v[2]) for k,v in bc.items()})
report(kept)
for name in ("uncal","cal"):
    M=[x for x,k in zip(out[name+"_mem"],kept) if k and x is not None]
    er=[abs(b/a-1) for a,b,kd,_,_ in M if a]; bi=[b/a-1 for a,b,kd,_,_ in M if a]
    print(name,"memory mean abs %",100*np.mean(er),"bias",100*np.median(bi),len(er))
