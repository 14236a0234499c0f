"""A training script of one's own, under torchrun: rank 0 asks, the others wait; each step is reported.

    torchrun --nnodes 2 --nproc-per-node 8 … examples/launchers/torchrun_train.py problem.json run/

The service's address comes from MESHWRIGHT_URL, its key from MESHWRIGHT_KEY.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from meshwright_client import Reporter, choose

problem = json.loads(Path(sys.argv[1]).read_text())
choice = choose(problem, cluster_from="torchelastic", save_dir=sys.argv[2], limit_s=60.0)
sizes = choice.config
print(f"{choice.source}: plan {choice.plan_id}, tp {sizes.tensor_parallel_size}, {choice.profile}")
reporter = Reporter.of(choice, warm_up=1, steps=3)
for _ in range(5):
    time.sleep(0.05)  # a step of your own: sizes.micro_batch_size, sizes.num_microbatches, …
    reporter.step()
reporter.close()
