"""Break docstring and comment lines that moved names made too long. usage: wrap.py CHECKOUT RUFF"""
import os, re, subprocess, sys
os.chdir(sys.argv[1])
for _ in range(3):
    out = subprocess.run([sys.argv[2], 'check', '--select', 'E501', '--output-format', 'concise'], capture_output=True, text=True).stdout
    hits = {}
    for l in out.splitlines():
        m = re.match(r'(.+?\.py):(\d+):', l)
        if m: hits.setdefault(m[1], []).append(int(m[2]))
    for f, ns in hits.items():
        L = open(f).read().split('\n')
        for n in sorted(ns, reverse=True):
            l = L[n - 1]
            ind = l[:len(l) - len(l.lstrip())]
            if l.lstrip().startswith('#'):
                ind += '# '; rest = l.lstrip()[2:]
            else: rest = l.lstrip()
            if not l.lstrip().startswith('#') and re.search(r'[=(]\s*["\']|import ', l) and not l.startswith('"""'): print('by hand', f, n, l[:90]); continue
            at = (ind + rest).rfind(' ', len(ind) + 5, 104)
            whole = ind + rest
            L[n - 1] = whole[:at] + '\n' + ind + whole[at + 1:]
            if l.startswith('"""') and l.endswith('"""') and len(l) > 6:
                one = l.strip('"')
                at = one.rfind(': ', 0, 100)
                print('one-line docstring by hand', f, n)
        open(f, 'w').write('\n'.join(L))
