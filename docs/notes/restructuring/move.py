"""Move and join files as layout.json says, rewrite every import and reference. usage: move.py CHECKOUT layout.json [--prefix meshwright]"""
import ast, collections, io, json, os, re, subprocess, sys, textwrap, tokenize

ROOT = sys.argv[1].rstrip('/') + '/'
LAY = json.load(open(sys.argv[2]))
PREFIX = 'meshwright.' if '--prefix' in sys.argv else ''
PRODUCT = ('profiles', 'solver', 'service', 'workers', 'migrations')
ROOMS = PRODUCT + ('tests', 'benchmarks', 'examples', 'client')
MOVE, MERGE, SPLIT = LAY['move'], LAY['merge'], LAY['split']
DIRS = LAY.get('dirs', {})
os.chdir(ROOT)
warn = lambda *a: print('WARN', *a)

src = {}
for r in ROOMS:
    for d, _, fs in os.walk(r):
        if 'node_modules' in d or '/.venv' in d: continue
        for f in fs:
            if f.endswith('.py'):
                p = os.path.join(d, f)
                src[p] = open(p).read()
for k in list(MOVE) + list(MERGE):
    if k not in src: warn('layout names a file that is not there:', k)

def target(p): return MERGE.get(p) or MOVE.get(p, p)
def dotted(p): return p[:-3].replace('/', '.').removesuffix('.__init__')
def newmod(t):
    m = dotted(t)
    return PREFIX + m if m.split('.')[0] in PRODUCT else m
p_of = {dotted(p): p for p in src}
packages = {dotted(os.path.join(d, 'x.py'))[:-2] for d in {os.path.dirname(p) for p in src}}
split_to = {(f, n): t for f, m in SPLIT.items() for t, ns in m.items() for n in ns}

tree = {p: ast.parse(s) for p, s in src.items()}
def names_of(x):
    if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): return [x.name]
    if isinstance(x, ast.Assign):
        return [n.id for y in x.targets for n in ast.walk(y) if isinstance(n, ast.Name)]
    if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name): return [x.target.id]
    if isinstance(x, ast.TypeAlias) if hasattr(ast, 'TypeAlias') else False: return [x.name.id]
    return []
tops = {p: {n: x for x in tree[p].body for n in names_of(x)} for p in src}
def top_imports(p): return [x for x in tree[p].body if isinstance(x, (ast.Import, ast.ImportFrom))]
bound = {}
for p in src:
    b = {}
    for x in top_imports(p):
        for a in x.names:
            if isinstance(x, ast.ImportFrom): b[a.asname or a.name] = (x.module, a.name)
    bound[p] = b

groups = collections.defaultdict(list)
for p in src: groups[target(p)].append(p)
for t, ps in groups.items():  # the primary first: the file that is at the target, or that moves there
    ps.sort(key=lambda p: (p in MERGE, p != t, p))
for t in set(split_to.values()): groups.setdefault(t, [])

# names that clash when files are joined
GIVEN = {tuple(k.split(':')): v for k, v in LAY.get('names', {}).items()}
ren = {k: v for k, v in GIVEN.items() if k[0] in tops and k[1] in tops[k[0]] and v != k[1]}
for t, ps in groups.items():
    seen = {}
    for p in ps:
        for n in tops[p]:
            if split_to.get((p, n), t) != t: continue
            if (p, n) in GIVEN: continue
            if n in seen and seen[n] != p:
                x, y = tops[p][n], tops[seen[n]][n]
                if ast.dump(x) == ast.dump(y) and isinstance(x, (ast.Assign, ast.AnnAssign)):
                    ren[(p, n)] = None  # the same constant: written once
                    continue
                tag = os.path.basename(p)[:-3]
                ren[(p, n)] = LAY.get('names', {}).get(f'{p}:{n}') or (f'{n}_{tag}' if n.startswith('_') or n[0].islower() else n + tag.title().replace('_', ''))
                warn('clash', t, n, 'of', p, 'and', seen[n], '->', ren[(p, n)])
            else: seen[n] = p

