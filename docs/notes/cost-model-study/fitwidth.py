from lab import *
from solver.stacks.uncertainty import posterior_log_sds
fp,G,S=pickle.load(open(CACHE/"p5_fit.pkl","rb"))
teach=np.array([not(r.cluster==ev.SLOW_NODE and r.shape.problem.cluster.num_nodes==1) for r in runs])
# free stack fits: weak prior (3x widths) round the general, one Gauss-Newton from the stack fit
e,idx=evidence(teach); est=np.array(e.stacks)
from solver.calibration.priors import TIME_WIDTHS
wide={k:3*v for k,v in TIME_WIDTHS.items()}
logs={}; sds={}
for s in sorted(set(est)):
    mine=e.of_stack(s)
    if len(mine.runs)<10: continue
    f=fitted(mine,replace(S[s],**{n:getattr(G,n) for n in names}),start=S[s],widths=wide,iterations=2)
    lin=linearised(mine,f); logs[s]=np.array([np.log(getattr(f,n)/getattr(G,n)) for n in names]); sds[s]=posterior_log_sds(lin,wide)
L=np.array(list(logs.values())); D=np.array(list(sds.values()))
for j,n in enumerate(names):
    ok=D[:,j]<0.7*wide[n]
    tau2=max(0,np.average(L[ok,j]**2-D[ok,j]**2,weights=1/(D[ok,j]**2+.05))) if ok.any() else np.nan
    print(f"{n:22s} now {TIME_WIDTHS[n]:.2f} learnt {np.sqrt(tau2):.2f}  identified by {ok.sum()} ",{k:(round(float(v[j]),2),round(float(sds[k][j]),2)) for k,v in logs.items()})
