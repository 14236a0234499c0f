"""Launch files with one thing broken that no plan can say: an unknown flag, two precisions, a lost layer.

A legal plan's files are edited. Each edit says whether the launcher's own parser notices, and what our
reader does: refuse the file, or list what it does not understand or what will be ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from meshwright.launchers.reading.base import LaunchFile, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.errors import InvalidProblemError
from meshwright.solver.configuration import Configuration
from tests.launchers.cases import MIXTRAL, MIXTRAL_EXPERTS, target
from tests.launchers.mutants import CHUNKS, LLAMA, PLAIN, SHARDED, STAGES, TENSOR

Pair = tuple[str, str]  # text of our files, and what stands there instead


@dataclass(frozen=True)
class Edit:
    """One edit of the files of one legal plan."""

    name: str
    target: Target
    pairs: tuple[Pair, ...]  # an old text that a file of another version lacks is left out there
    noticed: bool | tuple[str, ...] = True  # by the launcher's parser; or by which versions
    listed: bool = False  # our reader lists it, rather than refusing the file

    def files(self, launcher: str) -> dict[str, str]:
        """The edited files.

        Raises:
            ValueError: no file has the text that is to be replaced.
        """
        files = export(self.target.plan, self.target.problem, launcher).files
        edited = files
        for old, new in self.pairs:
            edited = {name: text.replace(old, new) for name, text in edited.items()}
        if edited == files:
            raise ValueError(f"{self.name}: nothing was edited")
        return edited

    def was_noticed(self, environment: str) -> bool:
        """Whether the launcher's parser of that environment is known to notice."""
        return environment in self.noticed if isinstance(self.noticed, tuple) else self.noticed


def found_by_us(edit: Edit, launcher: str) -> str:
    """What our reader makes of the edited files: refused, listed or passed."""
    plain = read_once(tuple(export(edit.target.plan, edit.target.problem, launcher).files.items()))
    try:
        found = read(edit.files(launcher))
    except InvalidProblemError:
        return "refused"
    more = {*found.unread, *found.notes} - {*plain.unread, *plain.notes}
    return "listed" if more else "passed"


@cache
def read_once(files: tuple[tuple[str, str], ...]) -> LaunchFile:
    """The run of unedited files, which several edits have in common."""
    return read(dict(files))


def read(files: dict[str, str]) -> LaunchFile:
    """The run that the launch script starts."""
    return read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))


def _for(launcher: str, config: Configuration, **changes: object) -> Target:
    found = target(LLAMA, replace(config, **changes), seq_length=4096)  # type: ignore[arg-type]
    return replace(found, problem=replace(found.problem, launcher=launcher))


def _added(flags: str, old: str = "--bf16\n") -> tuple[Pair, ...]:
    return ((old, f"{old.rstrip()}\n    {flags}\n"),)


def megatron_lm() -> list[Edit]:
    """Flags that contradict each other, one by one."""
    return [*_megatron_lm_flags(), *_megatron_lm_stages()]


