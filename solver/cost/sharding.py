"""Points at which gradients are reduced and weights gathered, over several micro-batches, by ZeRO stage.

Each framework's facts (``reduced_every_pass`` and those behind it) cite its source. Under
``torch.distributed.pipelining`` (torch 2.13) all ZeRO stages behave as one: ``stage.py:845-847`` switches
reduction and resharding off in every backward pass, so that whole gradients add up in the dtype that they
are reduced in (``fsdp/_fully_shard/_fsdp_param.py:802-820``), and ``perform_reduce_grad``
(``stage.py:1162-1195``) reduces them once, behind the last backward pass of their chunk
(``schedules.py:1252 _add_reduce_grad``), while the rank waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.solver.configuration import SCHEDULES, BoolArray, Columns, FloatArray, is_one_of

SHARD_GRADIENTS = 2  # the ZeRO stages that shard gradients, and weights as well
SHARD_WEIGHTS = 3

# torch's runtime of several chunks a rank keeps the weights of so many chunks, those that it computes with
# next (torch 2.13, distributed/pipelining/schedules.py:1290 _add_unshard_reshard, max_active_stages).
_ACTIVE_CHUNKS = 3.0
_GATHERED_IN_8_BITS = ("none", "fp8-delayed", "fp8-current", "fp8-blockwise")  # recipes
_BREADTH_FIRST = SCHEDULES.index("looped_bfs")
_ALL_FORWARD_FIRST = np.array([name in ("gpipe", "looped_bfs") for name in SCHEDULES])
_CHUNK_AFTER_CHUNK = np.array([
    name in ("interleaved_1f1b", "looped_bfs", "interleaved_zb") for name in SCHEDULES
])  # fmt: skip
_WEIGHTS_APART, _V = SCHEDULES.index("interleaved_zb"), SCHEDULES.index("zb_v")


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Exchanges of gradients and weights of every row; masks and counts have shape (n,)."""

    columns: Columns
    facts: FrameworkFacts
    low_precision: bool  # linear layers multiply in 8 or 4 bits

    @cached_property
    def in_torch_pipeline(self) -> BoolArray:
        """Mark rows with stages that shard gradients or weights under torch's pipeline runtime."""
        if not self.facts.torch_pipelines:
            return np.zeros_like(self.columns.zero_stage, dtype=np.bool_)
        return np.asarray(
            (self.columns.pipeline_parallel_size > 1) & (self.columns.zero_stage >= SHARD_GRADIENTS)
        )

    @cached_property
    def reduces_every_pass(self) -> BoolArray:
        """Mark rows that reduce gradients after every micro-batch rather than once a step."""
        every = is_one_of(self.columns.zero_stage, self.facts.reduced_every_pass)
        return np.asarray(every & ~((self.columns.pipeline_parallel_size > 1) & self.facts.torch_pipelines))

    @cached_property
    def adds_whole_gradients(self) -> BoolArray:
        """Mark rows that keep whole gradients from one micro-batch to the next."""
        added = ~self.reduces_every_pass & (self.columns.num_microbatches > 1)
        return np.asarray((self.columns.zero_stage < SHARD_GRADIENTS) | added | self.in_torch_pipeline)

    @cached_property
    def all_reduces(self) -> BoolArray:
        """Mark rows with all-reduced gradients, not reduced and scattered ones."""
        return is_one_of(self.columns.zero_stage, (0, *self.facts.all_reduced_stages))

    @cached_property
    def hides_reductions(self) -> BoolArray:
        """Mark rows that reduce gradients under the backward pass."""
        waits = self.waits_for_reductions | self.in_torch_pipeline
        return np.asarray(~waits & self.facts.overlap_gradients)

    @cached_property
    def waits_for_reductions(self) -> BoolArray:
        """Mark rows that wait for reductions even if the framework overlaps them."""
        return is_one_of(self.columns.zero_stage, self.facts.blocking_stages)

    @cached_property
    def gradient_bytes_sent(self) -> FloatArray:
        """Return the bytes of one gradient element on the wire, shape (n,)."""
        alone = self.columns.zero_stage == 0
        return np.where(alone, self.facts.replicated_gradient_bytes, self.facts.reduced_gradient_bytes)

    @cached_property
    def gathered_bytes(self) -> float:
        """Return the bytes of one weight of a layer on the wire if weights are gathered.

        Weights that are held in 8 bits travel so (Megatron-Core 0.16 ``--fp8-param-gather``), but for
        MXFP8's, which are cast behind a gather of 2 bytes (``reuse_grad_buf_for_mxfp8_param_ag``).
        torchao's travel so, and nothing else is left of them (0.18 ``float8/fsdp_utils.py``).
        """
        held = self.facts.low_precision_weights and self.facts.precision_recipe in _GATHERED_IN_8_BITS
        return 1.0 if self.low_precision and (held or self.facts.gathers_8_bits) else 2.0

    @cached_property
    def gathered_expert_bytes(self) -> float:
        """Return that of routed experts: torchao gathers 2 bytes (0.18 ``moe_training/tensor.py:166``)."""
        return 2.0 if self.facts.gathers_8_bits else self.gathered_bytes

    @cached_property
    def gathers_once(self) -> BoolArray:
        """Mark rows that gather weights once a step, in addition to ``gathers_in_passes``."""
        stage = self.columns.zero_stage
        whole = (stage == 1) | ((stage == SHARD_GRADIENTS) & (not self.facts.reshards_after_backward))
        return np.asarray(whole | self.in_torch_pipeline)

    @cached_property
    def gathers_in_passes(self) -> tuple[FloatArray, FloatArray]:
        """Count how often a micro-batch gathers a layer's weights: in forward, in backward passes.

        ZeRO-3 gathers in both. Under torch's runtime weights stay after a backward pass until the next
        forward pass drops them, so ``m`` forward and ``m`` backward passes gather ``m + 1`` times; the one
        in addition is ``gathers_once``'s. With ZeRO-2 it keeps a chunk while that is among the next: up to
        three a rank for the whole step. Of more, v, one is fetched and one dropped with nearly every change
        of chunk: ``2 v - 3`` fetches where all micro-batches run a chunk together, and
        ``2 g (v - 3) + 7`` (5 with weight gradients apart) in g > 1 groups of micro-batches.
        """
        c, torch = self.columns, self.in_torch_pipeline
        stage, m, v = c.zero_stage, np.maximum(c.num_microbatches, 1), c.virtual_pipeline_size * 1.0
        sharded = stage == SHARD_WEIGHTS
        dropped = (stage == SHARD_GRADIENTS) & self.facts.reshards_after_backward
        if not torch.any():
            return (sharded | dropped).astype(np.float64), sharded.astype(np.float64)
        groups = np.maximum(c.num_microbatches // c.pipeline_parallel_size, 1)  # pass all chunks in turn
        more = np.where(c.pipeline_schedule == _WEIGHTS_APART, 5.0, 7.0)
        apart = 2.0 * groups * (v - _ACTIVE_CHUNKS) + more
        fetches = np.where(self._pass_together, 2.0 * v - 3.0, apart)
        again = np.where(sharded, 1.0, (np.where(v > _ACTIVE_CHUNKS, fetches / v, 1.0) - 1.0) / m)
        first = _ALL_FORWARD_FIRST[c.pipeline_schedule] | ~sharded
        forward = np.where(torch, again * first, np.where(sharded | dropped, 1.0, 0.0))
        backward = np.where(torch, again * ~first, np.where(sharded, 1.0, 0.0))
        return forward, backward

    @cached_property
    def _pass_together(self) -> BoolArray:
        """Mark rows with micro-batches that all finish a chunk before any begins the rank's next one."""
        c = self.columns
        one_group = c.num_microbatches < 2 * c.pipeline_parallel_size
        return np.asarray(one_group | (c.pipeline_schedule == _BREADTH_FIRST))

    @cached_property
    def ranks_in_turn(self) -> FloatArray:
        """Count the first ranks of every row with chunks that reduce gradients in turn, (n,).

        The last chunk is first. Where groups of micro-batches pass the chunks again, the last backward
        passes of all come at the step's end, when every chunk has gradients. In a V rank r makes ``p - r``
        backward passes of its second chunk before the first one of its first (torch 2.13,
        distributed/pipelining/schedules.py:3296 ``warmup_n3``), and few micro-batches have no more.
        """
        c, here = self.columns, self.in_torch_pipeline
        every = here & self._one_after_the_other if here.any() else here
        few = np.maximum(c.pipeline_parallel_size - c.num_microbatches + 1, 0)
        some = np.where(here & (c.pipeline_schedule == _V), few, 0)
        return np.where(every, c.pipeline_parallel_size, some).astype(np.float64)

    @cached_property
    def share_gathered(self) -> FloatArray:
        """Return the share of a rank's layers that torch's pipeline runtime holds whole; 0 elsewhere.

        After a backward pass all of a chunk's are, whether or not forward passes drop them. Where these do
        (ZeRO-3) and all passes of a chunk come before the next one's, a chunk's go with its last backward
        pass: two of those to come are there, too, but for the last three, which were gathered before
        forward passes.
        """
        chunks = self.columns.virtual_pipeline_size
        dropped = (self.columns.zero_stage == SHARD_WEIGHTS) & self._one_after_the_other
        held = np.where(dropped, np.clip(chunks - 2.0, 1.0, _ACTIVE_CHUNKS), _ACTIVE_CHUNKS)
        return np.where(self.in_torch_pipeline, np.minimum(held / chunks, 1.0), 0.0)

    @cached_property
    def _one_after_the_other(self) -> BoolArray:
        """Mark rows with backward passes of a chunk all before those of the rank's next one."""
        return np.asarray(self._pass_together & _CHUNK_AFTER_CHUNK[self.columns.pipeline_schedule])
