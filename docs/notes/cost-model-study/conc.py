"""Concordance of pairs that differ by more than 2 % in measured time, and regret, from cached calibrations."""
from lab import *
import glob
common=None; D={}
for f in sorted(glob.glob(str(CACHE/"*_16_calx.pkl"))):
    sel,res=pickle.load(open(f,"rb")); D[Path(f).name[:-12]]=(sel,res)
for tag in ("base","p3"):
    vs=[k for k in D if k.startswith(tag+"_")]
    if not vs: continue
    # rows scored in every variant
    keep=np.ones(N,bool)
    for k in vs:
        sel,res=D[k]; u=np.ones(N,bool); u[sel]=res["cal"][:,3]>0; keep&=~u
    for k in vs:
        sel,res=D[k]
        for name in ("uncal","cal"):
            P=np.full(N,np.nan); P[sel]=res[name][:,0]
            C=defaultdict(lambda:[0,0]); R=defaultdict(list)
            for g in sorted(set(rank_group)-{""}):
                i=np.flatnonzero((rank_group==g)&keep)
                if len(i)<3: continue
                y,p=measured[i],P[i]; d=y[:,None]-y[None,:]; q=p[:,None]-p[None,:]
                far=np.triu(np.abs(d)>.02,1)
                C[cluster[i[0]]][0]+=(far&(d*q>0)).sum(); C[cluster[i[0]]][1]+=far.sum()
                R[cluster[i[0]]].append(100*(np.exp(y[np.argmin(p)]-y.min())-1))
            e=100*np.abs(np.exp(P-measured)-1); 
            print(f"{k:22s} {name:6s} rows {keep.sum()} err {mean_over(e,cluster,keep,1)[0]:.2f} concordance(>2%) mean of clusters {np.mean([a/b for a,b in C.values() if b]):.3f} pooled {sum(a for a,_ in C.values())/sum(b for _,b in C.values()):.3f} regret clusters {np.mean([np.mean(v) for v in R.values()]):.2f} | "+" ".join(f"{c[:8]}{c[-6:]} {a/b:.2f}/{np.mean(R[c]):.1f}" for c,(a,b) in C.items() if b))
