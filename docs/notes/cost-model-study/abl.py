from lab import *
teach=np.array([not(r.cluster==ev.SLOW_NODE and r.shape.problem.cluster.num_nodes==1) for r in runs])
F=Fits(teach=teach,iterations=2); table(fitted_pred(F),"without "+os.environ.get("OFF",""))
