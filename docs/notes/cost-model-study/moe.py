import pandas as pd, numpy as np, pickle, sys
pd.set_option("display.width",330,"display.max_rows",500,"display.max_columns",60,"display.max_colwidth",26)
d=pd.read_csv("SHARED/data/measured_runs.csv",low_memory=False)
m=d[d.num_experts.fillna(0)>0].copy()
m["mb"]=m.global_batch_size/(m.micro_batch_size*m.data_parallel_size)
short=dict(tensor_parallel_size="tp",pipeline_parallel_size="pp",virtual_pipeline_size="vpp",context_parallel_size="cp",expert_parallel_size="ep",data_parallel_size="dp",moe_dispatcher="disp",moe_permute_fusion="pf",moe_router_fusion="rf",moe_router_force_balance="fb",moe_capacity_factor="cf",moe_shared_expert_overlap="so",moe_grouped_mlp_fused="gf",expert_overlap="eo",delay_wgrad="dw",expert_tensor_parallel_size="etp",mtp_layers="mtp",precision_recipe="rec",micro_batch_size="mbs",seq_length="s",num_gpus="G",recompute_modules="rmod",moe_node_limited_routing="nlr")
m=m.rename(columns=short)
print(m.sort_values(["cluster","model","run_id"])[["run_id","cluster","model","gpu","G","tp","pp","vpp","cp","ep","etp","mbs","mb","s","precision","rec","disp","pf","rf","fb","cf","so","gf","eo","dw","mtp","cuda_graph","recompute","rmod","step_time_s"]].to_string())
print(m.drop_duplicates("model")[["model","num_layers","hidden_size","ffn_hidden_size","num_attention_heads","head_dim","num_experts","moe_top_k","moe_ffn_hidden_size","num_shared_experts","num_dense_layers"]].to_string())