def _megatron_lm_flags() -> list[Edit]:
    """Batch, recomputation, precision, experts."""
    plain, tensor = (_for("megatron-lm", one) for one in (PLAIN, TENSOR))
    sharded = _for("megatron-lm", PLAIN, zero_stage=1, zero_shard_size=8)
    picky = _for("megatron-lm", PLAIN, recompute_granularity="selective")
    full = _for("megatron-lm", PLAIN, recompute_granularity="full", recompute_layers=32)
    host = _for("megatron-lm", PLAIN, zero_stage=1, zero_shard_size=8, offload="optimizer")
    experts = target(MIXTRAL, MIXTRAL_EXPERTS, seq_length=4096)
    overlap = "--overlap-moe-expert-parallel-comm"
    spread = Configuration(
        data_parallel_size=64,
        expert_parallel_size=8,
        micro_batch_size=1,
        num_microbatches=8,
        stage_layers=(32,),
    )
    whole = target(MIXTRAL, replace(spread, expert_parallel_size=1), seq_length=4096)
    replay = replace(spread, recompute_granularity="full", recompute_layers=32)
    replayed = target(MIXTRAL, replay, seq_length=4096)
    return [
        Edit("ranks that do not fill the world", plain,
             (("--pipeline-model-parallel-size 1", "--pipeline-model-parallel-size 3"),)),
        Edit("a width that heads do not divide", plain,
             (("    --kv-channels 128\n", ""), ("--num-attention-heads 32", "--num-attention-heads 24"))),
        Edit("selective with a method", picky, _added("--recompute-method uniform")),
        Edit("selective with a number of layers", picky, _added("--recompute-num-layers 1")),
        Edit("full without a method", full, (("    --recompute-method uniform\n", ""),)),
        Edit("full without a number of layers", full, (("    --recompute-num-layers 1\n", ""),)),
        Edit("an unknown module", picky, (("core_attn", "core_attention"),)),
        Edit("weights gathered early without the distributed optimizer", sharded,
             (("    --use-distributed-optimizer\n", ""),)),
        Edit("weights gathered early without overlapped gradients", sharded,
             (("    --overlap-grad-reduce\n", ""),)),
        Edit("overlapped tensor traffic without sequence parallelism", tensor,
             (("    --sequence-parallel\n", ""),)),
        Edit("two precisions", plain, _added("--fp16")),
        Edit("states on the host without their optimizer", host,
             (("    --use-precision-aware-optimizer\n", ""),)),
        Edit("overlapped experts beside plain stages", experts, _added(overlap)),
        Edit("overlapped experts with full recomputation", replayed, _added(overlap)),
        Edit("overlapped experts on one rank", whole, _added(overlap)),
        Edit("an unknown flag", plain, _added("--use-legacy-models"), listed=True),
        Edit("an abbreviated flag", plain, (("--seq-length", "--seq-len"),)),
        Edit("swapped letters in a flag", tensor,
             (("--tensor-model-parallel-size", "--tensor-model-parallel-szie"),)),
        Edit("a size that is a word", plain, (("--micro-batch-size 1", "--micro-batch-size one"),)),
        Edit("a node more than the plan's", plain, (("NUM_NODES=1", "NUM_NODES=2"),), noticed=False),
        Edit("more experts a token than there are", experts,
             (("--moe-router-topk 2", "--moe-router-topk 9"),), noticed=False),
        Edit("a repeated flag", plain, _added("--global-batch-size 64"), noticed=False, listed=True),
        Edit("query groups without their switch", plain, (("    --group-query-attention\n", ""),),
             noticed=False, listed=True),
    ]  # fmt: skip


def _megatron_lm_stages() -> list[Edit]:
    """Stages, chunks and layouts."""
    stages, chunks = (_for("megatron-lm", one) for one in (STAGES, CHUNKS))
    uneven = _for("megatron-lm", STAGES, stage_layers=(9, 8, 8, 7))
    virtual, first = "--num-layers-per-virtual-pipeline-stage", "--decoder-first-pipeline-num-layers"
    pp = "--pipeline-model-parallel-size 4"
    return [
        Edit("a stage's layers and those of a virtual stage", stages, _added(f"{virtual} 3", pp + "\n")),
        Edit("two ways of virtual stages", chunks, _added(f"{virtual} 4", pp + "\n")),
        Edit("a layout of three stages", uneven, (("'Et*9|t*8|t*8|t*7L'", "'Et*11|t*11|t*10L'"),)),
        Edit("middle layers that middle stages do not divide", stages,
             _added(f"{first} 7", pp + "\n")),
        Edit("end stages and virtual ones", chunks,
             _added(f"{first} 7 --decoder-last-pipeline-num-layers 9", pp + "\n")),
        Edit("two ways of splitting", uneven, _added(f"{first} 8", pp + "\n")),
        Edit("a layout without the embedding first", uneven, (("'Et*9|", "'t*9|E"),)),
        Edit("a layout with two losses", uneven, (("t*8|t*7L'", "t*8L|t*7L'"),)),
        Edit("layers on the host beside stages", stages,
             _added("--cpu-offloading --cpu-offloading-num-layers 1")),
        Edit("virtual stages that layers do not divide", chunks,
             (("per-pipeline-rank 2", "per-pipeline-rank 3"),), noticed=False),
        Edit("groups of fewer micro-batches than stages", chunks,
             (("per-virtual-pipeline-stage 4", "per-virtual-pipeline-stage 2"),), noticed=False),
        Edit("a width that tensor ranks do not divide", _for("megatron-lm", TENSOR),
             (("--ffn-hidden-size 14336", "--ffn-hidden-size 14338"),), noticed=False),
    ]  # fmt: skip


