"""Planted framework: measured times moved by what one constant x e^2.5 does; calibrate; order and regret."""
import sys
exec(open("STUDY/calx.py").read().split("from solver.accuracy import validate")[0])
from solver.accuracy import validate
lpo,consts=pickle.load(open(CACHE/f"{tag}_lpo.pkl","rb"))
bykey={(obs[i].problem.cluster.groups[0].gpu.slug,stack[i]):consts[pair[i]][stack[i]] for i in range(N)}
def profile_of(one):
    p=default_profile_of(one); c=bykey.get((one.problem.cluster.groups[0].gpu.slug,p.framework.stack))
    return p if c is None else replace(p,constants=replace(p.constants,**{n:getattr(c,n) for n in names}))
tot=[]
for cl in ("vtrain-a100-multi","jeanzay-a100","zerobubble-a100"):
    idx=np.flatnonzero(cluster==cl)
    for const in ("elementwise","floor_s","tensor_exposed","loss_bytes"):
        if const not in names: continue
        off=np.zeros((2,len(names))); off[1,names.index(const)]=2.5
        o=[obs[i] for i in idx]
        v=log_step_s(batches_of(o,profile_of),names,off); shift=v[1]-v[0]
        if np.abs(shift).max()<.02: continue
        y=measured[idx]+shift
        R=[replace(runs[i],measured=replace(runs[i].measured,step_time_s=float(np.exp(t)))) for i,t in zip(idx,y)]
        res=[]
        for k in (0,16):
            r=validate(R,calibrate=k,profile_of=profile_of)
            res.append((np.array([np.log(x.prediction.step_time_s) for x in r.runs]),np.array([x.used_for_calibration for x in r.runs])))
        used=res[1][1]; out=[]
        for P,_ in res:
            S=[];G=[]
            for g in sorted(set(rank_group[idx])-{""}):
                j=np.flatnonzero((rank_group[idx]==g)&~used)
                if len(j)<3: continue
                s=spearman(P[j],y[j]); 
                if s is None: continue
                m=np.exp(y[j]); S.append(s);G.append(100*(m[np.argmin(P[j])]/m.min()-1))
            e=100*np.abs(np.exp(P-y)-1)[~used].mean(); out.append((e,np.mean(S),np.mean(G)))
        tot.append(out); print(f"{tag} {variant:16s} {cl:18s} {const:15s} uncal {out[0][0]:.1f}% {out[0][1]:.2f}/{out[0][2]:.1f}  cal {out[1][0]:.1f}% {out[1][1]:.2f}/{out[1][2]:.1f}",flush=True)
t=np.array(tot); print(f"{tag} {variant} MEAN uncal err {t[:,0,0].mean():.1f} rank {t[:,0,1].mean():.3f} regret {t[:,0,2].mean():.2f} | cal err {t[:,1,0].mean():.1f} rank {t[:,1,1].mean():.3f} regret {t[:,1,2].mean():.2f} worst regret {t[:,1,2].max():.1f}",flush=True)
