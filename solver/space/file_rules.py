"""What a launcher's files cannot say of a request, whatever the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.profiles.adapters import ATTENTION_TARGETS
from meshwright.profiles.attention import HYBRID
from meshwright.profiles.capabilities import Capabilities
from meshwright.profiles.errors import FieldError
from meshwright.profiles.frameworks import EXPERT_OPTIONS, FrameworkFacts
from meshwright.profiles.vendors import vendor_of
from meshwright.solver.problem import Problem


def file_faults(problem: Problem, able: Capabilities, facts: FrameworkFacts | None) -> Iterator[FieldError]:
    """Yield what the launcher's files cannot say; ``facts``: its framework's, under stated options."""
    if facts is not None:
        yield from _unnamed_words(problem, able, facts)
    yield from _lacking_options(problem, able)
    yield from _image_faults(problem, able)
    yield from _adapter_faults(problem, able)


def _unnamed_words(problem: Problem, able: Capabilities, facts: FrameworkFacts) -> Iterator[FieldError]:
    """Yield stated options at values that the files have no word for."""
    for option, words in able.option_words:
        value, stated = getattr(facts, option), problem.workload.framework_options
        if option in EXPERT_OPTIONS and problem.model.moe is None:
            continue
        named = "flash_attention" if option not in stated and option == "attention_kernel" else option
        known = [{*word.split("+")} for word in (*words, HYBRID)]  # which has a fault of its own
        if named not in stated or {*value.split("+")} in known or _is_unread(problem, option):
            continue
        yield FieldError(
            pointer=f"/workload/framework_options/{named}",
            message=f"{able.launcher} has no name for {option}={value}",
            allowed=", ".join(words)
            + (", or --pin recompute=full" if option == "recompute_modules" else ""),
            nearest=words[0] if named == option else None,
        )


def _is_unread(problem: Problem, option: str) -> bool:
    """Return whether no file states an option: TPUs have a kernel of their own, whole layers no modules."""
    on_tpus = vendor_of(problem.cluster.groups[0].gpu) == "google"
    whole = problem.options.pin.get("recompute_granularity") == "full"
    return (option == "attention_kernel" and on_tpus) or (option == "recompute_modules" and whole)


def _lacking_options(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield options without which the launcher does not compare samples to a reference."""
    work = problem.workload
    for needed in dict(able.sample_options).get(work.sample_word, ()):
        option, _, word = needed.partition(" ")
        if work.framework_options.get(option) != word:
            yield FieldError(
                pointer=f"/workload/framework_options/{option}",
                message=f"{able.launcher} compares {work.sample_kind.words} to a reference "
                f"only with {option}={word}",
                allowed=f"{word}, or reference none",
                nearest=word,
            )


def _image_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield packed documents with images, and precisions in which a model with a tower isn't written."""
    work, tower = problem.workload, problem.model.tower
    if tower is None:
        return
    packs = work.lengths is not None and work.lengths.batching == "packing"
    if able.packs_no_images and packs and work.image_tokens is not None:
        others = [one for one in able.batchings if one != "packing"]
        yield FieldError(
            pointer="/workload/lengths/batching",
            message=f"{able.launcher} doesn't pack documents with images",
            allowed=", ".join(others),
            nearest=others[-1] if others else None,
        )
    if not able.tower_precisions:
        return
    only = f"{able.launcher} has files of {tower.model_type} in {' or '.join(able.tower_precisions)} alone"
    if work.precision not in able.tower_precisions:
        yield FieldError(
            pointer="/workload/precision",
            message=only,
            allowed=", ".join(able.tower_precisions),
            nearest=able.tower_precisions[0],
        )
    elif work.framework_options.get("precision_recipe", "none") != "none":
        yield FieldError(
            pointer="/workload/framework_options/precision_recipe",
            message=only,
            allowed="none",
            nearest="none",
        )


def _adapter_faults(problem: Problem, able: Capabilities) -> Iterator[FieldError]:
    """Yield adapters that the launcher would put elsewhere than they are priced."""
    work, model = problem.workload, problem.model
    if not work.lora_rank:
        return
    if able.adapters_reach_towers and model.tower is not None:
        yield FieldError(
            pointer="/workload/lora_rank",
            message=f"{able.launcher} would adapt the vision tower too, which is not priced",
            allowed="0",
        )
    expert = {*work.lora_targets} - {*ATTENTION_TARGETS}
    if able.shares_decomposed and work.framework_options.get("dora") and model.moe and expert:
        yield FieldError(
            pointer="/workload/lora_targets",
            message=f"routed experts share an adapter of DoRA on each rank under {able.launcher}, "
            "which is not priced",
            allowed=f"some of {', '.join(ATTENTION_TARGETS)}; or dora false",
        )