def megatron_bridge() -> list[Edit]:
    """Keys and values of its overrides."""
    plain = _for("megatron-bridge", PLAIN)
    stages = _for("megatron-bridge", STAGES, stage_layers=(9, 8, 8, 7))
    head = "PLAN_ARGS=(\n"
    return [
        Edit("a sequence of the data alone", plain,
             (("dataset.sequence_length=4096", "dataset.sequence_length=2048"),)),
        Edit("an unknown key", plain, ((head, f"{head}    model.number_of_layers=3\n"),), listed=True),
        Edit("a letter missing", plain, (("model.tensor_model_parallel", "model.tensor_model_paralel"),)),
        Edit("a size that is a word", plain, (("train.micro_batch_size=1", "train.micro_batch_size=one"),)),
        Edit("an unknown precision", plain, (("bf16:true", "bf17:true"),), noticed=False),
        Edit("ranks that do not fill the world", plain,
             (("model.pipeline_model_parallel_size=1", "model.pipeline_model_parallel_size=3"),)),
        Edit("a layout of three stages", stages, (("Et*9|t*8|t*8|t*7L", "Et*11|t*11|t*10L"),)),
        Edit("full recomputation of nobody's", plain,
             (("model.recompute_granularity=null", "model.recompute_granularity=some"),)),
    ]  # fmt: skip


def ms_swift() -> list[Edit]:
    """Names and values of its arguments."""
    plain = _for("ms-swift", PLAIN)
    picky = _for("ms-swift", PLAIN, recompute_granularity="selective")
    uneven = _for("ms-swift", STAGES, stage_layers=(9, 8, 8, 7))
    return [
        Edit("an unknown argument", plain, _added("--use_legacy true", "--bf16 true\n")),
        Edit("a letter missing", plain, (("--micro_batch_size", "--micro_batchsize"),)),
        Edit("a size that is a word", plain, (("--micro_batch_size 1", "--micro_batch_size one"),)),
        Edit("selective with a method", picky,
             _added("--recompute_method uniform", "--bf16 true\n"), listed=True),
        Edit("a layout of three stages", uneven, (("'Et*9|t*8|t*8|t*7L'", "'Et*11|t*11|t*10L'"),)),
    ]  # fmt: skip


def llama_factory() -> list[Edit]:
    """Keys and values of its YAML."""
    plain = _for("llama-factory", PLAIN)
    uneven = _for("llama-factory", STAGES, stage_layers=(9, 8, 8, 7))
    return [
        Edit("an unknown key", plain, (("packing: true\n", "packing: true\nnodes: 8\n"),)),
        Edit("a letter missing", plain, (("per_device_train_batch_size", "per_device_train_batchsize"),)),
        Edit("gradients in 16 bits", plain, (("grads_in_fp32: true", "grads_in_fp32: false"),),
             listed=True),
        Edit("a layout of three stages", uneven, (("Et*9|t*8|t*8|t*7L", "Et*11|t*11|t*10L"),)),
    ]  # fmt: skip


