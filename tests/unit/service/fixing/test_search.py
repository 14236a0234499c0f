"""Edits of launch files as people write them: a value changes where it is set, and other lines stay."""

from difflib import unified_diff
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.launchers.editing.edits import Texts
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.torchtitan.read import configuration_of
from meshwright.profiles.profile import default_profile
from meshwright.service.fixing.lines import _other_uses
from meshwright.service.fixing.moves import Change
from meshwright.service.fixing.search import Bench, Trial, _foreseen, state_of
from meshwright.service.requests.launch_files import own_of_files

TP, MBS, FULL = "tensor_model_parallel_size", "micro_batch_size", "recompute_granularity"
STEP = "gradient_checkpointing"
REQUEST = {"cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8}]}}
SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 "
    "--max-position-embeddings 4096 --bf16"
)
MEGATRON = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}"
ON_GPUS = MEGATRON.replace(" 8 ", " $GPUS ", 1)
BATCH, PARTLY = "--micro-batch-size 1 --global-batch-size 64", "--recompute-granularity selective"
STARTED = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file c.toml"
DEGREE = "tensor_parallel_degree"
TITAN = """\
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

DEGREE = 8  # one node

def ours() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, global_batch_size=64, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=DEGREE, data_parallel_shard_degree=-1),
        activation_checkpoint=FullAC.Config(),  # saves memory
    )
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
sequence_len: 2048
bf16: true
gradient_accumulation_steps: 8
flash_attention: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, transformer_layer_cls_to_wrap: LlamaDecoderLayer}
"""
TRAINER = (
    "--model_name_or_path meta-llama/Llama-3.1-8B --do_train --block_size 2048 --bf16 "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 8"
)
LARGER = TRAINER.replace("batch_size 1", "batch_size 4").replace("steps 8", "steps 2")
ON_HOST = """{
 "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3,
  "offload_optimizer": {"device": "cpu"}}}
"""
NANOTRON = """\
general: {project: ours, run: one}
model:
  dtype: bfloat16
  model_config:
    {hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32, num_attention_heads: 32,
     num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 8192, is_llama_config: true,
     tie_word_embeddings: false, hidden_act: silu}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW}}
parallelism:
  {dp: 1, pp: 1, tp: 8, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, recompute_layer: true}
tokens:
  {batch_accumulation_per_replica: 64, micro_batch_size: 1, sequence_length: 8192}
"""
# What it shows: the files, the main one first; an argument and its new value; the diff.
CASES: dict[str, tuple[dict[str, str], tuple[str, str | None], list[str]]] = {
    "a variable that counts processes, too, keeps its value": (
        {"t.sh": f"GPUS=8\nTP=$GPUS\n{ON_GPUS} --tensor-model-parallel-size $TP {BATCH}\n"},
        (TP, "2"), ["-TP=$GPUS", "+TP=2"],
    ),
    "a default of another variable": (
        {"t.sh": f"GPUS=8\nTP=${{TP:-$GPUS}}  # own\n{ON_GPUS} --tensor-model-parallel-size $TP {BATCH}\n"},
        (TP, "2"), ["-TP=${TP:-$GPUS}  # own", "+TP=${TP:-2}  # own"],
    ),
    "a batch that is computed keeps its size": (
        {"t.sh": f"TP=${{1:-8}}\nACC=16\nDP=$((8 / TP))\nGBS=$((ACC * DP))\n{MEGATRON} "
                 "--tensor-model-parallel-size $TP --micro-batch-size 1 --global-batch-size $GBS\n"},
        (TP, "2"), ["-TP=${1:-8}", "-ACC=16", "+TP=${1:-2}", "+ACC=4"],
    ),
    "a branch of a case": (
        {"t.sh": "SIZE=${SIZE:-8B}\ncase $SIZE in\n  1B) TP=1 ;;\n  8B) TP=8 ;;  # fits\nesac\n"
                 f"{MEGATRON} \\\n  `# the sizes` \\\n  --tensor-model-parallel-size $TP \\\n  {BATCH}\n"},
        (TP, "2"), ["-  8B) TP=8 ;;  # fits", "+  8B) TP=2 ;;  # fits"],
    ),
    "a file that is sourced": (
        {"t.sh": f"source ./env.sh\n{MEGATRON} --tensor-model-parallel-size ${{TP}} {BATCH}\n",
         "env.sh": "# ours\nexport TP=8   # one node\n"},
        (TP, "4"), ["-export TP=8   # one node", "+export TP=4   # one node"],
    ),
    "the last line of a command, with the line ends of Windows": (
        {"t.sh": f"{MEGATRON} --tensor-model-parallel-size 8 \\\r\n  {BATCH} \\\r\n  {PARTLY}\r\n"},
        (FULL, None), [f"-  {BATCH} \\\r", f"-  {PARTLY}\r", f"+  {BATCH}\r"],
    ),
    "flags that a text is extended by": (
        {"t.sh": f'OPTIONS="{SIZES} --tensor-model-parallel-size 8"\nOPTIONS+=" {BATCH} {PARTLY}"\n'
                 "torchrun --nproc_per_node 8 pretrain_gpt.py $OPTIONS\n"},
        (FULL, None), [f'-OPTIONS+=" {BATCH} {PARTLY}"', f'+OPTIONS+=" {BATCH}"'],
    ),
    "a Python constant": (
        {"c.py": TITAN}, (f"parallelism.{DEGREE}", "2"),
        ["-DEGREE = 8  # one node", "+DEGREE = 2  # one node"],
    ),
    "a class of torchtitan": (
        {"c.py": TITAN}, ("activation_checkpoint.mode", "none"),
        ["-        activation_checkpoint=FullAC.Config(),  # saves memory",
         "+        activation_checkpoint=None,  # saves memory"],
    ),
    "a value that a command overrides": (
        {"t.sh": f"{STARTED} \\\n --parallelism.{DEGREE} 4\n",
         "c.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n'
                   f"local_batch_size = 1\nglobal_batch_size = 64\n[parallelism]\n{DEGREE} = 8\n"},
        (f"parallelism.{DEGREE}", "2"), [f"- --parallelism.{DEGREE} 4", f"+ --parallelism.{DEGREE} 2"],
    ),
    "an anchor of YAML": (
        {"c.yml": f"{AXOLOTL}micro_batch_size: &each 1  # ours\neval_batch_size: *each\n{STEP}: true\n"},
        (MBS, "2"), ["-gradient_accumulation_steps: 8", "+gradient_accumulation_steps: 4",
                     "-micro_batch_size: &each 1  # ours", "+micro_batch_size: &each 2  # ours"],
    ),
    "an alias of YAML": (
        {"c.yml": f"{AXOLOTL}eval_batch_size: &each 1\nmicro_batch_size: *each\n{STEP}: true\n"},
        (MBS, "2"), ["-gradient_accumulation_steps: 8", "+gradient_accumulation_steps: 4",
                     "-eval_batch_size: &each 1", "+eval_batch_size: &each 2"],
    ),
    "sizes that make the ranks": (
        {"c.yaml": NANOTRON}, ("parallelism.tp", "4"),
        ["-  {dp: 1, pp: 1, tp: 8, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, recompute_layer: true}",
         "+  {dp: 2, pp: 1, tp: 4, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, recompute_layer: true}",
         "-  {batch_accumulation_per_replica: 64, micro_batch_size: 1, sequence_length: 8192}",
         "+  {batch_accumulation_per_replica: 32, micro_batch_size: 1, sequence_length: 8192}"],
    ),
    "a JSON that the script writes": (
        {"t.sh": 'cat >ds.json <<EOT\n{"train_micro_batch_size_per_gpu": 1,\n'
                 ' "gradient_accumulation_steps": 8,\n "zero_optimization": {"stage": 3},\n'
                 ' "bf16": {"enabled": true}}\nEOT\n'
                 f"deepspeed --num_gpus 8 run_clm.py {TRAINER} --deepspeed ds.json\n"},
        ("zero_optimization.stage", "2"),
        ['- "zero_optimization": {"stage": 3},', '+ "zero_optimization": {"stage": 2},'],
    ),
    "sizes that two files state, which transformers requires to be the same": (
        {"t.sh": f"deepspeed --num_gpus 8 run_clm.py {TRAINER} --deepspeed ds.json\n",
         "ds.json": '{\n "zero_optimization": {"stage": 3},\n "bf16": {"enabled": true},\n'
                    ' "train_micro_batch_size_per_gpu": 1,\n "gradient_accumulation_steps": 8\n}\n'},
        ("per_device_train_batch_size", "4"),
        ['- "train_micro_batch_size_per_gpu": 1,', '- "gradient_accumulation_steps": 8',
         '+ "train_micro_batch_size_per_gpu": 4,', '+ "gradient_accumulation_steps": 2',
         f"-deepspeed --num_gpus 8 run_clm.py {TRAINER} --deepspeed ds.json",
         f"+deepspeed --num_gpus 8 run_clm.py {LARGER} --deepspeed ds.json"],
    ),
    "what is on the host, in the file that keeps it there": (
        {"t.sh": f"deepspeed --num_gpus 8 run_clm.py {TRAINER} --deepspeed ds.json\n", "ds.json": ON_HOST},
        ("zero_optimization.offload_optimizer.device", "none"),
        ['-  "offload_optimizer": {"device": "cpu"}}}', '+  "offload_optimizer": {"device": "none"}}}'],
    ),
    "values of two files that go together": (
        {"t.sh": "llamafactory-cli train q.yaml per_device_train_batch_size=1\n",
         "q.yaml": "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\n"
                   "finetuning_type: full\ndataset: ours\ntemplate: qwen\ncutoff_len: 2048\n"
                   "per_device_train_batch_size: 4\n"
                   "gradient_accumulation_steps: 8 # steps\nbf16: true\ndeepspeed: ds.json\n",
         "ds.json": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, '
                    '"gradient_accumulation_steps": "auto", "train_batch_size": "auto", '
                    '"train_micro_batch_size_per_gpu": "auto"}\n'},
        ("per_device_train_batch_size", "2"),
        ["-gradient_accumulation_steps: 8 # steps", "+gradient_accumulation_steps: 4 # steps",
         "-llamafactory-cli train q.yaml per_device_train_batch_size=1",
         "+llamafactory-cli train q.yaml per_device_train_batch_size=2"],
    ),
}  # fmt: skip


