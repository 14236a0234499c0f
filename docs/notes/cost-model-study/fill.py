import re
s=open('REPORT.md').read()
T1='''| | pairs ≥ 5 rows (17) | dense (16) | MoE (6) | pairs without tiny CI models | clusters | MoE rows | ep > 8 rows (41) | Spearman / regret (108 groups) |
|---|---|---|---|---|---|---|---|---|
| start, fitted (nothing left out) | 10.4 | 9.3 | 20.7 | 9.4 | 11.6 | 19.7 | 17.7 | .893 / 6.7 |
| **start, leave pair out** | **16.1** | **13.9** | **35.1** | 15.4 | 17.5 | 42.2 | **52.1** | **.891 / 10.7** |
| proto1: switches read, dispatchers, graph scopes, modules, MTP, blocking | 16.3 | 15.9 | 24.5 | 15.5 | 13.9 | 20.6 | 19.5 | .904 / 13.6 |
| proto2: + MTP split, attention kernels, floor growth, update bytes, graphs' shares | 12.9 | 12.7 | 23.5 | 11.6 | 11.7 | 17.9 | 10.8 | .908 / 9.4 |
| proto3: + capacity, floor by dispatcher, fp8 attention, recipe experts | 12.4 | 12.5 | 14.1 | 11.6 | 12.0 | 14.9 | 11.9 | .909 / 9.8 |
| proto5: + weighed MTP split, `torch` = fused, published dispatch rates | 12.3 | 12.5 | 13.1 | 11.5 | 11.7 | 14.1 | 12.9 | .909 / 9.0 |
| proto7: triton .85, Blackwell cudnn 1.15, tp/grad overlap columns ignored, grouped fused × .5 | 12.0 | 12.1 | 13.0 | 11.3 | 11.6 | 14.2 | 12.9 | .909 / 8.9 |
| **proto7, launch floors kept as framework facts** (FLOOR=1, leaks them) | **10.6** | **10.7** | **12.5** | **9.8** | 10.7 | 13.7 | 12.9 | **.913 / 7.8** |
| aim (−35 %, MoE −50 %, Spearman + .05 calibrated, regret halved) | 10.5 | | 17.5 | | | | | .94 / 3.4 (calibrated, from .893?→ see text) |

MoE without the tiny CI models: start 30.2 (pairs) / 35.9 (rows) → proto5 11.5 / 11.8. All clusters without CI 17.9 → 10.2.
The remaining uncalibrated regret is vtrain-single's (68 of 108 groups, ~9 %) and Ultra-Scale's.'''
T1=T1.replace("| aim (−35 %, MoE −50 %, Spearman + .05 calibrated, regret halved) | 10.5 | | 17.5 | | | | | .94 / 3.4 (calibrated, from .893?→ see text) |","| aim of the issue (error −35 %, MoE −50 %) | 10.5 | | 17.5 | | | | | calibrated Spearman .933 + .05, regret 6.7 / 2 |")
s=s.replace("@@TABLE1@@",T1)
pm=open('pairs_md.txt').read().split("MoE rows without")[0].strip()
s=s.replace("@@PAIRS@@",pm)
rows=[]
for line in open('abl.txt'):
    m=re.match(r"without (.*?)\s+pairs\s+([\d.]+) \(17\) dense\s+([\d.]+) \(16\) moe\s+([\d.]+) \(6\) no-CI\s+([\d.]+) \| clusters\s+([\d.]+) moe\s+([\d.]+) \| ep>8 rows\s+([\d.]+).*moe rows\s+([\d.]+) \| all\s+([\d.]+) \| rank ([\d.]+) regret ([\d.]+)",line)
    if m: rows.append(f"| {m[1].strip() or '**nothing**'} | {m[2]} | {m[3]} | {m[4]} | {m[6]} | {m[7]} | {m[8]} | {m[10]} | {m[11]} / {m[12]} |")