def resolve(m, n, depth=0):
    """(file, name) of the definition behind module m's name n; a module: (file, None); None: not ours."""
    q = f'{m}.{n}'
    if q in p_of and not (m in p_of and n in tops[p_of[m]]): return (p_of[q], None)
    if m not in p_of: return None
    p = p_of[m]
    if n in tops[p]: return (p, n)
    if n in bound[p] and depth < 9:
        return resolve(*bound[p][n], depth + 1) or ('?', (bound[p][n]))
    return None
def place(p, n):
    """New file and new name of a definition."""
    r = ren.get((p, n), n)
    return split_to.get((p, n), target(p)), (n if r is None else r)

def new_ref(m, n):
    """Where (m, n) is imported from now: ('def', file, name) | ('mod', file) | ('ext', module, name)."""
    r = resolve(m, n)
    if r is None:
        if m and m.split('.')[0] in PRODUCT:
            mm = f'{m}.{n}'
            if mm in packages: return ('ext', PREFIX + DIRS.get(m, m), n)
            warn('unresolved', m, n); return ('ext', PREFIX + m, n)
        return ('ext', m, n)
    if r[0] == '?': return ('ext', *r[1])
    if r[1] is None: return ('mod', target(r[0]))
    return ('def', *place(*r))

class Scopes(ast.NodeVisitor):
    """Name nodes at which a module-level name is meant."""
    def __init__(self): self.stack = []; self.hits = []; self.attrs = []; self.kw = []
    def locals_of(self, f):
        out = set(); glob = set()
        args = f.args
        for a in args.posonlyargs + args.args + args.kwonlyargs + [args.vararg, args.kwarg]:
            if a: out.add(a.arg)
        body = f.body if isinstance(f.body, list) else [f.body]
        def walk(x):
            for c in ast.iter_child_nodes(x):
                if isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): out.add(c.name); continue
                if isinstance(c, ast.Lambda): continue
                if isinstance(c, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                    for g in c.generators: walk_walrus(c)
                    continue
                if isinstance(c, ast.Name) and isinstance(c.ctx, (ast.Store, ast.Del)): out.add(c.id)
                if isinstance(c, (ast.Import, ast.ImportFrom)):
                    for a in c.names: out.add((a.asname or a.name).split('.')[0])
                if isinstance(c, ast.ExceptHandler) and c.name: out.add(c.name)
                if isinstance(c, (ast.MatchAs, ast.MatchStar)) and c.name: out.add(c.name)
                if isinstance(c, ast.MatchMapping) and c.rest: out.add(c.rest)
                if isinstance(c, ast.Global): glob.update(c.names)
                walk(c)
        def walk_walrus(x):
            for c in ast.walk(x):
                if isinstance(c, ast.NamedExpr): out.add(c.target.id)
        for b in body:
            class W: pass
            holder = ast.Module(body=[b], type_ignores=[]) if isinstance(b, ast.stmt) else ast.Expression(body=b)
            walk(holder)
        return out - glob
    def function(self, f):
        for d in getattr(f, 'decorator_list', []): self.visit(d)
        a = f.args
        for x in a.defaults + [k for k in a.kw_defaults if k]: self.visit(x)
        for x in a.posonlyargs + a.args + a.kwonlyargs + [a.vararg, a.kwarg]:
            if x and x.annotation: self.visit(x.annotation)
        if getattr(f, 'returns', None): self.visit(f.returns)
        self.stack.append((self.locals_of(f), f))
        for b in (f.body if isinstance(f.body, list) else [f.body]): self.visit(b)
        self.stack.pop()
    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = function
    def comp(self, c):
        first = c.generators[0]
        self.visit(first.iter)
        loc = {n.id for g in c.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.stack.append((loc, c))
        for i, g in enumerate(c.generators):
            self.visit(g.target)
            if i: self.visit(g.iter)
            for x in g.ifs: self.visit(x)
        for k in ('elt', 'key', 'value'):
            if hasattr(c, k): self.visit(getattr(c, k))
        self.stack.pop()
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comp
    def visit_Name(self, n):
        self.hits.append((n, tuple(s for s in self.stack)))
    def visit_Attribute(self, a):
        if isinstance(a.value, ast.Name): self.attrs.append((a, tuple(self.stack)))
        self.generic_visit(a)
def shadowed(name, stack): return any(name in loc for loc, _ in stack)
def meant_locally(name, stack, function):
    """Is a local import of ``function`` what the name means here?"""
    for loc, f in reversed(stack):
        if f is function: return True
        if name in loc: return False
    return False

# dotted references in strings, comments and documents
REF = re.compile(r'(?<![\w./-])(?:' + '|'.join(PRODUCT) + r')(?:\.[A-Za-z_]\w*)+')
PATHS = re.compile(r'(?<![\w.-])(?:' + '|'.join(PRODUCT + ('tests', 'benchmarks')) + r')/[\w/]*\w\.py\b')
def new_text(s, old=None):
    def ref(mt):
        w = mt.group(0)
        parts = w.split('.')
        for k in range(len(parts), 0, -1):
            m = '.'.join(parts[:k]); rest = parts[k:]
            if m in p_of and not (k == 1):
                p = p_of[m]
                if not rest:
                    return newmod(target(p))
                r = resolve(m, rest[0])
                if r and r[1] and r[0] != '?':
                    if r[0] == p:
                        t, n = place(*r)
                    else:  # patched where it is used
                        t = target(p); n = rest[0]
                        if place(*r)[0] == t or (r in ren): n = place(*r)[1]
                    return '.'.join([newmod(t), n] + rest[1:])
                if rest[0] in bound[p] or (rest[0].isidentifier() and w.endswith(('.' + rest[0]))):
                    if rest[0] in ('py', 'yaml', 'json', 'md'): return w
                    return '.'.join([newmod(target(p))] + rest)
                return w
            if m in packages and k > 1 and not rest:
                return PREFIX + DIRS.get(m, m)
        return w
    s = re.sub(r'(-m |-m, |-A )(workers|migrations)\b(?![.\w])', r'\1' + PREFIX + r'\2', s)
    s = REF.sub(ref, s)
    s = PATHS.sub(lambda m: target(m.group(0)) if m.group(0) in src else m.group(0), s)
    return s

def col(line, off): return len(line.encode()[:off].decode())

def rewrite(p, t, imports, own, keep_local=False):
    """Lines of p with names, inner imports and references rewritten; fills ``imports`` of the file t. None: a line that goes."""
    L = src[p].split('\n')
    edits = []  # (line, start, end, text)
    alias = {}  # local name -> new name (module-level)
    modules = {}  # local name -> file of the module that it names
    def bind(want, key, asked=None):
        """A local name for key in the file t."""
        if keep_local: return asked
        for b, k in imports.items():
            if k == key and (b == want or key[0] != 'ext'): return b
        name = want
        if (name in own) or (name in imports and imports[name] != key):
            name = f"{want}_of_{(key[1] if key[0]=='ext' else dotted(key[1])).split('.')[-1]}"
            warn('import clash in', t, want, '->', name)
        imports[name] = key
        return name
    for x in top_imports(p):
        for a in x.names:
            local = a.asname or a.name
            if isinstance(x, ast.Import):
                root = a.name.split('.')[0]
                if root in PRODUCT:
                    imports[root] = ('ext', PREFIX.rstrip('.'), root); continue
                imports.setdefault(a.asname or root, ('import', a.name, a.asname)) if a.asname or '.' not in a.name else imports.setdefault(a.name, ('import', a.name, None))
                continue
            if x.module == '__future__': imports['annotations'] = ('ext', '__future__', 'annotations'); continue
            new = new_ref(x.module, a.name)
            if new[0] == 'ext':
                b = bind(local, ('ext', new[1], new[2]), local)
                if b != local: alias[local] = b
            elif new[0] == 'mod':
                r = resolve(x.module, a.name)
                modules[local] = r[0]
                if new[1] != t:
                    leaf = os.path.basename(new[1])[:-3]
                    want = a.asname or (leaf if leaf not in tops[p] else local)
                    b = bind(want, ('mod', new[1]), local)
                    if b != local: alias[local] = b
            else:
                _, tf, nn = new
                if tf == t:
                    if nn != local: alias[local] = nn
                else:
                    want = local if a.asname else nn
                    b = bind(want, ('def', tf, nn), local)
                    if b != local: alias[local] = b
    for n in tops[p]:
        tt, nn = place(p, n)
        if tt == t:
            if nn != n: alias[n] = nn
        elif target(p) == t:  # moved away, maybe still used here
            b = bind(nn, ('def', tt, nn))
            if b != n: alias[n] = b
        else: pass
    if target(p) != t:  # a definition that was split off into t uses names of its old file
        for n in tops[p]:
            tt, nn = place(p, n)
            if tt != t:
                b = bind(nn, ('def', tt, nn)); 
                if b != n: alias[n] = b
    v = Scopes(); v.visit(tree[p])
    # imports inside functions
    inner = []  # (function, local, newname, module file or None)
    parents = {c: x for x in ast.walk(tree[p]) for c in ast.iter_child_nodes(x)}
    out_lines = {}
    for x in ast.walk(tree[p]):
        if isinstance(x, (ast.ImportFrom,)) and parents[x] is not tree[p] and x.module and x.module.split('.')[0] in PRODUCT:
            f = x
            while f is not None and not isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)): f = parents.get(f)
            g = collections.OrderedDict()
            for a in x.names:
                local = a.asname or a.name
                new = new_ref(x.module, a.name)
                if new[0] == 'ext': g.setdefault(new[1], []).append(a.name + (f' as {a.asname}' if a.asname else ''))
                elif new[0] == 'mod':
                    if new[1] == t: inner.append((f, local, None, resolve(x.module, a.name)[0])); continue
                    leaf = os.path.basename(new[1])[:-3]
                    g.setdefault(newmod(os.path.dirname(new[1]) + '.py'), []).append(leaf + (f' as {local}' if local != leaf else ''))
                    inner.append((f, local, local, resolve(x.module, a.name)[0]))
                else:
                    _, tf, nn = new
                    if tf == t: inner.append((f, local, nn, None)); continue
                    g.setdefault(newmod(tf), []).append(nn + (f' as {local}' if local != nn else ''))
            tail = ''
            last = L[x.end_lineno - 1]
            if '#' in last: tail = '  ' + last[last.index('#'):]
            elif '#' in L[x.lineno - 1]: tail = '  ' + L[x.lineno - 1][L[x.lineno - 1].index('#'):]
            ind = ' ' * x.col_offset
            out_lines[x.lineno - 1] = [f"{ind}from {m} import {', '.join(ns)}{tail}" for m, ns in g.items()]
            for k in range(x.lineno, x.end_lineno): out_lines[k] = []
    def inner_of(name, stack):
        for f, local, nn, mod in inner:
            if local == name and meant_locally(name, stack, f): return (nn, mod)
        return None
    done = set()
    for a, stack in v.attrs:
        name = a.value.id
        i = inner_of(name, stack)
        mod = None
        if i and i[1]: mod = i[1]; here = i[0] is None
        elif name in modules and not shadowed(name, stack): mod = modules[name]; here = target(mod) == t
        if mod is None: continue
        r = resolve(dotted(mod), a.attr)
        if r is None or r[1] is None or r[0] == '?':
            if here: warn('attribute', p, name, a.attr)
            continue
        tt, nn = place(*r)
        ln = a.end_lineno - 1
        e = col(L[ln], a.end_col_offset)
        if here:
            s = col(L[a.value.lineno - 1], a.value.col_offset)
            if a.value.lineno != a.end_lineno: warn('multi-line attribute', p, a.lineno); continue
            edits.append((ln, s, e, nn)); done.add((a.value.lineno, a.value.col_offset))
        elif nn != a.attr: edits.append((ln, e - len(a.attr), e, nn))
        if not here and tt != target(mod): warn('split attribute', p, name, a.attr)
    for n, stack in v.hits:
        if (n.lineno, n.col_offset) in done: continue
        i = inner_of(n.id, stack)
        if i:
            if i[0] and i[0] != n.id and i[1] is None:
                s = col(L[n.lineno - 1], n.col_offset); edits.append((n.lineno - 1, s, s + len(n.id), i[0]))
            continue
        if n.id in alias and not shadowed(n.id, stack):
            s = col(L[n.lineno - 1], n.col_offset); edits.append((n.lineno - 1, s, s + len(n.id), alias[n.id]))
    for x in tree[p].body:
        if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and x.name in alias:
            ln = x.lineno - 1; s = L[ln].index(x.name, x.col_offset + 4)
            edits.append((ln, s, s + len(x.name), alias[x.name]))
    # strings and comments
    toks = list(tokenize.generate_tokens(io.StringIO(src[p]).readline))
    for tk in toks:
        if tk.type in (tokenize.STRING, tokenize.COMMENT):
            if tk.start[0] == tk.end[0]:
                nt = new_text(tk.string)
                if nt != tk.string: edits.append((tk.start[0] - 1, tk.start[1], tk.end[1], nt))
            else:
                for k in range(tk.start[0] - 1, tk.end[0]):
                    a_ = tk.start[1] if k == tk.start[0] - 1 else 0
                    b_ = tk.end[1] if k == tk.end[0] - 1 else len(L[k])
                    nt = new_text(L[k][a_:b_])
                    if nt != L[k][a_:b_]: edits.append((k, a_, b_, nt))
    by = collections.defaultdict(list)
    for ln, s, e, x in set(edits): by[ln].append((s, e, x))
    for ln, es in by.items():
        if ln in out_lines: continue
        line = L[ln]
        last = None
        for s, e, x in sorted(es, reverse=True):
            if last is not None and e > last: continue  # inside an f-string that was rewritten whole
            line = line[:s] + x + line[e:]; last = s
        L[ln] = line
    M = [[l] for l in L]
    for ln, ls in out_lines.items(): M[ln] = ls
    for ln, ls in out_lines.items():
        if not ls and all(not M[k] for k in range(ln, ln + 1)):
            k = ln + 1
            while k < len(M) and k in out_lines: k += 1
            if k < len(M) and M[k] == [''] : M[k] = []
    return M