def bench_of(files: dict[str, str]) -> Bench:
    main = next(iter(files))
    source = Source(name=main, text=files[main], files=files)
    read = partial(own_of_files, REQUEST)
    own = read(source)
    profile = default_profile(own.problem.cluster, own.problem.launcher)
    return Bench(source, Texts(files), own=own, read=read, profile=profile, overrides=Overrides())


def edited(bench: Bench, setting: tuple[str, str | None]) -> Trial | None:
    tried = (bench.attempt([move]) for move in bench.arguments.moves(setting))
    return next(
        (one for one in tried if one is not None and state_of(one.own) != state_of(bench.own)), None
    )


def changed(old: str, new: str) -> list[str]:
    lines = unified_diff(old.split("\n"), new.split("\n"), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize("name", CASES)
def test_a_value_changes_where_it_is_set_and_nothing_else_does(name: str) -> None:
    files, setting, expected = CASES[name]
    trial = edited(bench_of(files), setting)
    assert trial is not None
    assert trial.own.configuration.num_gpus == 8
    found = [line for file, text in sorted(trial.texts.items()) for line in changed(files[file], text)]
    assert found == expected


def test_edits_take_back_from_the_host_and_put_nothing_there() -> None:
    """That something leaves the GPUs is for the user to allow (``--allow offload``)."""
    command = f"deepspeed --num_gpus 8 run_clm.py {TRAINER} --deepspeed ds.json\n"
    device = "zero_optimization.offload_optimizer.device"
    for text, wanted in ((ON_HOST, [(device, "none")]), (ON_HOST.replace("cpu", "none"), [])):
        bench = bench_of({"t.sh": command, "ds.json": text})
        settings = [one for one in bench.arguments.settings({}) if "offload" in one[0]]
        assert settings == wanted
    assert edited(bench, (device, "cpu")) is None


def test_two_changes_read_as_what_was_foreseen_of_each() -> None:
    # From 4 x 2 ranks: tensor-parallel 2 makes 4 replicas, pipeline-parallel 2 makes one, both 4 * 1 / 2.
    bench = bench_of({"t.sh": f"{MEGATRON} --tensor-model-parallel-size 4 {BATCH} {PARTLY}\n"})
    settings = (
        (TP, "2"), (TP, "1"), (MBS, "2"), ("pipeline_model_parallel_size", "2"), (FULL, None),
        ("context_parallel_size", "2"), ("use_distributed_optimizer", "on"),
    )  # fmt: skip
    singles = [one for setting in settings if (one := edited(bench, setting)) is not None]
    pairs = [(one, other) for one, other in combinations(singles, 2) if not one.names & other.names]
    seen = 0
    for one, other in pairs:
        own, both = _foreseen(bench.own, one.own, other.own), bench.attempt((*one.moves, *other.moves))
        if own is not None and both is not None:
            assert state_of(own) == state_of(both.own)
            seen += 1
    assert len(singles) == len(settings)
    assert seen >= len(pairs) // 2


@pytest.mark.parametrize("name", ["each", "per-rank", "size.1"])
def test_other_lines_that_name_an_anchor_are_told(name: str) -> None:
    text = f"micro_batch_size: &{name} 1\neval_batch_size: *{name}\nother: *{name}_2\n"
    change = Change(name=MBS, old="1", new="2", file="c.yml", line=1)
    found: Any = SimpleNamespace(source=Source(name="c.yml", text=text))
    chosen: Any = SimpleNamespace(edits=[[change]])
    assert [*_other_uses(found, chosen)] == [f"c.yml, line 2 uses {name}, too: eval_batch_size: *{name}"]


def test_a_number_of_gpus_counts_for_files_that_leave_it_open() -> None:
    cluster = {"groups": [{"gpu": "h100-sxm-80gb", "num_gpus": 16}]}
    own = own_of_files({"cluster": cluster}, Source(name="c.py", text=TITAN))
    assert own.configuration.data_parallel_size == 2


def test_torchtitan_makes_its_configuration_from_the_edited_module_or_command() -> None:
    module, words = configuration_of(Source(name="c.py", text=TITAN), Overrides())
    assert module == {
        "edited_configuration.py": TITAN,
        "torchtitan_plan.py": "from edited_configuration import ours as plan\n",
    }
    assert words == []
    command = "torchrun -m torchtitan.train --module llama3 --config=llama3_8b --training.seq_len 4096\n"
    named, words = configuration_of(Source(name="t.sh", text=command), Overrides())
    place = "torchtitan.models.llama3.config_registry"
    assert named == {"torchtitan_plan.py": f"from {place} import llama3_8b as plan\n"}
    assert words == ["--training.seq_len", "4096"]
    unknown = command.replace("4096", "$LENGTH")
    assert configuration_of(Source(name="t.sh", text=unknown), Overrides()) == ({}, [])
    assert configuration_of(Source(name="c.toml", text="[training]\nseq_len = 1\n"), Overrides()) == (
        {},
        [],
    )
