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
_SLIP = 0.75  # ratio from which the first letters of a name are a slip of others: lama, llama
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
# Names of models that are no decoders, in the order in which they are looked for. A name that contains a
# decoder's (e5-mistral, gte-Qwen2) is not among them.
_PART = r"(?:^|[-_/. ]){}"
_OTHERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a speech model", re.compile(_PART.format(
        r"(?:[a-z]*whisper|wav2vec2?|hubert|wavlm|parakeet|canary|musicgen|bark|speecht5|seamless|encodec)\b"))),
    ("an encoder-decoder model", re.compile(_PART.format(
        r"(?:(?:flan-|m|um|by|long)?t5(?:gemma)?|m?bart|pegasus|marian|nllb|ul2|opus-mt|m2m)(?![a-z])"))),
    ("an encoder", re.compile(_PART.format(
        r"(?:[a-z]*berta?|electra|mpnet|minilm|bge|e5|gte|esm2?|(?:nomic|jina)-embed[a-z]*|snowflake-arctic-embed|"
        r"longformer|deberta[a-z]*)(?![a-z])"))),
    ("a vision model", re.compile(_PART.format(
        r"(?:vit|clip|siglip|dino(?:v\d)?|swin|resnet|convnext|detr|sam|deit|beit|yolo[a-z]*)(?![a-z])"))),
    ("an image or video model", re.compile(_PART.format(
        r"(?:sdxl|sd\d?|stable-? ?diffusion|pixart|hunyuan-?(?:video|dit)|ltx|cogvideox?|lumina|sana|dit|"
        r"qwen-image|chroma|kolors|playground)(?![a-z])"))),
)  # fmt: skip
_DECODERS = re.compile(r"llama|mistral|qwen\d|(?<!t5)gemma-\d|phi-|gpt-|stablelm")
_PIPELINES = re.compile(_PART.format(r"(?:flux|wan)(?![a-z])"))


def another_kind(name: str) -> str | None:
    """Return what a model is by its name, where it is no decoder; None: it may be one."""
    lower = name.lower()
    if _DECODERS.search(lower):
        return None
    return next((kind for kind, words in _OTHERS if words.search(lower)), None)


def is_pipeline(name: str) -> bool:
    """Return whether a name is of a pipeline whose transformer is planned: FLUX, Wan."""
    return _PIPELINES.search(name.lower()) is not None


_SIZE = re.compile(_WORD.format(r"\d+(?:\.\d+)?[bm]"))
_USUAL_SERIES = ("qwen", "llama", "mistral", "gemma")
_ONLY_SIZE = re.compile(r"\d+(?:\.\d+)?[bm]")  # 7B
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
    if _ONLY_SIZE.fullmatch(lower):
        return _of_size(lower, alike)
    close = series or get_close_matches(lower, alike, n=_LOOKED_AT, cutoff=_LIKE)
    size = _SIZE.search(lower)
    close.sort(
        key=lambda one: (
            _alike(_family(lower), _family(one)) < _SLIP,
            size is None or size[0] not in one,
            -_alike(lower, one),
        )
    )
    found = list(_of_kind(lower, words, close, find))
    offered = dict[str, str]()
    for one, kind in found:
        if kind == found[0][1]:
            offered.setdefault(find(one).name, one)
    return list(offered.values())[:_OFFERED]


def _family(name: str) -> str:
    return re.split(r"[^a-z]", name.rpartition("/")[2].lower(), maxsplit=1)[0]


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _of_size(size: str, known: Iterable[str]) -> list[str]:
    """Return the newest model of that size of each usual series."""
    newest = dict[str, str]()
    for one in sorted(known):
        if (found := re.fullmatch(rf"([a-z]+)-?[\d.-]*-{size}", one)) is not None:
            newest[found[1]] = one
    return [newest[one] for one in _USUAL_SERIES if one in newest][:_OFFERED]


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
