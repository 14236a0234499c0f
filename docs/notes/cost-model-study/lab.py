"""Leave-pair-out laboratory over a copy of the cost model (PYTHONPATH decides which copy)."""
from __future__ import annotations
import csv, hashlib, os, pickle, sys, time
from collections import Counter, defaultdict
from dataclasses import replace, fields
from pathlib import Path
import numpy as np
import solver
from profiles.profile import Constants, stack_constants
from profiles.frameworks import framework_facts
from solver.runs import read_runs
from solver.calibrate import default_profile_of
from solver.calibration.batches import batches_of, log_step_s
from solver.calibration.observations import Observation
from solver.stacks import evidence as ev
from solver.stacks.evidence import TIME, Evidence, linearised, solved, fitted
from solver.predict import predict
from solver.figures import spearman

DATA = Path("SHARED/data/measured_runs.csv")
CODE = Path(solver.__file__).parents[1]
CACHE = Path("STUDY/cache")
rows = {r["run_id"]: r for r in csv.DictReader(open(DATA))}
_all = read_runs(DATA)
refused = [r for r in _all if r.shape is None]
runs = [r for r in _all if r.shape is not None and r.measured.step_time_s]
obs = [Observation.of(r) for r in runs]
raw = [rows[r.run_id] for r in runs]
N = len(runs)
measured = np.log([r.measured.step_time_s for r in runs])
gpu = np.array([r["gpu"] for r in raw]); fam = np.array([r["framework_family"] for r in raw])
pair = np.char.add(np.char.add(gpu, "|"), fam)
cluster = np.array([r.cluster for r in runs])
stack = np.array([framework_facts(o.framework).stack for o in obs])
moe = np.array([bool(r["num_experts"]) for r in raw])
ep = np.array([float(r["expert_parallel_size"] or 1) for r in raw])
rank_group = np.array([r.rank_group or "" for r in runs])
names = TIME.names
def col(name, default=np.nan):
    return np.array([float(r[name]) if r.get(name) not in (None, "") else default for r in raw])
def text(name):
    return np.array([r.get(name) or "" for r in raw])

def correction():
    f = CACHE / "exact.npy"
    if f.exists(): return np.load(f)
    zero = np.zeros((1, len(names)))
    closed = log_step_s(batches_of(obs, default_profile_of), names, zero)[0]
    exact = np.log([predict(o.problem, default_profile_of(o), o.configuration).step_time_s for o in obs])
    np.save(f, exact - closed); return exact - closed
corr = correction()
SUB = int(os.environ.get("SUB", "48"))

def evidence(teach=None):
    keep = np.array([ev.teaches(r) for r in runs]) if teach is None else teach
    idx = np.flatnonzero(keep)
    sub = []
    for c in sorted(set(cluster[idx])):
        mine = idx[cluster[idx] == c]
        if len(mine) > SUB:
            mine = mine[np.unique(np.linspace(0, len(mine) - 1, SUB).astype(int))]
        sub.extend(mine)
    idx = np.array(sorted(sub))
    e = Evidence._of(TIME, [runs[i] for i in idx], [obs[i] for i in idx], measured[idx] - corr[idx])
    return e, idx

class Fits:
    """Global and stack fits plus what is needed to leave any rows out."""
    def __init__(self, centre=None, teach=None, iterations=4, verbose=False, stackwidth=None, start=None):
        self.centre = centre or stack_constants(None)
        self.e, self.idx = evidence(teach)
        self.sh = self.e.shared
        tiny = self.e.tiny; self.shidx = self.idx[~tiny]
        self.gw = TIME.global_widths
        self.general = fitted(self.sh, self.centre, start=(start or self.centre), widths=self.gw, iterations=iterations)
        self.glin = linearised(self.sh, self.general)
        self.est = np.array(self.e.stacks)
        self.sw = stackwidth or TIME.widths
        self.stackfit, self.slin, self.sidx = {}, {}, {}
        for s in sorted(set(self.e.stacks)):
            mine = self.e.of_stack(s)
            base = replace(self._shipped(s), **{n: getattr(self.general, n) for n in names})
            self.stackfit[s] = fitted(mine, base, start=base, widths=self.sw, iterations=iterations)
            self.slin[s] = linearised(mine, self.stackfit[s])
            self.sidx[s] = self.idx[self.est == s]
    def _shipped(self, s):
        sh = stack_constants(s)
        return sh
    def refit_without(self, mask, only=None, iterations=int(os.environ.get('ITER','1'))):
        """As ``without``, but re-linearised: Gauss-Newton with halved steps from the whole fit."""
        keep = ~mask
        g = fitted(self.sh.at(keep[self.shidx]), self.centre, start=self.general, widths=self.gw, iterations=iterations)
        out = {}
        for s in self.slin:
            if only is not None and s not in only: continue
            own = ("floor_s", "floor_moe", "floor_across", "floor_tensor", "fixed_s") if os.environ.get("FLOOR") == "1" else ()
            base = replace(self.stackfit[s], **{n: getattr(g, n) for n in names if n not in own})
            k = keep[self.sidx[s]]
            out[s] = fitted(self.e.of_stack(s).at(k), base, start=self.stackfit[s], widths=self.sw, iterations=iterations) if k.any() else base
        return g, out
    def without(self, mask):
        """Constants of every stack fitted without the rows in mask (over all N rows)."""
        g = solved(self.glin.take(~mask[self.shidx]), self.centre, self.gw)
        out = {}
        for s, lin in self.slin.items():
            keep = ~mask[self.sidx[s]]
            base = replace(self.stackfit[s], **{n: getattr(g, n) for n in names})
            out[s] = solved(lin.take(keep), base, self.sw) if keep.any() else base
        return g, out

