"""What the words of a GPU's name say: the type, its form, its memory and the kind of it.

Drivers, torch, clouds and people write one GPU in many ways: ``NVIDIA H100 80GB HBM3``, ``H100 80GB``,
``A100-SXM4-40GB``, ``4090``. Case, spaces, hyphens and the maker say nothing. Form and memory must be the
card's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from meshwright.profiles.vendors import vendor_by_name

# What the driver reports of the nominal memory: ECC takes a sixteenth of GDDR, and HBM has spare rows.
LEAST_OF_NOMINAL, MOST_OF_NOMINAL = 0.93, 1.04
MAKERS = {
    "nvidia": "nvidia", "geforce": "nvidia", "tesla": "nvidia", "amd": "amd", "instinct": "amd",
    "google": "google", "cloud": "google", "aws": "aws", "amazon": "aws", "intel": "intel",
    "habana": "intel", "huawei": "huawei",
}  # fmt: skip
_FILLERS = frozenset(
    {"gpu", "gpus", "generation", "edition", "graphics", "accelerator", "oam", "nvl72", "hgx"}
)
_FAMILIES = ("rtx", "tpu", "ascend")  # that people leave out: 4090, v5p, 910b
_MEMORY = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(?:gib|gb|g)\b")
_FORM = re.compile(r"(?:(?<=\d)|\b)(sxm|pcie|nvl)\d?\b")
_KIND = re.compile(r"\b(?:hbm\d?e?|gddr\dx?)\b")
_PCIE = re.compile(r"\bpci[ -]?e(?:xpress)?\b|\bpci express\b")
_BETWEEN = re.compile(r"(?:[\s_,()-]|(?<= )/(?= ))+")
APPLE = re.compile(r"(?:apple )?m[1-9] ?(?:pro|max|ultra)?|apple silicon|mps|mac(?:book|mini)?(?: \w+)*")
CPU = re.compile(r"cpus?|(?:intel )?(?:xeon|core)\b.*|(?:amd )?(?:epyc|ryzen|threadripper)\b.*")
LAPTOP = re.compile(r".*\b(?:laptop|mobile|max-?q|notebook)\b.*")
OLDER = re.compile(  # than Volta, whose tensor cores came first (NVIDIA's white papers)
    r"tesla [pmk]\d.*|(?:p4|p40|p10\d|k[1-8]0[a-z]?|m10|m40|m60)\b.*|quadro (?:[pmk]\d+\b|gp100).*"
    r"|(?:geforce )?gtx? ?\d.*|titan x.*"
)
_SIZE = re.compile(r"(?<=\w) (\d{2,3})(?= (?:sxm|pcie)|$)")  # without its unit: a100-40, v100 16 sxm
_COUNTS = ("64", "128", "256")  # which are as often how many: a100-64
_SLICE = re.compile(r"(?:tpu )?v\d(?![\d])")  # v5e-16 are 16 chips


@dataclass(frozen=True, slots=True)
class Words:
    """One name of a GPU, taken apart."""

    type: str  # without spaces: rtx4090
    makers: frozenset[str]
    form: str  # sxm, pcie, nvl; empty: not stated
    memory_gb: float | None
    memory_kind: str  # hbm3; empty: not stated

    @property
    def types(self) -> frozenset[str]:
        """Return the type, and the type without its family."""
        short = next((self.type.removeprefix(one) for one in _FAMILIES if self.type.startswith(one)), "")
        return frozenset({self.type, short} - {""})


def spaced(name: str) -> str:
    """Return a name in lower case with one space between its words."""
    return _BETWEEN.sub(" ", name.lower()).strip()


def unspaced(name: str) -> str:
    """Return a name without spaces, case, the maker and what is not information, its memory as 80gb."""
    text = _MEMORY.sub(r"\1gb", spaced(name))
    return "".join(word for word in text.split() if word not in MAKERS and word != "edition")


def words_of(name: str) -> Words | None:
    """Return what a name says; None where it states two sizes of memory, or two forms."""
    text = _PCIE.sub("pcie", spaced(name))
    memory, form = _MEMORY.findall(text), [*dict.fromkeys(_FORM.findall(text))]
    kind = _KIND.search(text)
    if len(memory) > 1 or len(form) > 1:
        return None
    rest = _KIND.sub(" ", _FORM.sub(" ", _MEMORY.sub(" ", text))).split()
    return Words(
        type="".join(word for word in rest if word not in MAKERS and word not in _FILLERS),
        makers=frozenset(MAKERS[word] for word in rest if word in MAKERS),
        form=form[0] if form else "",
        memory_gb=float(memory[0]) if memory else None,
        memory_kind=kind[0] if kind else "",
    )


def sized(name: str) -> tuple[str, str] | None:
    """Return a name whose number is read as its memory: (``a100 40gb``, ``40``); None: it has none."""
    text = _PCIE.sub("pcie", spaced(name))
    found = _SIZE.search(text)
    if found is None or found[1] in _COUNTS or _SLICE.match(text):
        return None
    return _SIZE.sub(r" \1gb", text), found[1]


def maker_of(slug: str) -> str:
    """Return who makes a GPU type of the catalog; of a CPU next to them, too."""
    return vendor_by_name(slug) or ("amd" if slug.startswith("epyc") else "nvidia")


def holds(memory_gib: float, stated_gb: float) -> bool:
    """Return whether a card whose driver reports ``memory_gib`` is sold as one of ``stated_gb``."""
    return LEAST_OF_NOMINAL * stated_gb <= memory_gib <= MOST_OF_NOMINAL * stated_gb


_LEAST_LETTERS = (
    3  # of a word that may be misspelt: one or two letters are the model, as in B100 and MI300X
)
_NEAR = 0.6


def may_be_misspelt(typed: str, known: str) -> bool:
    """Return whether two types differ in the spelling of their long words alone.

    Digits, short words and further words name another card: A5000, B100 and 2080 Ti are no misspelt A6000,
    H100 and 2080.
    """
    ones, others = (re.findall(r"[a-z]+|\d+", one) for one in (typed, known))
    return len(ones) == len(others) and all(map(_alike, ones, others))


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    words = all(part.isalpha() and len(part) >= _LEAST_LETTERS for part in (one, other))
    longer = one.startswith(other) or other.startswith(one)  # RTX 6000 and RTX A6000
    return words and not longer and SequenceMatcher(None, one, other).ratio() >= _NEAR