def section(text):
    """A module's docstring as a comment above what came from it, paragraphs filled again."""
    out = []
    for i, para in enumerate(re.split(r'\n\s*\n', text.strip('\n'))):
        if i: out.append('#')
        ls = para.split('\n')
        if any(re.match(r'\s|[*-] ', l) for l in ls):
            for l in ls:
                ind = ' ' * (len(l) - len(l.lstrip()))
                out += ['# ' + w for w in textwrap.wrap(l, 104, subsequent_indent=ind + '  ')]
        else: out += ['# ' + w for w in textwrap.wrap(' '.join(ls), 104)]
    return out

def pieces(p, M):
    """Docstring and statements of p, each with the comments before it."""
    body = tree[p].body
    prev = 0; out = []
    doc = None
    for i, x in enumerate(body):
        first = min([x.lineno] + [d.lineno for d in getattr(x, 'decorator_list', [])])
        if i == 0 and isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant) and isinstance(x.value.value, str):
            doc = [l for m in M[x.lineno - 1:x.end_lineno] for l in m]; prev = x.end_lineno; continue
        if isinstance(x, (ast.Import, ast.ImportFrom)):
            lead = [l for m in M[prev:first - 1] for l in m if l.strip()]
            if lead: out.append((None, lead))
            prev = x.end_lineno; continue
        text = [l for m in M[prev:x.end_lineno] for l in m]
        out.append((x, text)); prev = x.end_lineno
    tail = [l for m in M[prev:] for l in m]
    if any(l.strip() for l in tail): out.append((None, tail))
    return doc, out

