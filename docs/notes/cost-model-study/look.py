import pandas as pd
pd.set_option("display.width",220,"display.max_rows",500,"display.max_columns",60,"display.max_colwidth",40)
d=pd.read_csv("SHARED/data/measured_runs.csv",low_memory=False)
o=pd.read_csv("small/profiles/catalog/runs/measured_runs.csv",low_memory=False)
print(d.shape,o.shape); print("new columns",[c for c in d.columns if c not in o.columns]); print("gone",[c for c in o.columns if c not in d.columns])
print("new rows",len(set(d.run_id)-set(o.run_id)),"gone",set(o.run_id)-set(d.run_id))
n=d[~d.run_id.isin(o.run_id)]; print(n[["run_id","source","model","gpu","cluster","num_gpus","step_time_s"]].to_string())
m=d.merge(o,on="run_id",suffixes=("","_o"))
for c in o.columns:
    if c=="run_id":continue
    a=m[c].astype(str);b=m[c+"_o"].astype(str)
    k=(a!=b).sum()
    if k: print("changed",c,k, m[a!=b][[c,c+"_o"]].drop_duplicates().head(4).values.tolist())
new=[c for c in d.columns if c not in o.columns]
for c in new: 
    print(c, d[c].notna().sum(), d[c].value_counts().head(8).to_dict())
d["pair"]=d.gpu.str.cat(d.framework_family,sep=" | ")
d["moe"]=d.num_experts.fillna(0)>0
g=d.groupby(["gpu","framework_family","moe"]).agg(n=("run_id","size"),timed=("step_time_s","count"),mem=("peak_memory_gib","count"),clusters=("cluster","nunique"),fw=("framework",lambda s:";".join(sorted(set(map(str,s))))[:90]))
print(g.to_string())
