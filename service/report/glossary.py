"""What the words of a report mean, in one sentence each: shown on hover, read by screen readers."""

from __future__ import annotations

COLUMNS = {
    "#": "Rank by the objective of the search",
    "GPUs": "Accelerators that the plan uses",
    "batch": "Sequences of one optimizer step",
    "with": "Precision or optimizer where it differs from what was asked",
    "tp": "Tensor parallel size: GPUs that split every layer's matrices",
    "pp": "Pipeline parallel size: stages that hold consecutive layers",
    "vpp": "Virtual pipeline size: chunks of layers that each stage holds; more chunks, smaller bubble",
    "cp": "Context parallel size: GPUs that split every sequence",
    "ep": "Expert parallel size: GPUs that share out the experts",
    "dp": "Data parallel size: replicas that train on different sequences",
    "zero": "ZeRO stage: what replicas shard; 1 optimizer states, 2 gradients too, 3 weights too",
    "mbs": "Micro-batch size: sequences that pass the pipeline together",
    "recompute": "Layers whose activations are computed again instead of kept: full ×2 the first two of "
    "each chunk (recompute_layers 2), full every one (all of the model)",
    "step": "Predicted seconds of one optimizer step, with its 80 % interval",
    "tokens/s/GPU": "Tokens trained per second by each GPU",
    "MFU": "Model FLOPs utilisation: the model's work over what the GPU could do at its dense peak",
    "peak memory (stage)": "Most memory that a GPU needs, of what it has, and the stage that needs it",
    "OOM risk": "Chance that a run of this plan runs out of memory",
    "launchers": "Training frameworks that can run the plan",
    "also": "Rarer choices: another schedule, cp by all-to-all instead of a ring, etp (GPUs that split "
    "every expert), shards shared by fewer ranks than all replicas, another order of ranks, offload",
}
TIME_TERMS = {
    "ideal": "the model's FLOPs at the GPU's peak: nothing can be faster",
    "compute": "matrix products, attention and memory-bound operators",
    "gemm_efficiency": "matrix products run below the peak",
    "attention_efficiency": "attention runs below the peak",
    "memory_bound": "norms, activations and additions that wait for memory",
    "launch_floor": "GPU idle because the CPU launches too slowly",
    "offload": "moving activations to the host and back",
    "recompute": "layers computed again to save memory",
    "tensor_parallel": "collectives inside every layer, not hidden",
    "context_parallel": "exchange between the parts of a sequence, not hidden",
    "expert_parallel": "sending tokens to their experts and back, not hidden",
    "pipeline_transfer": "activations handed from stage to stage, not hidden",
    "imbalance": "the slowest stage works longer than the mean",
    "bubble": "stages wait for the first and after the last micro-batch",
    "data_parallel": "reducing gradients and gathering weights, not hidden",
    "optimizer": "updating the weights",
    "straggler": "many nodes wait for the slowest",
    "calibration": "what measured runs of this cluster add or take",
    "fixed": "once per step whatever its size",
    "rest": "everything else",
}
MEMORY_TERMS = {
    "weights": "parameters as the passes use them",
    "gradients": "gradient buffers",
    "optimizer": "optimizer states and master weights",
    "activations": "kept between forward and backward pass, of all micro-batches in flight",
    "workspace": "logits, loss and replayed layers",
    "buffers": "communication buckets",
    "context": "driver, libraries, communicators",
    "reserve": "held by the allocator beyond what is used",
}


def words(term: str) -> str:
    """``gemm_efficiency`` as people read it."""
    return {"gemm_efficiency": "GEMM efficiency"}.get(term, term.replace("_", " "))


def sentence_case(text: str) -> str:
    """The first letter large, the others as they are."""
    return text[:1].upper() + text[1:]