s=s.replace("@@ABLATION@@","| removed | pairs | dense | MoE pairs | clusters | MoE clusters | ep > 8 | all rows | order |\n|---|---|---|---|---|---|---|---|---|\n"+"\n".join(rows)+'''

Read it honestly: on the open rows **graph scopes, dispatchers, launch-floor growth and blocking** pay; recompute modules pay for ep > 8 and for memory; MTP, balance and fp8 attention a little. Neutral once the others are in:
permutation / grouped fusion (the jump of Bridge 26.06 is *explained by full-iteration graphs and expert overlap*; the × .08 of accuracy-findings was standing in for them: use × .5 at most), recipe experts 1.4, and the attention-kernel table (fit 8.1 without, 8.3 with: it makes
constants physical and matters for new GPU × kernel pairs, but no open pair separates it: mosaic wants triton ≈ .85 of FA2 on A100). **Harmful as mapped**: `tp_comm_overlap`/`overlap_grad_reduce` = 0 → fully exposed (8.1 without, 8.3 with): `tp_comm_overlap = 0` still has Megatron's own
asynchronous backward gather (layers.py LinearWithGradAccumulationAndAsyncCommunication), and CI's `overlap_grad_reduce = 0` is lost in launches. Map it to half the exposure or leave it until data says more.''')
cx=[]
cur=None
for f in ("calx_base.txt","calx_p3.txt","calx_p5.txt"):
    for line in open(f):
        m=re.match(r"(\S+) (\S+)\s+n=16",line)
        if m: cur=m.groups()
        m=re.match(r"\s+(uncal|cal)\s+clusters ([\d.]+) \(36\) moe ([\d.]+) rank ([\d.]+) regret ([\d.]+) \(\d+\) clustermean-rank ([\d.]+) regret ([\d.]+) cover ([\d.]+)",line)
        if m and (m[1]=="cal" or cur[1]=="v0"):
            cx.append(f"| {cur[0]} | {'uncalibrated' if m[1]=='uncal' else cur[1]} | {m[2]} | {m[3]} | {m[4]} / {m[5]} | {m[6]} / {m[7]} | {m[8]} |")
b0="| base | uncalibrated | 16.72 | 36.21 | 0.910 / 5.50 | 0.864 / 1.96 | 0.78 |\n| base | v0 | 5.91 | 6.46 | 0.924 / 1.75 | 0.882 / 1.45 | 0.77 |"
s=s.replace("@@CALX@@","| model | calibration | error, clusters | MoE | Spearman / regret, groups | the same, clusters | in 80 % |\n|---|---|---|---|---|---|---|\n"+b0+"\n"+"\n".join(cx)+'''

(v0 = as shipped; w=3: prior widths of elementwise, floors, fixed, loss, permute × 3; long=1: a kernel of length 4 in the mean, as large as the short one; cap: residual clipped; half: half of it; amp: prior amplitude × .5. Rows scored differ a little where widths change the suggested runs.)

Same rows for all variants, and only *pairs of runs whose times differ by > 2 %* (`conc.py`, concordance = share ordered rightly):

| model | calibration | error | concordance, clusters / pooled | regret, clusters |
|---|---|---|---|---|
| base | none | 17.4 | .799 / .900 | 1.56 |
| base | v0 | 5.83 | .837 / .912 | 1.43 |
| base | w=3 | 6.87 | .836 / .866 | 1.81 |
| p3 | none | 12.4 | .845 / .915 | 1.77 |
| p3 | v0 | 6.46 | .874 / .939 | 1.18 |
| p3 | long=1 | 6.47 | .875 / .940 | 1.18 |
| p3 | w=3 | 6.22 | .877 / .946 | 1.87 (vtrain-multi 7.9) |
| p3 | w=3,long=1 | **6.17** | **.877 / .947** | 1.87 |
| p3 | half | 7.32 | .878 / .939 | **.68** |
| p3 | cap .2 | 6.97 | .874 / .939 | 1.18 |
| p3 | amp .5 | 7.17 | .873 / .939 | 1.18 |''')
pl=[]
for line in open('planted.txt'):
    m=re.match(r"(\S+) (\S+) MEAN uncal err ([\d.]+) rank ([\d.]+) regret ([\d.]+) \| cal err ([\d.]+) rank ([\d.]+) regret ([\d.]+) worst regret ([\d.]+)",line)
    if m: pl.append(f"| {m[1]} | {m[2]} | {m[3]} % {m[4]} / {m[5]} | {m[6]} % | {m[7]} / {m[8]} | {m[9]} |")
s=s.replace("@@PLANTED@@","| model | calibration | uncalibrated | calibrated error | Spearman / regret | worst regret |\n|---|---|---|---|---|---|\n"+"\n".join(pl))
w=[]
for line in open('widths.txt'):
    m=re.match(r"(\S+)\s+now ([\d.]+) learnt (\S+)\s+identified by (\d+)",line)
    if m: w.append((m[1],m[2],m[3],m[4]))
