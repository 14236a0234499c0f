from lab import *
tag=sys.argv[1]; lpo,_=pickle.load(open(CACHE/f"{tag}_lpo.pkl","rb"))
l=np.abs(lpo-measured)
npairs={s:len(set(pair[stack==s])) for s in set(stack)}
alone=np.array([npairs[s]==1 for s in stack])
def q(m,lab):
    if m.sum()<5: return
    w=np.array([min(1,60/(m&(cluster==k)).sum()) if (m&(cluster==k)).sum() else 0 for k in cluster])[m]
    v=l[m]; o=np.argsort(v); c=np.cumsum(w[o])/w.sum()
    print(f"{lab:45s} n {m.sum():4d} 80%-sigma {v[o][np.searchsorted(c,.8)]/1.2816:.3f}  95%-sigma {v[o][min(np.searchsorted(c,.95),len(v)-1)]/1.96:.3f}")
q(~moe&~alone&~tinym,"dense, stack known elsewhere, no CI"); q(moe&~tinym,"MoE, no CI"); q(alone,"stack has no other pair"); q(tinym,"tiny CI models")
for s in sorted(set(stack)): q((stack==s)&~tinym,"stack "+s)
ul=cluster=="ultrascale-h100-efa"; q(ul,"ultrascale")
p=col("pipeline_parallel_size",1); g=col("num_gpus"); n=col("gpus_per_node")
q(~tinym&(g<=n)&~moe,"one node dense"); q(~tinym&(g>n)&~moe,"several nodes dense")
