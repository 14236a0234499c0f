"""Calibration variants: calx.py TAG VARIANT [count]"""
import sys, numpy as np
from lab import *
tag, variant = sys.argv[1], sys.argv[2]; count=int(sys.argv[3]) if len(sys.argv)>3 else 16
import solver.calibration.priors as pri, solver.calibration.residual as cres, solver.calibration.fit as cfit, solver.calibration.leftover as cleft, solver.calibrate as scal
import profiles.residual as pres
from profiles.residual import squared_distances
W=pri.TIME_WIDTHS
opts=dict(x.split("=") for x in variant.split(",") if "=" in x)
if "w" in opts:
    for k in ("elementwise","floor_s","floor_moe","fixed_s","loss_bytes","permute_bytes"): 
        if k in W: W[k]*=float(opts["w"])
if "wall" in opts:
    for k in W: W[k]*=float(opts["wall"])
if "wf" in opts:
    for k in ("floor_s","floor_moe"): W[k]*=float(opts["wf"])
if "noise" in opts:
    from dataclasses import replace as rp2
    scal.TIME_PROCESS=rp2(scal.TIME_PROCESS,noise=scal.TIME_PROCESS.noise*float(opts["noise"]))
if "wel" in opts: W["elementwise"]=float(opts["wel"])
LONG=float(opts.get("long",0)); LL=float(opts.get("ll",4))
if LONG:
    def kernel(features, process):
        a=squared_distances(features,features)
        return process.amplitude**2*(np.exp(-.5*a/process.length**2)+LONG**2*np.exp(-.5*a/LL**2))
    cres.kernel=cfit.kernel=cleft.kernel=kernel
    def _k(self,features):
        a=squared_distances(features,np.array(self.points))
        near=self.amplitude**2*(np.exp(-.5*a/self.length**2)+LONG**2*np.exp(-.5*a/LL**2))
        return near,self.trend_amplitude**2*np.exp(-.5*a/self.trend_length**2)
    pres.Residual._kernels=_k
    def sigma(self,features):
        near,trend=self._kernels(features); known=near+trend
        prior=self.amplitude**2*(1+LONG**2)+self.trend_amplitude**2
        left=prior-np.einsum("nk,kl,nl->n",known,np.array(self.precision),known)
        return np.asarray(np.minimum(self.scale*np.sqrt(np.maximum(left,0)+self.noise**2),pres.MAX_LOG))
    pres.Residual.sigma=sigma
if "cap" in opts:
    c=float(opts["cap"]); old=pres.Residual.log_factor
    pres.Residual.log_factor=lambda self,f: np.clip(old(self,f),-c,c)
if "half" in opts:
    c=float(opts["half"]); old2=pres.Residual.log_factor
    pres.Residual.log_factor=lambda self,f: c*old2(self,f)
if "amp" in opts:
    from dataclasses import replace as rp
    scal.TIME_PROCESS=rp(pri.TIME_PROCESS,amplitude=pri.TIME_PROCESS.amplitude*float(opts["amp"]))
from solver.accuracy import validate
lpo,consts=pickle.load(open(CACHE/f"{tag}_lpo.pkl","rb"))
bykey={}
for i in range(N):
    bykey[(obs[i].problem.cluster.groups[0].gpu.slug,stack[i])]=consts[pair[i]][stack[i]]
def profile_of(one):
    p=default_profile_of(one); c=bykey.get((one.problem.cluster.groups[0].gpu.slug,p.framework.stack))
    return p if c is None else replace(p,constants=replace(p.constants,**{n:getattr(c,n) for n in names}))
only=opts.get("only","")
big=[k for k in sorted(set(cluster)) if (cluster==k).sum()>=5]
if only: big=only.split("+")
sel=[]
for k in big:
    m=np.flatnonzero(cluster==k)
    if len(m)>260: m=m[np.unique(np.linspace(0,len(m)-1,260).astype(int))]  # rank groups thinned
    sel+=list(m)
# keep whole rank groups for the two large sets
def choose():
    out=[]
    for k in big:
        m=np.flatnonzero(cluster==k)
        if len(m)<=260: out+=list(m); continue
        gs=sorted(set(rank_group[m])-{""}); got=[]
        step=max(1,len(gs)*1.0*len(m)/260/len(gs)); j=0.
        while int(j)<len(gs):
            got+=list(m[rank_group[m]==gs[int(j)]]); j+=step
        out+=got
    return np.array(sorted(out))
sel=choose()
R=[runs[i] for i in sel]
res={}
for name,kk in (("uncal",0),("cal",count)):
    f=CACHE/f"{tag}_uncal_sel.pkl"
    if name=="uncal" and f.exists() and not only: res[name]=pickle.load(open(f,"rb")); continue
    r=validate(R,calibrate=kk,profile_of=profile_of)
    v=[(np.log(x.prediction.step_time_s),np.log(x.prediction.step_time_low_s),np.log(x.prediction.step_time_high_s),x.used_for_calibration) for x in r.runs]
    res[name]=np.array(v,float)
    if name=="uncal" and not only: pickle.dump(res[name],open(f,"wb"))
used=np.zeros(N,bool); used[sel]=res["cal"][:,3]>0
keep=np.zeros(N,bool); keep[sel]=True; keep&=~used
line=f"{tag} {variant:24s} n={count}"
for name in ("uncal","cal"):
    P=np.full(N,np.nan); lo=P.copy(); hi=P.copy(); P[sel],lo[sel],hi[sel]=res[name][:,0],res[name][:,1],res[name][:,2]
    e=100*(np.exp(P-measured)-1); c,n=mean_over(e,cluster,keep,1); s,rg,ng=ranking(P,keep)
    bc=ranking(P,keep,True); ins=(lo<=measured)&(measured<=hi)
    w=np.array([1/max(1,(keep&(cluster==k)).sum()) for k in cluster])
    line+=f"\n   {name:5s} clusters {c:.2f} ({n}) moe {mean_over(e,cluster,keep&moe,1)[0]:.2f} rank {s:.3f} regret {rg:.2f} ({ng}) clustermean-rank {np.mean([v[0] for v in bc.values()]):.3f} regret {np.mean([v[1] for v in bc.values()]):.2f} cover {np.average(ins[keep],weights=w[keep]):.2f} | "+" ".join(f"{k.split('-')[0][:6]}-{k.split('-')[-1][:6]}:{v[0]:.2f}/{v[1]:.1f}" for k,v in bc.items())
print(line,flush=True)
pickle.dump((sel,res),open(CACHE/f"{tag}_{variant}_{count}_calx.pkl","wb"))