def order(t, ps):
    deps = {p: set() for p in ps}
    for p in ps:
        for x in top_imports(p):
            if isinstance(x, ast.ImportFrom):
                for a in x.names:
                    r = resolve(x.module, a.name)
                    if r and r[0] in deps and r[0] != p: deps[p].add(r[0])
    out, left = [], list(ps)
    while left:
        free = [p for p in left if not deps[p] - set(out)]
        if not free: warn('cycle in', t, left); out += left; break
        out.append(free[0]); left.remove(free[0])
    return out

def alone(p, t):
    M = rewrite(p, t, {}, set(), keep_local=True)
    L = src[p].split('\n')
    for x in ast.walk(tree[p]):
        if isinstance(x, ast.Import) and any(a.name.split('.')[0] in PRODUCT for a in x.names):
            M[x.lineno - 1] = [f"{' ' * x.col_offset}import " + ', '.join(newmod(target(p_of[a.name])) + (f' as {a.asname}' if a.asname else '') for a in x.names)]
            warn('plain import', p)
        if isinstance(x, ast.ImportFrom) and x in tree[p].body and x.module and x.module.split('.')[0] in PRODUCT + ('tests', 'benchmarks'):
            g = collections.OrderedDict()
            for a in x.names:
                local = a.asname or a.name
                if a.name == '*': g.setdefault(new_text(x.module), []).append('*'); continue
                new = new_ref(x.module, a.name)
                if new[0] == 'ext': m, n = new[1], new[2]
                elif new[0] == 'mod': m, n = newmod(os.path.dirname(new[1]) + '/__init__.py') , os.path.basename(new[1])[:-3]
                else: m, n = newmod(new[1]), new[2]
                g.setdefault(m, []).append(n + (f' as {local}' if local != n else ''))
            last = L[x.end_lineno - 1]
            tail = '  ' + last[last.index('#'):] if '#' in last else ''
            M[x.lineno - 1] = [f"from {m} import {', '.join(ns)}{tail}" for m, ns in g.items()]
            for k in range(x.lineno, x.end_lineno): M[k] = []
    return '\n'.join(l for m in M for l in m)

