"""After move.py: links, pyproject, and other configuration, in CHECKOUT."""
import os, re, sys
os.chdir(sys.argv[1])
os.makedirs('src/meshwright', exist_ok=True)
for d in ('profiles', 'solver', 'service', 'workers', 'migrations'):
    if not os.path.islink(f'src/meshwright/{d}'): os.symlink(f'../../{d}', f'src/meshwright/{d}')
if not os.path.exists('src/meshwright/__init__.py'): open('src/meshwright/__init__.py', 'w').write('"""Meshwright: which parallel configuration should a training run use, and how sure are we?"""\n')
import shutil
for d in ('solver/stacks', 'solver/search/cp', 'solver/mixed', 'solver/why', 'service/engine', 'service/sweep'):
    shutil.rmtree(d, ignore_errors=True)
p = 'pyproject.toml'; s = open(p).read()
s = s.replace('packages = { find = { include = ["profiles*", "solver*", "service*", "workers*", "migrations*"] } }',
 'package-dir = { "" = "src" }  # src/meshwright links to the folders at the root\npackages = { find = { where = ["src"], include = ["meshwright*"] } }')
s = s.replace('\nprofiles = ["catalog/', '\n"meshwright.profiles" = ["catalog/').replace('\nmigrations = ["*.mako"]', '\n"meshwright.migrations" = ["*.mako"]').replace('\nservice = ["report/html', '\n"meshwright.service" = ["report/html')
s = s.replace('pythonpath = [".", "client"]', 'pythonpath = [".", "src", "client"]')
s = s.replace('files = ["profiles", "solver", "service", "workers", "migrations", "client/meshwright_client"', 'files = ["src/meshwright", "client/meshwright_client"').replace('mypy_path = ["client"]', 'mypy_path = ["src", "client"]')
s = s.replace('root_packages = ["profiles", "solver", "service", "workers", "migrations"]', 'root_packages = ["meshwright"]')
def fix(m):
    t = m.group(0)
    return re.sub(r'"(\(?)(profiles|solver|service|workers|migrations)\b', r'"\1meshwright.\2', t)
i = s.index('[tool.importlinter]')
s = s[:i] + re.sub(r'(source_modules|forbidden_modules|layers|containers) = \[[^\]]*\]', fix, s[i:])
s = s.replace('meshwright.service.jobs.jobs"', 'meshwright.service.jobs"').replace('"meshwright.service.engine", ', '').replace('"meshwright.service.jobs.queue", ', '').replace('meshwright.service.requests.parse', 'meshwright.service.requests').replace('meshwright.service.serving.serve', 'meshwright.service.serving')
s = s.replace('layers = ["(cli)", "(serve)", "(web)", "(api)", "(jobs)", "(engine) | (queue)", "(db)", "(settings)"]', 'layers = ["(cli)", "(serving)", "(web)", "(api)", "(stores)", "(auth)", "(jobs)", "(db)", "(settings)"]')
s = s.replace('target-version = "py311"\n', 'target-version = "py311"\nsrc = [".", "src", "client"]\n')
open(p, 'w').write(s)

import subprocess
def sub(p, *pairs):
    s = open(p).read()
    for a, b in pairs:
        if a not in s: print('WARN not in', p, a[:60])
        s = s.replace(a, b)
    open(p, 'w').write(s)
for f in subprocess.run(['git', 'ls-files', '*.py'], capture_output=True, text=True).stdout.split():
    if os.path.isfile(f):
        s = open(f).read()
        n = s.replace('"-m", "meshwright.service.cli.main"', '"-m", "meshwright"').replace("-m meshwright.service.cli.main", "-m meshwright")
        if n != s: open(f, 'w').write(n)
sub('tests/servers.py', ('SERVE = "from meshwright.service.serving.serve import serve; from meshwright.service.settings import Settings; serve(Settings())"',
'SERVE = """from meshwright.service.serving.serve import serve\nfrom meshwright.service.settings import Settings\nserve(Settings())"""'))
