"""How a judge is asked: one JSON object a line in, one verdict a line out, in its own environment."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]  # files: name to text; facts: world size, GPUs, …
Seen = dict[str, Any]  # what the launcher understood, in our names


def serve(judge: Callable[[Case], Seen]) -> None:
    """Answer every case; whatever the launcher raises or exits with is a refusal."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the launcher prints is no answer
    for line in sys.stdin:
        try:
            verdict = {"seen": judge(json.loads(line)), "refusal": None}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - parsers refuse in any way they like
            frame = traceback.extract_tb(error.__traceback__)[-1]
            verdict = {"seen": {}, "refusal": f"{type(error).__name__}: {error} ({frame.name})"[:300]}
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()
