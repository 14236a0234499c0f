"""Every type of causal language models that transformers has: our count beside that of the model it builds.

    .ci/environment torch python -m tests.torch.model_table [--draws 3] [TYPE ...]

prints a line a type: ``exact`` with the configs that agree and those that name a switch as not priced,
``refused`` with the reason, or ``WRONG`` with the first config whose counts differ; then how many there are
of each. It exits with 1 where a count is wrong, or a config ends in anything but a count or an explained
refusal. A type that transformers cannot build from its own defaults says so.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.importers.huggingface_families import families
from tests.torch.drawn_configs import cases, known_types


def verdict(model_type: str, draws: int) -> tuple[str, str]:
    """What becomes of a type's own defaults and of configs drawn from it, and the figures or the reason."""
    equal, refused, reasons = 0, 0, []
    for config, count, why in cases(model_type, draws if model_type in families() else 0):
        try:
            ours = model_from_config(config, name=model_type).num_parameters()
        except InvalidProblemError as error:
            refused += count is not None
            reasons.append(error.errors[0].message)
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is ours
            return "CRASH", f"{type(error).__name__}: {error} of {config}"
        if count is None:  # the library refuses its own draw
            reasons.append(why)
        elif ours != count:
            return "WRONG", f"{ours} instead of {count} of {config}"
        else:
            equal += 1
    if model_type not in families():
        return "refused", reasons[0]
    if not equal:
        return "WRONG", f"no config is planned: {reasons[0]}"
    return "exact", f"{equal} configs, {refused} with a switch that is refused"


def main() -> int:
    """Print the table."""
    transformers.logging.set_verbosity(50)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("types", nargs="*")
    options = parser.parse_args()
    whole = known_types() & (set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) | set(families()))
    found = Counter[str]()
    for model_type in options.types or sorted(whole):
        word, why = verdict(model_type, options.draws)
        found[word] += 1
        sys.stdout.write(f"{model_type:28} {word:8} {why.split(' (docs/howto')[0][:300]}\n")
        sys.stdout.flush()
    words = ", ".join(f"{count} {word}" for word, count in sorted(found.items()))
    sys.stdout.write(f"transformers {transformers.__version__}: {found.total()} types: {words}\n")
    return int(bool(found["WRONG"] or found["CRASH"]))


if __name__ == "__main__":
    sys.exit(main())
