"""What ``sed "s/NAME/value/" TEMPLATE | sed … > FILE`` writes: how scripts fill in DeepSpeed's JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from meshwright.service.launchers.reading.shell_values import Filled, Script, Word

_SUBSTITUTION = re.compile(r"s([/#|,@])(\w+)\1(.*)\1g?", re.DOTALL)


def run_sed(
    script: Script, words: Sequence[Word], written_to: str, include: Callable[[str], str | None]
) -> None:
    """One ``sed``: of a file that it names, or of what the one before it in the pipeline made.

    Only names are replaced, no patterns; what other expressions make is not known.
    """
    texts = [word.text for word in words[1:] if word.text[:1] != "-"]
    found = [match for text in texts if (match := _SUBSTITUTION.fullmatch(text))]
    operands = [text.rsplit("/", 1)[-1] for text in texts if _SUBSTITUTION.fullmatch(text) is None]
    if operands:
        text = script.files.get(operands[-1]) or include(operands[-1])
        script.piped = Filled(text if len(operands) == 1 else None, {})
    names, text = dict(script.piped.names), script.piped.text
    for _, name, value in (match.groups() for match in found):
        names.setdefault(name, value)
        if text is not None:
            text = text.replace(name, value)
            script.write([text])
    script.piped = Filled(text, names)
    if written_to:
        base = written_to.rsplit("/", 1)[-1]
        script.filled[base] = script.piped
        if text is not None:
            script.files[base] = text
