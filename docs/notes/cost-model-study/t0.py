import time,sys
from solver.runs import *
from solver.stacks.evidence import *
from collections import Counter
runs=read_runs(CATALOG_RUNS)
print(len(runs), Counter(r.refused_reason for r in runs if r.refused_reason).most_common(10))
obs=[Observation.of(r) for r in runs if r.shape and r.measured.step_time_s]
t=time.process_time(); b=batches_of(obs,default_profile_of); print("batches",len(b),time.process_time()-t)
t=time.process_time(); v=log_step_s(b,TIME.names,np.zeros((1,len(TIME.names)))); print("one",time.process_time()-t)
z=np.concatenate([np.zeros((1,21)),STEP*np.eye(21)])
t=time.process_time(); v=log_step_s(b,TIME.names,z); print("jac",time.process_time()-t)
t=time.process_time(); [predict(o.problem,default_profile_of(o),o.configuration) for o in obs[:200]]; print("predict200",time.process_time()-t)
t=time.process_time(); [predict(o.problem,default_profile_of(o),o.configuration) for o in obs[-200:]]; print("predict last 200",time.process_time()-t)
