import sys
from lab import *
tag=sys.argv[1]
fp,G,S=pickle.load(open(CACHE/f"{tag}_fit.pkl","rb")); lpo,_=pickle.load(open(CACHE/f"{tag}_lpo.pkl","rb"))
e=err(fp); l=err(lpo)
print("pairs");
for k in sorted(set(pair)):
    for mm,lab in ((~moe,"dense"),(moe,"moe")):
        m=(pair==k)&mm
        if m.sum()>=3: print(f"   {k:42s} {lab:6s} n {m.sum():4d} fit {np.abs(e[m]).mean():6.1f} {np.median(e[m]):+6.1f}  lpo {np.abs(l[m]).mean():6.1f} {np.median(l[m]):+6.1f}")
print("clusters")
for k in sorted(set(cluster)):
    for mm,lab in ((~moe,"dense"),(moe,"moe")):
        m=(cluster==k)&mm
        if m.sum(): print(f"   {k:32s} {lab:6s} n {m.sum():4d} fit {np.abs(e[m]).mean():6.1f} {np.median(e[m]):+6.1f} lpo {np.abs(l[m]).mean():6.1f} {np.median(l[m]):+6.1f}")
print("moe rows")
for i in np.flatnonzero(moe & ~tinym):
    r=raw[i]; c=obs[i].configuration
    print(f"{r['run_id']} {r['cluster'][:20]:20s} {r['model'][:16]:16s} G{r['num_gpus']:>4s} tp{c.tensor_parallel_size} pp{c.pipeline_parallel_size}x{c.virtual_pipeline_size} ep{c.expert_parallel_size} mbs{c.micro_batch_size} m{c.num_microbatches} {r['precision']:6s} {r['moe_dispatcher']:9s} fb{r['moe_router_force_balance']} gf{r['moe_grouped_mlp_fused']} eo{r['expert_overlap']} dw{r['delay_wgrad']} cg {r['cuda_graph'][:12]:12s} rc {r['recompute']}:{r['recompute_modules']} fit {e[i]:+6.1f} lpo {l[i]:+6.1f}")
