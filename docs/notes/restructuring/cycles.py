import ast,os,collections,sys
roots=['profiles','solver','service','workers']
mods={}
for r in roots:
    for d,_,fs in os.walk(r):
        for f in fs:
            if f.endswith('.py') and f!='__init__.py':
                p=os.path.join(d,f); mods['meshwright.'+p[:-3].replace('/','.')]=p
g={}
for m,p in mods.items():
    s=set()
    for x in ast.parse(open(p).read()).body:
        if isinstance(x,ast.ImportFrom) and x.module:
            for a in x.names:
                q=f'{x.module}.{a.name}'
                if q in mods: s.add(q)
                elif x.module in mods: s.add(x.module)
    g[m]=s
# SCC
idx={};low={};st=[];on=set();out=[];c=[0]
sys.setrecursionlimit(9999)
def dfs(v):
    idx[v]=low[v]=c[0];c[0]+=1;st.append(v);on.add(v)
    for w in g[v]:
        if w not in idx: dfs(w);low[v]=min(low[v],low[w])
        elif w in on: low[v]=min(low[v],idx[w])
    if low[v]==idx[v]:
        k=[]
        while True:
            w=st.pop();on.discard(w);k.append(w)
            if w==v: break
        if len(k)>1: out.append(k)
for v in g:
    if v not in idx: dfs(v)
for k in out:
    print('CYCLE',len(k))
    for v in sorted(k): print('  ',v,'->',sorted(w for w in g[v] if w in k))