def deepspeed() -> list[Edit]:
    """Keys and values of the JSON."""
    two = _for("deepspeed", PLAIN, zero_stage=2, zero_shard_size=8)
    three = _for("deepspeed", SHARDED)
    host = _for("deepspeed", SHARDED, offload="optimizer")
    stage = '"zero_optimization": {\n'
    bucket = '"reduce_bucket_size": 500000000'
    return [
        Edit("an unknown key of ZeRO", two, ((stage, f'{stage}    "stages": 2,\n'),)),
        Edit("an unknown key of bf16", two, (('"bf16": {\n', '"bf16": {\n    "loss_scale": 0,\n'),)),
        Edit("an empty bucket", two, ((bucket, '"reduce_bucket_size": -1'),)),
        Edit("a fractional bucket", two, ((bucket, '"reduce_bucket_size": 0.5'),)),
        Edit("two precisions", two,
             (('"fp16": {\n    "enabled": false', '"fp16": {\n    "enabled": true'),)),
        Edit("an unknown device", host, (('"device": "cpu"', '"device": "gpu"'),)),
        Edit("a key twice", two, (('"train_batch_size"', '"train_batch_size": 1,\n  "train_batch_size"'),)),
        Edit("MiCS without its own start", three, ((stage, f'{stage}    "mics_shard_size": 4,\n'),)),
        Edit("a batch of auto", two,
             (('"train_batch_size": 32', '"train_batch_size": "auto"'),), listed=True),
        Edit("an unknown key", two, (('"train_batch_size"', '"train_batch": 1,\n  "train_batch_size"'),),
             noticed=False, listed=True),
        Edit("an unknown key of the pipeline", two,
             (('"train_batch_size"', '"pipeline": {"stage": 4},\n  "train_batch_size"'),),
             noticed=False, listed=True),
        Edit("an unknown key of recomputation", two,
             (('"train_batch_size"', '"activation_checkpointing": {"layers": 4},\n  "train_batch_size"'),),
             noticed=False, listed=True),
        Edit("weights on the host below stage 3", two,
             ((stage, f'{stage}    "offload_param": {{"device": "cpu"}},\n'),), noticed=False, listed=True),
        Edit("shards of seven", three, ((stage, f'{stage}    "zero_hpz_partition_size": 7,\n'),),
             noticed=False),
        Edit("swapped letters in a key", two, (('"train_batch_size"', '"train_batch_szie"'),),
             noticed=False),
        Edit("stages beside ZeRO-2", _for("deepspeed", STAGES, zero_stage=1, zero_shard_size=8),
             (('"stage": 1', '"stage": 2'),), noticed=False),
    ]  # fmt: skip


def torchtitan() -> list[Edit]:
    """Values of the module for 0.3 and of the TOML for 0.2, edited alike."""
    stages = _for("torchtitan", STAGES, zero_stage=3, zero_shard_size=8)
    plain = _for("torchtitan", SHARDED)
    tensor = _for("torchtitan", TENSOR, zero_stage=2, zero_shard_size=8)
    new = ("torchtitan-0.3",)
    return [
        Edit("an unknown schedule", stages, (("'1F1B'", "'2F2B'"), ('"1F1B"', '"2F2B"'))),
        Edit("tensor ranks that heads do not divide", tensor,
             (("tensor_parallel_degree=4", "tensor_parallel_degree=3"),
              ("tensor_parallel_degree = 4", "tensor_parallel_degree = 3"))),
        Edit("sequences beyond the rotary limit", plain,
             (("MAX_SEQ_LEN = 131072", "MAX_SEQ_LEN = 2048"), ("max_seq_len=131072", "max_seq_len=2048")),
             noticed=new),
        Edit("an unknown recomputation", plain,
             (('RECOMPUTATION["none"]', 'RECOMPUTATION["some"]'), ('mode = "none"', 'mode = "some"')),
             noticed=new),
        Edit("an unknown name", plain,
             (("pipeline_parallel_degree=1", "pipeline_degree=1"),
              ("pipeline_parallel_degree = 1", "pipeline_degree = 1")), listed=True),
        Edit("key heads that tensor ranks do not divide", tensor,
             (("NUM_KV_HEADS = 8", "NUM_KV_HEADS = 2"), ("n_kv_heads=8", "n_kv_heads=2")),
             noticed=new),
        Edit("fewer micro-batches than stages", stages,
             (("local_batch_size=8", "local_batch_size=2"),
              ("local_batch_size = 8", "local_batch_size = 2"),
              ("global_batch_size=64", "global_batch_size=16"),
              ("global_batch_size = 64", "global_batch_size = 16")), noticed=False),
        Edit("a name in the place of a number", plain,
             (("tensor_parallel_degree=1", "tensor_parallel_degree=TP"),
              ("tensor_parallel_degree = 1", "tensor_parallel_degree = TP"))),
        Edit("a layer repeated", stages, (("'layers.9',", "'layers.9', 'layers.9',"),
                                          ('"layers.9",', '"layers.9", "layers.9",')), noticed=False),
        Edit("an unknown layer", stages, (("'layers.9'", "'layers.99'"), ('"layers.9"', '"layers.99"')),
             noticed=False),
    ]  # fmt: skip


