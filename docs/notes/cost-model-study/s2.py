import sys
from lab import *
tag=sys.argv[1]; full="full" in sys.argv
t=time.process_time()
teach=None
if "all" in sys.argv:
    teach=np.array([not(r.cluster==ev.SLOW_NODE and r.shape.problem.cluster.num_nodes==1) for r in runs])
F=Fits(teach=teach,iterations=3); print("fits",round(time.process_time()-t),len(F.idx))
print("general",{n:float(f"{getattr(F.general,n):.3g}") for n in names})
for s_,c_ in F.stackfit.items(): print(s_,{n:float(f"{getattr(c_,n):.3g}") for n in names if abs(np.log(getattr(c_,n)/getattr(F.general,n)))>.1})
fp=fitted_pred(F); table(fp,tag+" fitted",full)
lpo,c=left_out(F,pair); print("lpo",round(time.process_time()-t)); table(lpo,tag+" LPO",full)
if full: by_cluster(lpo)
pickle.dump((lpo,c),open(CACHE/f"{tag}_lpo.pkl","wb")); pickle.dump((fp,F.general,F.stackfit),open(CACHE/f"{tag}_fit.pkl","wb"))
