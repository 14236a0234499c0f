import pandas as pd, numpy as np
pd.set_option("display.width",250,"display.max_rows",500,"display.max_columns",60,"display.max_colwidth",140)
d=pd.read_csv("SHARED/data/measured_runs.csv",low_memory=False)
print(d[d.env_flags.fillna("").str.contains("BLOCK")].groupby(["cluster","env_flags"]).size())
print(d.groupby(["cluster","cuda_graph"]).size().to_string())
print(d.groupby(["cluster","tp_comm_overlap","overlap_grad_reduce","overlap_param_gather"],dropna=False).size().to_string())
print(d.groupby(["cluster","gradient_dtype","recompute"],dropna=False).size().to_string())
print(d.groupby(["framework_family","attention_kernel","flash_attention","norm_fused","loss_fused"],dropna=False).size().to_string())
