set -e
cd /tmp && rm -rf mv && git clone -q ${1:-CHECKOUT} mv && cd mv
[ -z "$2" ] || git checkout -q $2
python3 TOOLS/move.py /tmp/mv TOOLS/layout.json --prefix meshwright > /tmp/move.log 2>&1
python3 TOOLS/config.py /tmp/mv
ln -s /tmp/mvenv .venv
CHECKOUT/.venv/bin/ruff check --fix -q --select I,F401 . || true
CHECKOUT/.venv/bin/ruff format -q .
python3 TOOLS/wrap.py /tmp/mv CHECKOUT/.venv/bin/ruff
CHECKOUT/.venv/bin/ruff format -q .
grep -v ^text /tmp/move.log | grep -v "WARN clash"
git config user.name "Seed bba10c94 maintainers"; git config user.email maintainers@users.noreply.a-seed-bba10c94.example
git add -A; git commit -qm "Move and join files"
python3 TOOLS/hand.py /tmp/mv
ruff=CHECKOUT/.venv/bin/ruff; $ruff check --fix -q . || true; $ruff format -q .
git add -A; git commit -qm "By hand"
$ruff check --output-format concise | head -20
python3 /tmp/cyc.py