result = {}
for t, ps in sorted(groups.items()):
    own = {place(p, n)[1] for p in ps for n in tops[p] if split_to.get((p, n), t) == t}
    own |= {place(f, n)[1] for (f, n), tt in split_to.items() if tt == t}
    imports = {}
    chunks = []
    doc = None
    for f in {f for (f, n), tt in split_to.items() if tt == t and target(f) != t}:
        M = rewrite(f, t, imports, own)
        for x, text in pieces(f, M)[1]:
            if x is not None and any(split_to.get((f, n)) == t for n in names_of(x)): chunks.append(text)
    prime = ps[0] if ps else None
    for p in order(t, ps):
        M = rewrite(p, t, imports, own)
        d, items = pieces(p, M)
        if p == prime: doc = d
        elif d:
            s = ast.get_docstring(tree[p])
            s = new_text(s)
            chunks.append(['', '', '# ' + '-' * 98] + section(s) + [''])
        for x, text in items:
            if x is not None:
                ns = names_of(x)
                if ns and all(split_to.get((p, n), t) != t for n in ns): continue
                if ns and all(ren.get((p, n), n) is None for n in ns): continue
                if p != prime and isinstance(x, ast.If) and '__main__' in ast.dump(x.test): warn('__main__ of a joined file', p)
            chunks.append(text)
    code = '\n'.join('\n'.join(c) for c in chunks) if len(ps) > 1 or not ps or any(tt == t and target(f) != t for (f, n), tt in split_to.items()) else None
    if code is None:  # one file: its own spacing and its own imports, each rewritten in place
        p = ps[0]
        if not any(f == p for f, _ in split_to):
            result[t] = alone(p, t); continue
        M = rewrite(p, t, {}, own)
        gone = set()
        for x in tree[p].body:
            ns = names_of(x)
            if ns and all(split_to.get((p, n), t) != t for n in ns):
                gone.update(range(min([x.lineno] + [d.lineno for d in getattr(x, 'decorator_list', [])]) - 1, x.end_lineno))
        for x in top_imports(p): gone.update(range(x.lineno - 1, x.end_lineno))
        n = tree[p].body[0].end_lineno if doc else 0
        code = '\n'.join(l for i, m in enumerate(M) if i not in gone and i >= n for l in m)
    used = set(re.findall(r'[A-Za-z_]\w*', code))
    plain, frm = [], collections.defaultdict(set)
    keep_noqa = {}
    for b, k in imports.items():
        if b == 'annotations' and k[1] == '__future__': continue
        if b.split('.')[0] not in used and not any('__init__' in p for p in ps): continue
        if k[0] == 'import':
            plain.append('import ' + k[1] + (f' as {k[2]}' if k[2] else ''))
        elif k[0] == 'ext': frm[k[1]].add(k[2] + (f' as {b}' if b != k[2] else ''))
        elif k[0] == 'mod':
            leaf = os.path.basename(k[1])[:-3]
            frm[newmod(os.path.dirname(k[1]) + '.py')].add(leaf + (f' as {b}' if b != leaf else ''))
        else: frm[newmod(k[1])].add(k[2] + (f' as {b}' if b != k[2] else ''))
    head = ([] if 'annotations' not in imports else ['from __future__ import annotations', ''])
    head += sorted(set(plain)) + [f'from {m} import {", ".join(sorted(ns))}' for m, ns in sorted(frm.items())]
    result[t] = ('\n'.join(doc) + '\n\n' if doc else '') + '\n'.join(head) + ('\n\n' if head else '') + code.strip('\n') + '\n'
    if not src.get(t, 'x').strip() and len(ps) == 1: result[t] = src[t]