_b = {}
def predict_rows(index, profile_of):
    o = [obs[i] for i in index]
    return log_step_s(batches_of(o, profile_of), names, np.zeros((1, len(names))))[0] + corr[index]

def with_constants(c_by_stack):
    def profile_of(one):
        p = default_profile_of(one)
        c = c_by_stack.get(p.framework.stack)
        if c is None: return p
        return replace(p, constants=replace(p.constants, **{n: getattr(c, n) for n in names}))
    return profile_of

def left_out(fits, keys):
    """Log predictions of every row with all rows of its key left out; and constants by key."""
    out, consts = np.zeros(N), {}
    for k in sorted(set(keys)):
        mask = keys == k
        if mask.sum() < 5 and os.environ.get("SMALL") != "1":
            idx = np.flatnonzero(mask); consts[k] = dict(fits.stackfit); out[idx] = predict_rows(idx, with_constants(fits.stackfit)); continue
        _, c = fits.refit_without(mask, only=set(stack[mask])); consts[k] = c
        idx = np.flatnonzero(mask)
        out[idx] = predict_rows(idx, with_constants(c))
    return out, consts

def fitted_pred(fits):
    return predict_rows(np.arange(N), with_constants(fits.stackfit))

def err(pred, rows_=None):
    return 100 * (np.exp(pred - measured) - 1)

def mean_over(e, keys, mask=None, least=5):
    mask = np.ones(N, bool) if mask is None else mask
    v = [np.abs(e[mask & (keys == k)]).mean() for k in sorted(set(keys)) if (mask & (keys == k)).sum() >= least]
    return float(np.mean(v)) if v else float("nan"), len(v)

def ranking(pred, mask=None, by_cluster=False):
    mask = np.ones(N, bool) if mask is None else mask
    res = defaultdict(list)
    for g in sorted(set(rank_group) - {""}):
        i = np.flatnonzero((rank_group == g) & mask)
        if len(i) < 3: continue
        s = spearman(pred[i], measured[i])
        if s is None: continue
        m = np.exp(measured[i]); reg = 100 * (m[np.argmin(pred[i])] / m.min() - 1)
        res[cluster[i[0]]].append((s, reg, len(i)))
    if by_cluster: return {k: tuple(np.mean(v, 0)[:2]) + (len(v), sum(x[2] for x in v)) for k, v in res.items()}
    allv = [x for v in res.values() for x in v]
    return np.mean([x[0] for x in allv]), np.mean([x[1] for x in allv]), len(allv)

tinym = np.array([c.startswith("megatron-ci-") for c in cluster])
def table(pred, label, full=False):
    e = err(pred)
    p, n = mean_over(e, pair); pd_, nd = mean_over(e, pair, ~moe); pm, nm = mean_over(e, pair, moe)
    pnt, nnt = mean_over(e, pair, ~tinym)
    c, nc = mean_over(e, cluster); cm, _ = mean_over(e, cluster, moe)
    h = ep > 8
    s, r, ng = ranking(pred)
    print(f"{label:28s} pairs {p:5.1f} ({n}) dense {pd_:5.1f} ({nd}) moe {pm:5.1f} ({nm}) no-CI {pnt:5.1f} | clusters {c:5.1f} moe {cm:5.1f} | ep>8 rows {np.abs(e[h]).mean():5.1f} ({h.sum()}) moe rows {np.abs(e[moe]).mean():5.1f} | all {np.abs(e).mean():5.1f} | rank {s:.3f} regret {r:.1f} ({ng})", flush=True)
    if full:
        for k in sorted(set(pair)):
            for mm, lab in ((~moe, "dense"), (moe, "moe")):
                m = (pair == k) & mm
                if m.sum(): print(f"   {k:42s} {lab:6s} n {m.sum():4d} mean {np.abs(e[m]).mean():6.1f} median {np.median(np.abs(e[m])):6.1f} bias {np.median(e[m]):+6.1f}")
    return p
def by_cluster(pred):
    e = err(pred)
    for k in sorted(set(cluster)):
        for mm, lab in ((~moe, "dense"), (moe, "moe")):
            m = (cluster == k) & mm
            if m.sum(): print(f"   {k:36s} {lab:6s} n {m.sum():4d} mean {np.abs(e[m]).mean():6.1f} bias {np.median(e[m]):+6.1f}")
