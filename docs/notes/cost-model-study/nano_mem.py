from lab import *
from profiles.units import GIB
from solver.runs import read_runs
idx=np.flatnonzero((cluster=="ultrascale-h100-efa"))[::2]
recs=[]
for i in idx:
    r=runs[i]
    if not r.measured.peak_memory_bytes: continue
    o=obs[i]; q=predict(o.problem,default_profile_of(o),o.configuration); c=o.configuration; m=o.problem.model
    t=q.stages[0].memory_bytes
    recs.append((r.measured.peak_memory_bytes/GIB,{k:v/GIB for k,v in t.items()},c.tensor_parallel_size,c.pipeline_parallel_size,c.data_parallel_size,c.zero_stage,c.micro_batch_size,c.num_microbatches,c.stage_layers[0],m.hidden_size,o.problem.workload.seq_length,m.num_layers,m.num_parameters()))
Y=np.array([x[0] for x in recs]); K=list(recs[0][1]); T=np.array([[x[1][k] for k in K] for x in recs]); A=np.array([x[2:] for x in recs],float)
P=T[:,[k not in("context","reserve") for k in K]].sum(1)
rat=P/Y
from collections import defaultdict
for name,col_ in (("tp",0),("pp",1),("zero",3),("mbs",4),("hidden",7)):
    print(name,{int(v):(int((A[:,col_]==v).sum()),round(float(np.median(rat[A[:,col_]==v])),2)) for v in sorted(set(A[:,col_]))})
for v in (1,2,4,8):
    m=(A[:,1]==v); print("pp",v,{int(x):(int((m&(A[:,4]==x)).sum()),round(float(np.median(rat[m&(A[:,4]==x)])),2)) for x in sorted(set(A[m,4]))})
for v in (1,2,4,8,16):
    m=(A[:,0]==v)&(A[:,1]==1); 
    if m.any(): print("pp1 tp",v,{int(x):(int((m&(A[:,4]==x)).sum()),round(float(np.median(rat[m&(A[:,4]==x)])),2)) for x in sorted(set(A[m,4]))})
def nnls(X,y):
    w=np.linalg.lstsq(X,y,rcond=None)[0]; return w,0
def ls(m,label):
    X=np.c_[T[m][:,[K.index(k) for k in ("weights","gradients","optimizer","activations","workspace")]],np.ones(m.sum())]/Y[m][:,None]
    w,_=nnls(X,np.ones(m.sum())); print(label,m.sum(),dict(zip(("w","g","o","act","work","const"),np.round(w,2))),"mean abs %",round(100*np.abs(X@w-1).mean(),1))
ls(A[:,1]==1,"pp1"); ls(A[:,1]>1,"pp>1"); ls((A[:,1]>1)&(A[:,6-2+4]>0),"all pp>1")
for v in (1,2,4,8): ls((A[:,0]==v)&(A[:,1]==1),f"pp1 tp{v}"); 
for v in (2,4,8): ls((A[:,1]==v),f"pp{v}")
# examples
o_=np.argsort(rat); 
for j in list(o_[:8])+list(o_[-8:]): print(round(rat[j],2),round(Y[j],1),{k:round(v,1) for k,v in recs[j][1].items()},dict(zip(("tp","pp","dp","z","mbs","m","l0","h","s","L"),A[j].astype(int))))
