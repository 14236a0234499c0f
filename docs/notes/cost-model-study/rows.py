import sys
from lab import *
tag=sys.argv[1]; cl=sys.argv[2].split(",")
fp,G,S=pickle.load(open(CACHE/f"{tag}_fit.pkl","rb")); lpo,_=pickle.load(open(CACHE/f"{tag}_lpo.pkl","rb"))
e=err(fp); l=err(lpo)
for i in np.flatnonzero(np.isin(cluster,cl)):
    r=raw[i]; c=obs[i].configuration
    print(f"{r['run_id']} {r['model'][:18]:18s} G{r['num_gpus']:>4s} tp{c.tensor_parallel_size} sp{int(c.sequence_parallel)} pp{c.pipeline_parallel_size}x{c.virtual_pipeline_size} cp{c.context_parallel_size} dp{c.data_parallel_size} z{c.zero_stage} mbs{c.micro_batch_size} m{c.num_microbatches} s{r['seq_length']} {r['precision']:6s} {r['peft']} {r['fsdp_kind']} rc {c.recompute_granularity} cg {r['cuda_graph'][:10]} tpo{r['tp_comm_overlap']} t {np.exp(measured[i]):.2f} fit {e[i]:+6.1f} lpo {l[i]:+6.1f}")