def accelerate() -> list[Edit]:
    """Keys and values of the YAML."""
    plain = _for("accelerate", SHARDED)
    ring = _for("accelerate", SHARDED, context_parallel_size=2, zero_shard_size=16)
    two = _for("accelerate", SHARDED, data_parallel_size=16, zero_shard_size=16)
    replicas = _for("accelerate", PLAIN)
    head = "compute_environment: LOCAL_MACHINE\n"
    size = "  parallelism_config_tp_size: 1\n"
    return [
        Edit("an unknown key", plain, ((head, f"{head}nodes: 8\n"),)),
        Edit("an option of the command", plain, ((head, f"{head}multi_gpu: true\n"),)),
        Edit("a mesh of nothing", plain, (("dp_shard_size: 8", "dp_shard_size: 0"),)),
        Edit("two ways of splitting sequences", ring,
             ((size, f"{size}  parallelism_config_sp_size: 2\n"),)),
        Edit("an unknown wrapping", plain, (("TRANSFORMER_BASED_WRAP", "LAYER_WRAP"),)),
        Edit("an unknown kind", plain, (("distributed_type: FSDP", "distributed_type: FSDP3"),)),
        Edit("an unknown key of the mesh", plain, ((size, f"{size}  parallelism_config_ep_size: 8\n"),),
             noticed=False),
        Edit("a mesh of fewer than all", plain, (("dp_shard_size: 8", "dp_shard_size: 4"),), noticed=False),
        Edit("machines that do not know the first one", two, ((' --main_process_ip "${MASTER_ADDR}"', ""),),
             noticed=False),
        Edit("a fifth ZeRO stage", replicas,
             (("MULTI_GPU", "DEEPSPEED\ndeepspeed_config:\n  zero_stage: 5"),), noticed=False),
        Edit("a letter missing inside a section", plain, (("after_forward", "after_foward"),),
             noticed=False),
    ]  # fmt: skip


def axolotl() -> list[Edit]:
    """Keys and values of its YAML."""
    plain = _for("axolotl", SHARDED)
    return [
        Edit("an unknown key", plain, (("\nbf16: true", "\nbf16: true\nnodes: 8"),), listed=True),
        Edit("an unknown wrapping", plain, (("TRANSFORMER_BASED_WRAP", "LAYER_WRAP"),)),
        Edit("a size that is a word", plain, (("dp_shard_size: 8", "dp_shard_size: eight"),)),
        Edit("a mesh of fewer than all", plain,
             (("dp_shard_size: 8", "dp_shard_size: 4"), ("dp_replicate_size: 1", "dp_replicate_size: 3"))),
        Edit("a letter missing", plain, (("gradient_accumulation_steps", "gradient_acumulation_steps"),)),
    ]  # fmt: skip


def trl() -> list[Edit]:
    """Keys and values of its YAML."""
    plain = _for("trl", SHARDED)
    return [
        Edit("an unknown key", plain, (("\npacking: true", "\npacking: true\nnodes: 8"),)),
        Edit("an unknown kind of packing", plain, (("packing: true", "packing: perhaps"),)),
        Edit("a letter missing", plain, (("per_device_train_batch_size", "per_device_train_batchsize"),)),
        Edit("a mesh of fewer than all", plain, (("dp_shard_size: 8", "dp_shard_size: 4"),), noticed=False),
    ]  # fmt: skip


