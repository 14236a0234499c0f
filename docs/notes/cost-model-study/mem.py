from lab import *
from solver.accuracy import peak_as_measured, _with_assumed_memory
from solver.runs import read_runs
import csv
from collections import defaultdict
from profiles.units import GIB
al=[r for r in read_runs(DATA) if r.shape is not None]
inf=Path("SHARED/data/inferred_out_of_memory.csv"); lab={x["run_id"]:x["out_of_memory_inferred"] for x in csv.DictReader(open(inf))}
ir=[r for r in read_runs(inf) if r.shape is not None]
def pred(r):
    o=Observation.of(r); p=default_profile_of(o)
    return _with_assumed_memory(r.shape,p,predict(o.problem,p,o.configuration))
er=defaultdict(list); fa=defaultdict(lambda:[0,0]); miss=[0,0]; inferred=defaultdict(lambda:[0,0])
famrows=[]
for r in al:
    if r.cluster=="vtrain-a100-single": continue  # ULTRA
    if r.cluster=="ultrascale-h100-efa" and int(r.run_id.split("-")[-1])%3: continue
    q=pred(r); m=r.measured
    if m.peak_memory_bytes: er[(r.cluster,m.memory_kind,m.memory_rank)].append(peak_as_measured(q,m.memory_kind,m.memory_rank)/m.peak_memory_bytes-1)
    if m.out_of_memory: miss[0]+=1; miss[1]+=q.out_of_memory_probability<=.5
    elif m.step_time_s:
        fa[r.cluster][0]+=1; fa[r.cluster][1]+=q.out_of_memory_probability>.5
        if q.out_of_memory_probability>.5: famrows.append((r.run_id,r.cluster,rows[r.run_id]["model"],round(q.peak_memory_bytes/GIB),round(q.memory_limit_bytes/GIB),rows[r.run_id]["recompute"],rows[r.run_id]["recompute_modules"]))
for r in ir:
    q=pred(r); k=lab[r.run_id]; inferred[k][0]+=1; inferred[k][1]+=q.out_of_memory_probability>.5
print("oom rows",miss,"called feasible"); print("inferred (n, called oom)",dict(inferred))
print("false alarms",sum(v[1] for v in fa.values()),"of",sum(v[0] for v in fa.values()),{k:v for k,v in fa.items() if v[1]})
for k,v in sorted(er.items()): print(k,len(v),"mean abs %.1f bias %+.1f"%(100*np.mean(np.abs(v)),100*np.median(v)))
for x in famrows[:60]: print(x)
