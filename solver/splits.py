"""Splits without a search: divisors of sizes; even splits of layers, a launcher's, the request's.

``Prescribed`` gives the split that a row of the search must have, if there is only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import ClassVar

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.model import ModelSpec
from meshwright.solver.configuration import BoolArray, Columns, Configuration, IntArray, counted, distinct
from meshwright.solver.problem import Problem

Split = tuple[int, ...]


@lru_cache(maxsize=4096)  # a search asks for those of a few numbers thousands of times
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, ascending."""
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))


def even_split(num_layers: int, num_chunks: int) -> Split:
    """Return an even split; middle chunks hold one more layer if the number does not divide.

    The first and the last chunk also hold the embedding and the output head, so they are
    the last to take a layer more. With more chunks than layers some chunks are empty.
    """
    least, more = divmod(num_layers, num_chunks)
    start = (num_chunks - more) // 2
    return tuple(least + (start <= chunk < start + more) for chunk in range(num_chunks))


@lru_cache(maxsize=4096)
def nanotron_split(model: ModelSpec, num_stages: int, vocabulary_multiple: int = 1) -> tuple[Split, int]:
    """Return layers of each pipeline stage as nanotron assigns them, and its output head's stage.

    Blocks go to stages in model order. A block is placed on the current stage; if the running cost then
    exceeds the stage's share of the whole, the next block begins the next stage (huggingface/nanotron,
    April 2026, src/nanotron/models/base.py:215-235 ``build_model``). Costs are weights
    (``get_block_compute_costs``, models/qwen.py:813 and models/llama.py:938): attention as if it had
    as many key/value heads as query heads, a gated MLP, and the output head. Embedding and final norm
    cost nothing.

    Args:
        model: the model.
        num_stages: pipeline stages.
        vocabulary_multiple: the vocabulary is padded to one of it: the tensor-parallel size times
            ``make_vocab_size_divisible_by``, which is 1 by default (trainer.py:988, helpers.py:52).

    Returns:
        Layers of each stage, ``num_stages`` counts, and the number of the stage that holds the head.

    A heavy head may leave the last stages without a layer, and may itself be on an earlier stage.
    """
    hidden = model.hidden_size
    head_dim = hidden // model.num_attention_heads
    layer = 4 * model.num_attention_heads * head_dim * hidden + 3 * model.ffn_hidden_size * hidden
    whole = model.num_layers * layer + model.padded_vocabulary(vocabulary_multiple) * hidden
    counts, stage = [0] * num_stages, 0
    for placed in range(1, model.num_layers + 1):
        counts[stage] += 1
        # nanotron's own floating-point expression, so that a running cost equal to a share is judged alike
        if placed * layer > whole * ((stage + 1) / num_stages):
            stage += 1
    return tuple(counts), stage


def launcher_split(problem: Problem, config: Configuration) -> Split | None:
    """Return the split of a launcher that divides the layers by itself; () if it takes any.

    None where the launcher's own split of so many stages cannot be planned: a stage without a layer, the
    output head on another stage than the last, or several chunks a stage.
    """
    if not launcher_capabilities(problem.launcher).balances_stages:
        return ()
    split = _plannable(problem.model, config.pipeline_parallel_size, config.tensor_parallel_size)
    return split if config.virtual_pipeline_size == 1 else None


def _plannable(model: ModelSpec, pp: int, tp: int) -> Split | None:
    """Return nanotron's split if every stage has a layer and the last one the output head."""
    if not (1 <= pp <= model.num_layers and tp >= 1):
        return None
    split, head = nanotron_split(model, pp, tp)
    return split if min(split) > 0 and head == pp - 1 else None


def usual_split(problem: Problem, config: Configuration) -> Split:
    """Return the split of a configuration that names none: the launcher's own, else an even one.

    At most one chunk for each layer; a configuration of more chunks is refused elsewhere.
    """
    chunks, layers = config.pipeline_parallel_size * config.virtual_pipeline_size, problem.model.num_layers
    return launcher_split(problem, config) or even_split(layers, min(chunks, layers))


@dataclass(frozen=True, slots=True)
class Prescribed:
    """The only split that a row may have: the request's, or that of a launcher that splits by itself.

    It counts what the problem's splits count (``Problem.counts_ends``).
    """

    READS: ClassVar = ("tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size")

    asked: Split = ()
    balanced: ModelSpec | None = None  # the model, where the launcher splits its layers by itself

    @classmethod
    def of(cls, problem: Problem) -> Prescribed:
        """Return what the request and the launcher prescribe together."""
        own = launcher_capabilities(problem.launcher).balances_stages
        asked = problem.options.stage_layers
        if asked and problem.counts_ends:
            asked = counted(asked, ends=True, prediction=problem.counts_prediction)
        return cls(asked=asked, balanced=problem.model if own else None)

    def __bool__(self) -> bool:
        return bool(self.asked) or self.balanced is not None

    def splits(self, columns: Columns) -> list[Split | None]:
        """Return every row's split; None if it has none, or not as many chunks as the row."""
        found, which = self._by_sizes(columns)
        return [found[at] for at in which.tolist()]

    def lacking(self, columns: Columns) -> BoolArray:
        """Mark rows without a split, shape (n,)."""
        found, which = self._by_sizes(columns)
        return np.array([split is None for split in found], dtype=np.bool_)[which]

    def _by_sizes(self, columns: Columns) -> tuple[list[Split | None], IntArray]:
        """Return the split of each combination of sizes that occurs, and every row's combination, (n,)."""
        sizes = [columns.pipeline_parallel_size, columns.virtual_pipeline_size]
        if self.balanced is not None:  # tensor parallelism pads the vocabulary that nanotron weighs
            sizes.append(columns.tensor_parallel_size)
        first, which = distinct(sizes)
        each = zip(*(size[first].tolist() for size in sizes), strict=True)
        return [self._split(*one) for one in each], which

    def _split(self, pp: int, vpp: int, tp: int = 1) -> Split | None:
        split: Split | None = self.asked
        if self.balanced is not None:
            own = _plannable(self.balanced, pp, tp)
            split = own if split in ((), own) else None
        return split if split and len(split) == pp * vpp else None


ANY_SPLIT = Prescribed()