def llama_factory_accelerate() -> list[Edit]:
    """Keys and values of its YAML."""
    plain = _for("llama-factory-accelerate", SHARDED)
    return [
        Edit("an unknown key", plain, (("\npacking: true", "\npacking: true\nnodes: 8"),)),
        Edit("a kind of fine-tuning that there is not", plain,
             (("finetuning_type: full", "finetuning_type: most"),)),
        Edit("a letter missing", plain, (("per_device_train_batch_size", "per_device_train_batchsize"),)),
        Edit("a mesh of fewer than all", plain, (("dp_shard_size: 8", "dp_shard_size: 4"),), noticed=False),
    ]  # fmt: skip


def nanotron() -> list[Edit]:
    """What its parser lets pass, and what it is strict on; it cannot be run here."""
    plain = replace(PLAIN, zero_stage=0, zero_shard_size=1)
    found = _for("nanotron", plain)
    tensor = _for("nanotron", replace(plain, tensor_parallel_size=4, sequence_parallel=True))
    return [
        Edit("an unknown ZeRO stage", found, (("zero_stage: 0", "zero_stage: 7"),)),
        Edit("an empty micro-batch", found, (("micro_batch_size: 1", "micro_batch_size: 0"),)),
        Edit("experts' ranks in a dense model", found,
             (("expert_parallel_size: 1", "expert_parallel_size: 2"),)),
        Edit("a size that is a word", found, (("dp: 8", "dp: eight"),)),
        Edit("tensor ranks that heads do not divide", tensor, (("tp: 4", "tp: 3"), ("dp: 8", "dp: 8"))),
        Edit("an unknown key", found, (("  pp_engine: 1f1b\n", "  pp_engine: 1f1b\n  pipelines: 2\n"),),
             listed=True),
    ]  # fmt: skip


def maxtext() -> list[Edit]:
    """What its parser refuses, and what it lets pass."""
    replayed = {"recompute_granularity": "full", "recompute_layers": 32}
    plain = _for("maxtext", SHARDED, **replayed)
    stages = _for("maxtext", STAGES, pipeline_schedule="gpipe", **replayed)
    kept = _for("maxtext", SHARDED, recompute_granularity="selective")
    return [
        Edit("an unknown name", plain, (("steps: 10", "steps: 10\nmicro_batches: 2"),), listed=True),
        Edit("a size that is a word", plain, (("base_emb_dim: 4096", "base_emb_dim: wide"),)),
        Edit("an unknown decoder block", plain, (("decoder_block: llama2", "decoder_block: llama"),)),
        Edit("an unknown place of a tensor", kept, (("out_proj: device", "out_proj: disk"),)),
        Edit("micro-batches that do not go round", stages,
             (("num_pipeline_microbatches: 8", "num_pipeline_microbatches: 6"),)),
        Edit("layers that no stage has", stages,
             (("num_layers_per_pipeline_stage: 8", "num_layers_per_pipeline_stage: 7"),)),
        Edit("ranks that do not fill a node", plain,
             (("ici_fsdp_parallelism: 8", "ici_fsdp_parallelism: 5"),)),
        Edit("an unknown policy", plain, (("remat_policy: full", "remat_policy: some"),)),
        Edit("a part of an input in host memory", kept, (("query_proj: device", "query_proj: offload"),)),
        Edit("products in 8 bits", plain, (("steps: 10", "steps: 10\nquantization: fp8"),)),
    ]  # fmt: skip


EDITS: Mapping[str, Callable[[], list[Edit]]] = {
    "megatron-lm": megatron_lm,
    "megatron-bridge": megatron_bridge,
    "ms-swift": ms_swift,
    "llama-factory": llama_factory,
    "deepspeed": deepspeed,
    "torchtitan": torchtitan,
    "accelerate": accelerate,
    "axolotl": axolotl,
    "trl": trl,
    "llama-factory-accelerate": llama_factory_accelerate,
    "nanotron": nanotron,
    "maxtext": maxtext,
}
