"""How a Megatron-LM command splits the layers over chunks, and which layers recompute."""

from __future__ import annotations

import re

from service.launchers.reading.given import Given

_REPEATED = re.compile(r"(\([^()]*\)|.)\*(\d{1,5})")
_MAX_LAYOUT = 20_000


def chunks_of(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each chunk in model order; faults are left in ``given``."""
    if pp > num_layers:
        given.fault("pipeline-model-parallel-size", f"{pp} stages for {num_layers} layers")
        return ()
    if given.has("pipeline-model-parallel-layout"):
        return _layout(given, num_layers, pp)
    if given.has("decoder-first-pipeline-num-layers") or given.has("decoder-last-pipeline-num-layers"):
        return _uneven_ends(given, num_layers, pp)
    embedding = int(given.has("account-for-embedding-in-pipeline-split"))
    loss = int(given.has("account-for-loss-in-pipeline-split"))
    whole = num_layers + embedding + loss
    chunks = pp * _virtual(given, whole, pp)
    if whole % max(chunks, 1):
        counted = (
            f"{whole} layers (embedding or loss counted)" if whole > num_layers else f"{num_layers} layers"
        )
        given.fault(
            "pipeline-model-parallel-size",
            f"{counted} are not split evenly by {chunks} chunks; say --pipeline-model-parallel-layout",
        )
        return ()
    split = [whole // chunks] * chunks
    split[0] -= embedding
    split[-1] -= loss
    return tuple(split)


def _virtual(given: Given, whole: int, pp: int) -> int:
    """Chunks a rank: given as such, or by the layers of one."""
    direct, layers = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
    if given.has(direct) and given.has(layers):
        given.fault(layers, f"contradicts --{direct}: Megatron-LM takes one of them")
    if given.has(layers):
        each = given.integer(layers, 1)
        if not each or whole % (pp * each):
            given.fault(layers, f"{each} layers a chunk do not divide {whole} layers over {pp} stages")
            return 1
        return whole // pp // each
    return max(given.integer(direct, 1), 1)


def _uneven_ends(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """The first and the last stage as given, the others evenly."""
    names = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    first, last = (given.optional(name) for name in names)
    middle = pp - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    vpp = given.integer("num-virtual-stages-per-pipeline-rank", 1)
    name = names[0] if first is not None else names[1]
    if vpp > 1:
        given.fault(name, "with virtual stages is not read; say --pipeline-model-parallel-layout")
    elif middle < 0 or left < 0 or (left % middle if middle else left):
        given.fault(name, f"leaves {left} layers, which {middle} stages between do not share evenly")
    else:
        ends = [[] if end is None else [end] for end in (first, last)]
        return (*ends[0], *[left // middle if middle else 0] * middle, *ends[1])
    return ()


def _layout(given: Given, num_layers: int, pp: int) -> tuple[int, ...]:
    """``Et*3|(tt|)*29,m|L``: stages between bars, t a layer; x*N repeats x."""
    name = "pipeline-model-parallel-layout"
    text = given.word(name).replace(" ", "").replace(",", "")
    while (found := _REPEATED.search(text)) is not None and len(text) < _MAX_LAYOUT:
        piece = found[1].removeprefix("(").removesuffix(")") if len(found[1]) > 1 else found[1]
        text = text[: found.start()] + piece * min(int(found[2]), _MAX_LAYOUT) + text[found.end() :]
    if len(text) >= _MAX_LAYOUT or set(text) - set("Etm|L"):
        given.fault(name, "is no layout of E, t, m, L, |, (…)*N")
        return ()
    split = tuple(stage.count("t") for stage in text.split("|"))
    if len(split) % pp:
        given.fault(name, f"has {len(split)} stages, which {pp} pipeline ranks do not share evenly")
    elif sum(split) != num_layers:
        given.fault(name, f"holds {sum(split)} layers, --num-layers is {num_layers}")
    elif min(split) < 1:
        given.fault(name, "has a stage without a layer (an embedding or a loss alone), which is not priced")
    else:
        return split
    return ()


def recompute_of(given: Given, split: tuple[int, ...]) -> tuple[str, int]:
    """Granularity and recomputed layers of each chunk; all of the model where it is every one."""
    granularity = given.word("recompute-granularity")
    if given.has("recompute-activations"):
        if granularity == "full":
            given.fault("recompute-activations", "means selective, --recompute-granularity says full")
        granularity = granularity or "selective"
    if granularity not in ("", "selective", "full"):
        given.fault("recompute-granularity", "is unknown", allowed="selective or full")
    if granularity != "full":
        if given.has("recompute-method"):
            given.note("--recompute-method does nothing without --recompute-granularity full")
        others = set(given.words("recompute-modules")) - {"core_attn"}
        if granularity and others:
            names = ", ".join(sorted(others))[:80]
            given.note(f"recomputed modules {names} are priced as if they were kept")
        return granularity or "none", 0
    return "full", _recomputed_layers(given, split or (1,))


def _recomputed_layers(given: Given, split: tuple[int, ...]) -> int:
    """Uniform: all layers; block: the first of each chunk."""
    method, count = given.word("recompute-method"), given.integer("recompute-num-layers", 1)
    if method not in ("uniform", "block"):
        given.fault("recompute-method", "is needed with full recomputation", allowed="uniform or block")
    if method == "uniform":
        if count > 1:
            given.note(f"recomputation in groups of {count} layers is priced as groups of one")
        return sum(split)
    if count > max(split):
        given.note(f"--recompute-num-layers {count} is more than a chunk has: every layer recomputes")
    return sum(split) if count >= max(split) else max(count, 1)
