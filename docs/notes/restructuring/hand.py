"""Hand edits after move.py, config.py and wrap.py. usage: hand.py CHECKOUT"""
import os, subprocess, sys, glob
os.chdir(sys.argv[1])
for p in sorted(glob.glob('TOOLS/patches/*.patch')):
    out = subprocess.run(['patch', '-p1', '--no-backup-if-mismatch', '-i', p], capture_output=True, text=True).stdout
    print('\n'.join(l for l in out.splitlines() if not l.startswith('patching')))
for r in subprocess.run("find . -name '*.rej' -not -path './.git/*'", shell=True, capture_output=True, text=True).stdout.split():
    print('REJECT', r); print(open(r).read()); os.remove(r)
def put(p, old, new):
    if not os.path.exists(p): print('WARN no', p); return
    s = open(p).read()
    if old not in s: print('WARN not in', p, old[:50]); return
    open(p, 'w').write(s.replace(old, new, 1))
def doc(p, text):
    s = open(p).read(); i = s.index('"""', 3) + 3; open(p, 'w').write(text + s[i:])
doc('service/api/__main__.py', '"""``python -m meshwright.service.api`` prints the OpenAPI document of this version."""')
doc('service/reference/__main__.py', '"""``python -m meshwright.service.reference`` writes the pages of the documentation made from code."""')
doc('workers/__main__.py', '"""``python -m meshwright.workers``: one worker process, polling or, with ``--celery``, beside a queue."""')
put('tests/unit/service/cli/test_files.py', '"import resource, sys; from pathlib import Path; from meshwright.service.cli.files import save_folder;"', '"import resource, sys; from pathlib import Path;"\n        "from meshwright.service.cli.files import save_folder;"')
put('tests/integration/test_large_bodies.py', 'IMPATIENT = f"import meshwright.service.api.deps as deps; ', 'IMPATIENT = f"import meshwright.service.api.deps as deps\\n')
