from lab import *
from profiles.units import GIB
idx=[i for i in np.flatnonzero(cluster=="ultrascale-h100-efa") if runs[i].measured.peak_memory_bytes][::2]
X=[];Y=[];info=[]
for i in idx:
    o=obs[i]; q=predict(o.problem,default_profile_of(o),o.configuration); c=o.configuration; m=o.problem.model
    t=q.stages[0].memory_bytes; S=t["weights"]+t["gradients"]+t["optimizer"]
    fl=min(c.pipeline_parallel_size,c.num_microbatches); tok=c.micro_batch_size*o.problem.workload.seq_length
    u=fl*c.stage_layers[0]*tok; tp=c.tensor_parallel_size
    head=tok*m.vocab_size/tp if c.pipeline_parallel_size==1 else 0.
    X.append([u*m.hidden_size/tp,u*m.ffn_hidden_size/tp,u*m.hidden_size,tok*m.hidden_size,head,S]); Y.append(runs[i].measured.peak_memory_bytes); info.append((tp,c.pipeline_parallel_size,c.micro_batch_size,m.hidden_size))
X=np.array(X);Y=np.array(Y);I=np.array(info)
def nn(A,b,iters=60):
    act=np.ones(A.shape[1],bool)
    for _ in range(8):
        w=np.zeros(A.shape[1]); w[act]=np.linalg.lstsq(A[:,act],b,rcond=None)[0]
        if (w[act]>=0).all(): break
        act&=w>0
    return w
for lab_,m in (("pp1",I[:,1]==1),("pp>1",I[:,1]>1),("all",I[:,1]>0),("pp>1 tp>1",(I[:,1]>1)&(I[:,0]>1)),("pp>1 tp1",(I[:,1]>1)&(I[:,0]==1)),("pp1 tp>1",(I[:,1]==1)&(I[:,0]>1)),("pp1 tp1",(I[:,1]==1)&(I[:,0]==1))):
    A=np.c_[X[m],np.full(m.sum(),GIB)]/Y[m][:,None]; w=nn(A,np.ones(m.sum()))
    print(lab_,m.sum(),dict(zip(("h/tp","f/tp","h","tok*h","logit","states","const GiB"),np.round(w,2).tolist())),"mean abs %.1f"%(100*np.abs(A@w-1).mean()))
w=nn(np.c_[X,np.full(len(Y),GIB)]/Y[:,None],np.ones(len(Y)))
