"""Models that a wrong name may mean: of one kind with it, or none.

A model that sees, hears or has experts is never offered for one that does not, nor the other way round:
it would be another model. Kinds are read from words of the wrong name (VL, Omni, Next, A3B), and
of a known model from its shape, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches

from meshwright.profiles.model import ModelSpec

_LIKE = 0.7  # least difflib ratio: two letters in seven are wrong
_LOOKED_AT, _OFFERED = 12, 3
_WORD = r"(?:^|[-_/.])(?:{})(?=[-_.]|$)"
_KINDS = {
    "sees": re.compile(
        _WORD.format(
            r"[a-z]*vlm?\d*|vision|visual|multimodal|omni|ocr|vqa|[a-z]*llava|pixtral|paligemma|idefics\d*|molmo\d*|"
            r"[a-z]*\d[\d.]*v|[a-z]*vl\d+(?:_\d+)?"
        )
    ),
    "hears": re.compile(_WORD.format(r"audio|omni|speech|asr|tts|voice|[a-z]*whisper|voxtral")),
    "next": re.compile(_WORD.format("next")),
    "experts": re.compile(_WORD.format(r"a\d+(?:\.\d+)?b|\d+x\d+(?:\.\d+)?b|[a-z]*moe")),
}
_SIZE = re.compile(_WORD.format(r"\d+(?:\.\d+)?[bm]"))
_SERIES = re.compile(r"[a-z]+[-_]?v?\d*(?:[._]\d+)*")


def kind_words(name: str) -> frozenset[str]:
    """Return what the words of a name say that a model is."""
    lower = name.lower()
    return frozenset(kind for kind, word in _KINDS.items() if word.search(lower))


def nearest_models(name: str, known: Iterable[str], find: Callable[[str], ModelSpec]) -> list[str]:
    """Return the nearest known names of the wrong name's kind, the nearest first; empty if none is near."""
    lower, words = name.lower(), kind_words(name)
    alike = sorted(one for one in known if kind_words(one) == words)
    series = [one for one in alike if re.match(rf"{re.escape(lower)}[-.]", one)]  # llama3, mistral
    close = series or get_close_matches(lower, alike, n=_LOOKED_AT, cutoff=_LIKE)
    close.sort(key=lambda one: -SequenceMatcher(None, lower, one).ratio())
    found = list(_of_kind(lower, words, close, find))
    offered = dict[str, str]()
    for one, kind in found:
        if kind == found[0][1]:
            offered.setdefault(find(one).name, one)
    return list(offered.values())[:_OFFERED]


def _of_kind(
    name: str, words: frozenset[str], close: Iterable[str], find: Callable[[str], ModelSpec]
) -> Iterator[tuple[str, tuple[bool, bool]]]:
    for one in close:
        model = find(one)
        sees, experts = model.tower is not None, model.moe is not None
        # of a series (Qwen3.5) that sees although no word says so
        may_see = sees == ("sees" in words) or (sees and _series(one) == _series(name))
        unsaid = not (size := _SIZE.search(name)) or size[0] in one.lower()
        may_have_experts = experts == ("experts" in words) or (experts and unsaid)
        if may_see and may_have_experts:
            yield one, (sees, experts)


def _series(name: str) -> str:
    found = _SERIES.match(name.rpartition("/")[2])
    return found[0] if found else ""
