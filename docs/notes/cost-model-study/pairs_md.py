from lab import *
b,_=pickle.load(open(CACHE/"base_lpo.pkl","rb")); p,_=pickle.load(open(CACHE/"p5_lpo.pkl","rb"))
eb,ep5=err(b),err(p)
print("| pair | kind | rows | start: mean / bias | proto5: mean / bias |\n|---|---|---|---|---|")
for k in sorted(set(pair)):
    for mm,lab in ((~moe,"dense"),(moe,"MoE")):
        m=(pair==k)&mm
        if m.sum()>=3: print(f"| {k.replace('|',' · ')} | {lab} | {m.sum()} | {np.abs(eb[m]).mean():.1f} / {np.median(eb[m]):+.1f} | {np.abs(ep5[m]).mean():.1f} / {np.median(ep5[m]):+.1f} |")
nt=moe&~tinym
print("MoE rows without CI: start",np.abs(eb[nt]).mean().round(1),"p5",np.abs(ep5[nt]).mean().round(1),"clusters",round(mean_over(eb,cluster,nt,1)[0],1),round(mean_over(ep5,cluster,nt,1)[0],1), "pairs", round(mean_over(eb,pair,nt)[0],1),round(mean_over(ep5,pair,nt)[0],1))
print("no-CI all clusters",round(mean_over(eb,cluster,~tinym,1)[0],1),round(mean_over(ep5,cluster,~tinym,1)[0],1))
