from lab import *
sel,res=pickle.load(open(CACHE/"p3_v0_16_calx.pkl","rb"))
for name in ("uncal","cal"):
    v=res[name]; keep=~(res["cal"][:,3]>0); y=measured[sel]; ins=(v[:,1]<=y)&(y<=v[:,2])
    print(name,{str(s):(round(float(ins[keep&(stack[sel]==s)].mean()),2),int((keep&(stack[sel]==s)).sum())) for s in sorted(set(stack[sel]))}, "moe",round(float(ins[keep&moe[sel]].mean()),2))