for p in src:
    if target(p) != p and p not in MERGE:
        os.makedirs(os.path.dirname(target(p)), exist_ok=True)
        if os.path.exists(target(p)) and target(p) in src and target(p) in MOVE or not os.path.exists(target(p)): pass
# two steps, since a target may be another file's old name
moved = [(p, target(p)) for p in src if p not in MERGE and target(p) != p]
for p, t in moved: subprocess.run(['git', 'mv', p, p + '.moving'], check=True)
for p, t in moved:
    os.makedirs(os.path.dirname(t), exist_ok=True); subprocess.run(['git', 'mv', p + '.moving', t], check=True)
for p in MERGE:
    if p in src: subprocess.run(['git', 'rm', '-q', '--cached', p], check=True); os.remove(p)
for t, c in result.items():
    d = os.path.dirname(t)
    os.makedirs(d, exist_ok=True)
    while d:
        if not os.path.exists(d + '/__init__.py') and d.split('/')[0] in PRODUCT + ('benchmarks',): open(d + '/__init__.py', 'w').close()
        d = os.path.dirname(d)
    open(t, 'w').write(c.replace('"-m", "workers"', f'"-m", "{PREFIX}workers"'))
for d, _, fs in list(os.walk('.')):
    if d.startswith(tuple('./' + r for r in PRODUCT)) and set(os.listdir(d)) <= {'__init__.py', '__pycache__'}:
        warn('empty package', d)
for f in subprocess.run(['git', 'ls-files'], capture_output=True, text=True).stdout.split():
    if f.endswith(('.md', '.toml', '.yml', '.sh', '.cfg', '.txt', '.html', '.yaml')) or f in ('Makefile', 'Dockerfile', '.ci/run', '.dockerignore', 'NOTICE'):
        if f.startswith(('profiles/catalog/runs', 'tests/golden', 'tests/fixtures')) or not os.path.isfile(f): continue
        s = open(f).read(); n = new_text(s)
        if n != s: open(f, 'w').write(n); print('text', f)
print(len(result), 'files')
