#!/usr/bin/env bash
# Plan 0123456789ab of Meshwright for NeMo-RL 0.7.0: colocated.
# Predicted: 100 s a step, 80 to 125.
# Run it in NeMo-RL's checkout, on the head node of a Ray cluster of 1 nodes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec uv run python examples/run_grpo.py --config "${here}/nemo_rl_grpo.yaml" "$@"
