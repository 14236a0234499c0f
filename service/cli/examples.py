"""Examples under the ``--help`` of every command: one table, shown there and in the documentation."""

from __future__ import annotations

_ASKED = "--model llama-3.1-8b --cluster dgx-h100 --num-nodes 4 --global-batch-size 256 --seq-length 8192"
EXAMPLES = {
    "plan": (
        f"meshwright plan {_ASKED}",
        "meshwright plan Qwen/Qwen3-8B --gpus 4xA100-40GB --global-batch-size 64x4k",
        "meshwright plan problem.yaml --pin tp=8 --top-k 5 --save-dir run/",
        f"meshwright plan {_ASKED} --sweep num_nodes=2,4,8 --csv",
    ),
    "predict": (
        f"meshwright predict {_ASKED} --set tp=2 --set pp=2 --set mbs=1",
        "meshwright predict --from-args train.sh --cluster dgx-h100 --num-nodes 4",
        "meshwright predict --from-args run.json --cluster dgx-h100 --num-nodes 4",
    ),
    "memory": ("meshwright memory llama-3.1-8b --gpu h100-sxm-80gb",),
    "fits": (
        "meshwright fits Qwen/Qwen3-8B --gpus 1xRTX-4090",
        "meshwright fits llama-3.1-8b --gpus 2xA100-40GB --seq-length 2048 --tokens 50M --commands",
    ),
    "explain": (
        f"meshwright explain {_ASKED} --set tp=8 --set pp=4 --set mbs=1",
        "meshwright explain --from-args train.sh --cluster dgx-h100 --num-nodes 4 --var TP=8",
        "meshwright explain --plan 992b",
    ),
    "fix": (
        "meshwright fix train.sh --cluster dgx-h100 --num-nodes 8 | git apply",
        "meshwright fix train.sh --cluster dgx-h100 --edits 1 --in-place=.bak",
        "meshwright fix --compare origin/main HEAD --cluster dgx-h100 --fail-above 2%",
    ),
    "capture": (
        "meshwright capture --out run.json -- bash train.sh 8 4",
        "TP=8 meshwright capture --out run.json -- bash train.sh",
    ),
    "compare": ("meshwright compare 992b 41c0", "meshwright compare 1 3 --from run/answer.json"),
    "shapes": (f"meshwright shapes {_ASKED} --tolerance 0.01",),
    "export": (
        "meshwright export 992b --save-dir run/",
        "meshwright export --from answer.json --rank 2 --save-dir run/",
    ),
    "report": (
        "meshwright report 992b --open",
        "meshwright report --from run/answer.json --out run/report.html",
        "meshwright report 992b --timeline step.json",
    ),
    "plot": ("meshwright plot 992b --out plan.pdf",),
    "calibrate": (
        "meshwright calibrate runs.csv --out mine.json",
        "meshwright calibrate runs.csv --measure-next 3",
    ),
    "validate": (
        "meshwright validate runs.csv",
        "meshwright validate runs.csv --calibrate 8 --per-run predictions.csv",
    ),
    "profile": (
        "meshwright profile --model llama-3.1-8b --seq-length 8192 --out layers.json --tp 1,2,4",
        "torchrun --nproc-per-node=8 -m meshwright profile --model X --seq-length 8192 --out x.json",
    ),
    "import": (
        "meshwright import topo.txt --gpu h100 --num-nodes 16 --out cluster.yaml",
        "meshwright import all_reduce.log --into cluster.yaml",
        "meshwright import train.log --model llama-3.1-8b --gpu h100 --into runs.csv",
    ),
    "tune": (
        "meshwright tune 992b --budget-gpu-minutes 120 --save-dir tuning/",
        "meshwright tune --from run/answer.json -- torchrun --nproc-per-node 8 train.py --steps {steps}",
    ),
    "verify": (
        "meshwright verify --install megatron-lm",
        "meshwright verify 992b",
        "meshwright verify --from run/answer.json --rank 2 --json",
    ),
    "replan": (
        "meshwright replan 992b --lost-nodes 3 --steps-done 120000 --steps-total 900000",
        "meshwright replan 992b --slow-node 17=.7 --checkpoint run/checkpoints --save-dir run2/",
    ),
    "mcp": ("meshwright mcp", "meshwright mcp --server https://meshwright.example --cpu-seconds 60"),
    "here": (
        "meshwright here",
        "meshwright here --out cluster.yaml --hostfile hosts",
        "meshwright plan llama-3.1-8b --cluster here --global-batch-size 64 --seq-length 8192",
    ),
    "fleet": (
        "meshwright fleet fleet.yaml --out starts/",
        "meshwright fleet fleet.yaml --running state.yaml --json",
    ),
    "models": ("meshwright models", "meshwright models qwen3 8b"),
    "clusters": ("meshwright clusters", "meshwright clusters --json"),
    "gpus": ("meshwright gpus", "meshwright gpus 4090"),
    "values": ("meshwright values launcher", "meshwright values allow"),
    "config": ("meshwright config", "MESHWRIGHT_LAUNCHER=trl meshwright config --json"),
    "serve": (
        "meshwright serve",
        "meshwright serve --port 9000 --workers 4 --database-url sqlite:////var/lib/meshwright/jobs.db",
    ),
    "worker": ("meshwright worker --database-url postgresql://meshwright@db/meshwright --celery",),
    "launch": (
        "meshwright launch --problem problem.yaml -- torchrun --nproc-per-node 8 pretrain_gpt.py",
        "meshwright launch --cluster-from slurm --save-dir /shared/run --limit-s 60",
    ),
    "demo": ("meshwright demo", "meshwright demo problem.json --out out"),
    "jobs": ("meshwright jobs list", "meshwright jobs submit problem.json --wait"),
    "jobs submit": (
        "meshwright jobs submit problem.json --wait",
        f"meshwright jobs submit {_ASKED} --priority 0 --url http://planner:8420",
    ),
    "jobs list": ("meshwright jobs list --limit 5",),
    "jobs plans": (
        "meshwright jobs plans --max-memory-gib 60",
        "meshwright jobs plans --where cluster=dgx-h100 --measured --sort measured_step_time_s",
    ),
    "jobs show": ("meshwright jobs show JOB_ID",),
    "jobs wait": ("meshwright jobs wait JOB_ID --json",),
    "jobs cancel": ("meshwright jobs cancel JOB_ID",),
    "jobs delete": ("meshwright jobs delete JOB_ID",),
    "jobs share": ("meshwright jobs share JOB_ID --days 30",),
    "jobs links": ("meshwright jobs links JOB_ID",),
    "jobs unshare": ("meshwright jobs unshare JOB_ID LINK_ID",),
    "keys": ("meshwright keys create --tenant vision --scope submit", "meshwright keys list"),
    "keys create": ("meshwright keys create --tenant vision --scope submit --expires-in-days 90",),
    "keys list": ("meshwright keys list --tenant vision",),
    "keys revoke-since": ("meshwright keys revoke-since 2026-11-27T03:00Z",),
    "keys revoke": ("meshwright keys revoke KEY_ID",),
    "doctor": ("meshwright doctor", "meshwright doctor --json"),
    "db": ("meshwright db check", "meshwright db backup jobs-copy.db"),
    "db upgrade": ("meshwright db upgrade --database-url postgresql://meshwright@db/meshwright",),
    "db downgrade": ("meshwright db downgrade 0014",),
    "db check": ("meshwright db check",),
    "db delete-tenant": ("meshwright db delete-tenant vision --yes",),
    "db backup": ("meshwright db backup jobs-copy.db",),
    "db restore": ("meshwright db restore jobs-copy.db",),
}


def examples_of(path: str) -> str | None:
    """The examples of a command, such as ``jobs list``, one a line; the escape keeps the lines apart."""
    lines = EXAMPLES.get(path)
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) if lines else None
