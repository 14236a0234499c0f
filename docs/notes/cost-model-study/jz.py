import sys
from lab import *
tag=sys.argv[1]
fp,G,S=pickle.load(open(CACHE/f"{tag}_fit.pkl","rb"))
e=err(fp)
for g in sorted(set(rank_group[cluster=="jeanzay-a100"])):
    idx=np.flatnonzero((cluster=="jeanzay-a100")&(rank_group==g))
    if len(idx)<3: continue
    print(g,len(idx),"spearman",spearman(fp[idx],measured[idx]))
    for i in idx[np.argsort(measured[idx])]:
        c=obs[i].configuration; o=obs[i].problem
        print(f"   h{o.model.hidden_size} l{o.model.num_layers} G{c.num_gpus} tp{c.tensor_parallel_size} pp{c.pipeline_parallel_size}x{c.virtual_pipeline_size} dp{c.data_parallel_size} mbs{c.micro_batch_size} m{c.num_microbatches} t {np.exp(measured[i]):.2f} err {e[i]:+.1f}")