s=s.replace("@@WIDTHS@@","| constant | width today | learnt | stacks that identify it |\n|---|---|---|---|\n"+"\n".join(f"| {a} | {b} | {c} | {d} |" for a,b,c,d in w if c!='0.00')+'''

(all others 0: stacks differ by less than their own uncertainty.) So **only the launch floors (and a little fixed_s, tensor_exposed, network) differ between stacks**: between stacks use widths floor_s .6, floor_moe .8, fixed_s .3, tensor_exposed .3, network .25 (identified stacks: +.16, +.36), gemm .08,
everything else ≤ .15. Between a stack and a cluster (calibration) the same table with at least today's half for elementwise, loss, permute (.25): the data cannot say more with 5 stacks; learn the second level the same way from cluster fits (`fitted` per cluster with ≥ 15 rows, empirical Bayes) when building.''')
s=s.replace('''2. Wider widths (× 3 of elementwise/floor/fixed/loss/permute) were the right advice while constants were unphysical; **with the right terms they hurt** (p3: Spearman .946 → .926, regret 1.7 → 2.6; planted worst regret 8.8 → 26). Do not ship them. × 2 of all widths: error + .7.''','''2. Wider widths (× 3 of elementwise/floor/fixed/loss/permute) halve the planted damage at the start (base: mean regret 9.1 → 4.5, worst 31.8 → 26.3) as the findings say, but the right terms do it better without them (p3 v0: 2.3, worst 8.8), and **on top of the right terms they cost regret** (planted 2.3 → 6.2, worst 26; vtrain-multi 3.5 → 7.9)
   while error and concordance improve slightly (6.46 → 6.22 %, .939 → .946). Do not multiply by hand: use the learnt widths of 7 (large for floors, small for the rest). × 2 of all widths: planted error + .7, regret 2.6.''')
s=s.replace('''4. Half the residual in the mean: regret and order best (cluster mean regret 1.2 → .7, vtrain-multi 3.5 → 0) but error 6.2 → 7.2.''','''4. Half the residual in the mean: regret and order best (cluster mean regret 1.2 → .7, vtrain-multi 3.5 → 0; **planted .60, worst 2.5, Spearman .889: the only variant inside the gate ≤ 5**) but error 6.5 → 7.3, planted 4.7 → 8.2.''')
s=s.replace('''1. **Right terms are the cure.** With proto3 the same calibration, unchanged, gives a better order than at the start (see the lines `v0`): jeanzay calibrated .67 → .85, worst planted regret falls, and uncalibrated errors are lower, so the residual has less to do.''','''1. **Right terms are the cure.** With proto3 the same calibration, unchanged, orders better than at the start: concordance .912 → .939, regret (clusters) 1.43 → 1.18, jeanzay Spearman .67 → .85; planted: mean regret 9.1 → 2.3, worst 31.8 → 8.8, Spearman .750 → .845. The error is *not* better (5.8 → 6.5 on common rows: the constants that absorbed wrong terms before were flexible; see 7), so the aim ≤ 5.8 needs the widths of 7 and λ of 4.''')
s=s.replace('''`moe_grouped_mlp_fused` × .08 (one kernel for permutation and both layers; Bridge 26.06).
   Fitted alone on 26.06 the issue's finding: × .08 takes 16.2 → 6.6 % and 27.1 → 7.9 %; in the prototype 26.06 GB200 is +7, GB300 −8 (mean 7 / 15, of which BRDG-0021 is an outlier twice its twins).''','''`moe_grouped_mlp_fused` × .5 (one kernel for both expert layers; Bridge 26.06). The × .08 of the findings is **not** needed: the ablation shows that full-iteration graphs + expert overlap explain 26.06
   (GB200 16.2 → 7 %, GB300 27 → 13 %, of which BRDG-0021 is an outlier twice its twins).''')
s=s.replace('''Ampere flash1 .5, triton .72 (.6 was too low: mosaic +4 → +8), flash2/cudnn 1;''','''Ampere flash1 .5, triton .72–.85 (mosaic: .60 → 7.7, .66 → 6.4, .72 → 5.6, .85 → 4.0 % left out), flash2/cudnn 1;''')
s=s.replace("Blackwell flash1 .2, triton/flash2 .4, flash3 .5, cudnn 1.","Blackwell flash1 .2, triton/flash2 .4, flash3 .5, cudnn 1.0–1.15 (.75 is worse: B200 dense 7.8 → 9.1).")
s=s.replace('''With it `attention` of the stacks agrees (was .58–.64, now one value .83), `elementwise` and `loss_bytes` become physical.''','''With triton .72 `attention` of the stacks agrees (was .58–.64, now one value .83), `elementwise` .80 and `loss_bytes` 21 become physical; with .85 (proto7) they fall back to .45 / 32 at .3 points less error. Decide with eager/loss bytes as facts (2.6), then refit.''')
s=s.replace("| 5 | attention kernel table | measured.py, compute.py | attention_kernel, fp8_attention | flash2 (torchtitan, nanotron), cudnn (Megatron-Core), triton (fsdp1) | dense −1; constants physical |","| 5 | attention kernel table | measured.py, compute.py | attention_kernel, fp8_attention | flash2 (torchtitan, nanotron), cudnn (Megatron-Core), triton (fsdp1) | 0 ± .3 on open pairs; needed for new GPU × kernel |")
s=s.replace("| unseen stack −3 | cite the runs |","| **pairs 12.0 → 10.6** (FLOOR=1; honest only if the fact is known beforehand) | cite the runs |")
open('REPORT.md','w').write(s)
