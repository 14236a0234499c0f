"""Placed configurations made whole: what follows from sizes, groups and split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiles.cluster import ClusterSpec
from solver.plan import Configuration, StageGroup


def settled(cluster: ClusterSpec, config: Configuration, batch: int) -> Configuration:
    """One pipeline on ``batch`` sequences with everything that follows from where its stages stand."""
    ranks = config.data_parallel_size * config.context_parallel_size
    gpus_of = dict(zip(cluster.group_names, cluster.distinct_groups, strict=True))
    stages = tuple(
        StageGroup(
            group=one.group,
            num_gpus=one.tensor_parallel_size * ranks,
            num_nodes=one.tensor_parallel_size * ranks / gpus_of[one.group].gpus_per_node,
            tensor_parallel_size=one.tensor_parallel_size,
        )
        for one in config.stage_groups
    )
    largest = max(one.tensor_parallel_size for one in stages)
    zero = config.zero_stage if ranks > 1 else 0
    return replace(
        config,
        tensor_parallel_size=largest,
        sequence_parallel=largest > 1,
        pipeline_parallel_size=len(stages),
        zero_stage=zero,
        zero_shard_size=ranks if zero else 1,
        num_microbatches=max(batch // (config.data_parallel_size * config.micro_batch_size), 1),
        pipeline_schedule="none" if len(stages) == 1 else "1f1b",
        recompute_layers=sum(config.stage_layers) if config.recompute_granularity == "full" else 0,
        stage_groups=stages,
    )


def joined(classes: Sequence[Configuration]) -> Configuration:
    """Classes of unlike replicas as one configuration."""
    replicas = sum(one.data_parallel_size for one in classes)
    return replace(classes[0], data_parallel_size=replicas, stage_groups=(), replicas=tuple(classes))
