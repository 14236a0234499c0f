"""Values that are given in flags, files and commands; their faults say what is allowed, and say it once."""

from pathlib import Path

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.documents import LocatedValue
from meshwright.launchers.reading.fields import Fields, meant
from meshwright.launchers.reading.given import given_flags, plain_names
from meshwright.launchers.reading.own_defaults import beyond_arguments, defaults_of, with_defaults
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.values import Word


@pytest.mark.parametrize("text", ["--micro-batch-size -1", "--micro-batch-size 0", "--micro-batch-size"])
def test_a_size_begins_at_1_whatever_is_wrong_with_it(text: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        given_flags([Word(word, 1) for word in text.split()], Overrides())
    assert (caught.value.errors[0].allowed or "").startswith("1 to ")


def test_a_value_that_is_asked_for_twice_is_one_fault() -> None:
    fields = Fields("a.yaml", {"num_machines": LocatedValue(0, 4)})
    assert [fields.integer("num_machines", 1) for _ in range(2)] == [1, 1]
    assert len(fields.faults) == 1


@pytest.mark.parametrize(
    ("program", "name", "word", "nearest"),
    [
        ("accelerate", "distributed_type", "fspd", "FSDP"),  # of the words that are priced
        ("maxtext", "rope_type", "LLAMA3", "llama3.1"),  # of those that the launcher has
        ("torchtitan", "parallelism.pipeline_parallel_schedule", "interleaved_1f1b", "Interleaved1F1B"),
        ("transformers", "optim", "ADAMW_TORCH", "adamw_torch"),  # it stops at another case
        ("accelerate", "distributed_type", "HOROVOD", None),
    ],
)
def test_a_word_is_refused_with_the_nearest_one_in_any_case(
    program: str, name: str, word: str, nearest: str | None
) -> None:
    fields = Fields("a.yaml", {name: LocatedValue(word, 4)}, programs=(program,))
    fields.choice(name)
    assert [one.nearest for one in fields.faults] == [nearest]


@pytest.mark.parametrize("name", ["--tp", "--pp", "--cp", "--ep"])
def test_a_short_name_of_ranks_is_asked_about_not_passed_by(name: str) -> None:
    # read as if all ranks held the whole model; of one rank it says nothing
    command = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --vocab-size 512 "
        "--num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --bf16"
    )
    assert (
        read_launch_files(Source(name="a.sh", text=f"{command} {name} 1"), Overrides()).workload.seq_length
        == 128
    )
    with pytest.raises(InvalidProblemError, match=f"{name}: line 1: .* how ranks share the model"):
        read_launch_files(Source(name="a.sh", text=f"{command} {name} 2"), Overrides())


# Which names were meant.

MEGATRON_LM = Path(__file__).parents[3] / "fixtures" / "megatron_lm_flags.txt"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("tensor_model_parallel_szie", "tensor_model_parallel_size"),  # swapped
        ("num_layres", "num_layers"),
        ("seq_eln", "seq_len"),
        ("micro_batch_siz", "micro_batch_size"),  # one missing
        ("zero_optimmization.stage", "zero_optimization.stage"),  # one too many
        ("per_device_train_batchsize", "per_device_train_batch_size"),
        ("pipelin_model_paralel_size", "pipeline_model_parallel_size"),  # in two words
        ("tensor_model_perallal_size", "tensor_model_parallel_size"),  # two in a word of eight letters
    ],
)
def test_a_slip_leads_to_the_name_that_was_meant(name: str, known: str) -> None:
    assert meant(name, ["hidden_size", known, "expert_model_parallel_size"]) == known


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("fp4_recipe", "fp8_recipe"),  # a number is another one
        ("parallelism_config_ep_size", "parallelism_config_sp_size"),  # short words are whole
        ("vocab_file", "vocab_size"),  # two letters of a short word
        ("dq", "dp"),
        ("strange_flag", "orange_flag"),
    ],
)
def test_another_name_is_no_slip(name: str, known: str) -> None:
    assert meant(name, [known]) is None


def test_no_flag_of_megatron_lm_is_taken_for_a_slip_of_another() -> None:
    flags = [line.split()[0] for line in MEGATRON_LM.read_text().splitlines() if line.startswith("--")]
    names = {flag[2:].replace("-", "_") for flag in flags} - plain_names().keys()
    assert len(names) > 300
    assert {name: meant(name, plain_names()) for name in names if meant(name, plain_names())} == {}


# A file of arguments, and the command that trains by it.

ARGUMENTS = (
    "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nblock_size: 1024\nbf16: true\n"
)
WORDS = "--bf16 true --block_size 64 --per_device_train_batch_size 1 --gradient_accumulation_steps 1"


def test_what_a_command_says_beside_its_file_of_arguments_counts_before_it() -> None:
    start = (
        "torchrun --nproc_per_node=4 train.py c.yaml --deepspeed=zero3"  # the file alone was read: replicas
    )
    for script, micro in ((start, 1), (f"{start} --per_device_train_batch_size=2", 2)):
        files = {"a.sh": f"{script}\n", "c.yaml": ARGUMENTS}
        config = read_launch_files(
            Source(name="a.sh", text=f"{script}\n", files=files), Overrides()
        ).configuration
        assert (config.zero_stage, config.micro_batch_size, config.data_parallel_size) == (3, micro, 4)


def test_the_command_that_trains_by_a_file_counts_not_another_that_is_given_it() -> None:
    train = "torchrun --nproc_per_node 4 t.py c.yaml"

    def found(script: str, name: str = "c.yaml") -> LaunchFile:
        files = {"a.sh": f"{script}\n", "c.yaml": ARGUMENTS}
        return read_launch_files(Source(name=name, text=files[name], files=files), Overrides())

    # each was taken for the training, its words before the file's, and its one process
    for other in (
        "prepare.py --config c.yaml --block_size 64",
        "eval.py c.yaml --bf16 false",
        "s.py c.yaml",
    ):
        run = found(f"python {other}\n{train}")
        assert (run.configuration.data_parallel_size, run.workload.seq_length) == (4, 1024)
    with pytest.raises(InvalidProblemError, match=r"2 different commands use c\.yaml"):
        found(f"{train}\n{train} --per_device_train_batch_size 2")
    with pytest.raises(InvalidProblemError, match=r"line 1 of a\.sh: eval\.py evaluates"):
        found("python eval.py c.yaml")
    with pytest.raises(InvalidProblemError, match=r"line 1 of a\.sh: d\.yaml is not next to it"):
        found(f"{train.replace('c.yaml', 'd.yaml')} {WORDS}", "a.sh")


def test_llama_factorys_own_command_says_how_many_processes_it_starts() -> None:
    own = ARGUMENTS.replace("block_size", "cutoff_len")
    text = f"stage: sft\ndo_train: true\nfinetuning_type: full\n{own}"

    def ranks(script: str) -> int:
        files = {"a.sh": f"{script}\n", "c.yaml": text}
        return read_launch_files(
            Source(name="a.sh", text=files["a.sh"], files=files), Overrides()
        ).configuration.data_parallel_size

    train = "llamafactory-cli train c.yaml"
    assert ranks(f"FORCE_TORCHRUN=1 NPROC_PER_NODE=4 {train}") == 4
    assert ranks(f"CUDA_VISIBLE_DEVICES=0,1 {train}") == 2
    assert ranks(f"FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 {train}") == 2 * 4
    # both commands' values were merged
    with pytest.raises(InvalidProblemError, match="2 different commands use"):
        ranks(f"export NPROC_PER_NODE=4\n{train}\n{train} per_device_train_batch_size=8")


def test_a_file_and_the_script_that_names_it_give_one_answer_in_either_order() -> None:
    said = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 512 --bf16 true"
    words = f"--deepspeed ds.json --model_name_or_path llama-3-8b {said} --gradient_checkpointing true"
    json = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'
    files = {"ds.json": json, "run.sh": f"deepspeed --num_nodes 1 --num_gpus 4 train.py {words}\n"}
    runs = [read_launch_files(Source(name=name, text=files[name], files=files)) for name in files]
    assert runs[0] == runs[1]
    assert runs[0].configuration.recompute_granularity == "full"  # of the script's arguments


def test_words_after_llama_factorys_file_must_be_name_and_value() -> None:
    text = "model_name_or_path: llama-3-8b\nstage: sft\ndo_train: true\ntemplate: llama3\nbf16: true\n"
    text += "finetuning_type: full\ncutoff_len: 2048\n"
    script = "torchrun --nproc_per_node 4 src/train.py a.yaml cutoff_len=512\n"

    def found(script: str) -> LaunchFile:
        files = {"a.yaml": text, "run.sh": script}
        return read_launch_files(Source(name="run.sh", text=script, files=files))

    assert found(script).workload.seq_length == 512
    for other in ("--cutoff_len 512", "--cutoff_len=512"):  # OmegaConf.from_cli: names that no field has
        with pytest.raises(
            InvalidProblemError, match=r"line 1 of the command: --cutoff_len.* is not name=value"
        ):
            found(script.replace("cutoff_len=512", other))


PROGRAM = """\
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
MODEL = "Qwen/Qwen3-8B"
@dataclass
class Arguments:
    max_seq_length: int = field(default=2048)
    optim: str = "adamw_torch_fused"
parser.add_argument("--per_device_train_batch_size", type=int, default=2)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--unheard_of", default=7)
model = AutoModelForCausalLM.from_pretrained(MODEL)
training = TrainingArguments(
    bf16=True, gradient_checkpointing=True, deepspeed=args.deepspeed, gradient_accumulation_steps=args.steps
)
"""


def words(text: str) -> list[Word]:
    return [Word(word, 1) for word in text.split()]


def test_what_a_program_sets_itself_counts_behind_its_command() -> None:
    files = {
        "train.py": PROGRAM,
        "ds.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}',
    }
    text = "torchrun --nproc_per_node 8 src/train.py --deepspeed ds.json --gradient_accumulation_steps 8\n"
    found = read_launch_files(Source(name="a.sh", text=text, files={**files, "a.sh": text}))
    assert (found.model.name, found.workload.seq_length) == ("qwen3-8b", 2048)
    assert found.workload.global_batch_size == 8 * 2 * 8  # the command's 8 before the program's 4
    assert found.configuration.recompute_granularity == "full"
    assert found.unread == ()
    told = " ".join(word.text for word in with_defaults(words("train.py --steps 2 --lr 1"), files))
    assert told.startswith("train.py --lr 1 --")
    assert told.endswith("--gradient_accumulation_steps 2")  # args.steps of the command
    frozen = PROGRAM + "for one in model.parameters(): one.requires_grad_(False)\n"  # in no argument
    assert beyond_arguments(frozen) == ("requires_grad_", PROGRAM.count("\n") + 1)
    said = "--model_name_or_path llama-3-8b --max_length 512 --per_device_train_batch_size 1 --bf16 true"
    beside = {**files, "train.py": frozen, "a.sh": f"{text.strip()} {said}\n"}
    found = read_launch_files(Source(name="a.sh", text=beside["a.sh"], files=beside))
    assert any("requires_grad_ sets in code" in note for note in found.notes)
    for other in (frozen, "print(8)\n", "def (", "import transformers\n" + "(" * 9_000):
        assert defaults_of(other) == {}


BATCHED = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--bf16", "true")
LORA = "LoraConfig(r=8, target_modules=['q_proj', 'v_proj'])"
SFT = """\
from trl import SFTConfig, SFTTrainer
config = SFTConfig(per_device_train_batch_size=4, max_length=512)
trainer = SFTTrainer("Qwen/Qwen3-8B", args=config)
"""


def own_run(program: str, command: str = "accelerate launch --num_processes 4 rloo.py") -> LaunchFile:
    files = {"a.sh": command, "rloo.py": program}
    return read_launch_files(Source(name="a.sh", text=command, files=files))


def test_a_program_of_trls_trainer_trains_as_trls_own_script_whatever_its_name() -> None:
    found, own = own_run(SFT), "--model_name_or_path Qwen/Qwen3-8B --max_length 512"
    known = f"accelerate launch --num_processes 4 trl/scripts/sft.py {own} --per_device_train_batch_size 4"
    assert found.configuration == own_run("", known).configuration
    assert found.workload == own_run("", known).workload
    assert found.configuration.recompute_granularity == "full"  # SFTConfig's default, not transformers'
    off = own_run(SFT + "config.gradient_checkpointing = False\n")
    assert off.configuration.recompute_granularity == "none"
    pairs = own_run(SFT.replace("SFT", "DPO"))
    assert (pairs.workload.sample, pairs.workload.reference) == ("pair", "frozen")
    assert own_run(SFT.replace("SFT", "Reward")).workload.reference == "none"


def test_what_a_run_lacks_or_may_ignore_is_an_option_of_its_tip() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        own_run("", f"torchrun --nproc_per_node 4 a.py {' '.join(BATCHED)} --model_name_or_path llama-3-8b")
    assert [one.tip for one in caught.value.errors] == ["--set seq_length=4096"]
    axolotl = "base_model: mistralai/Mistral-7B-v0.1\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\n"
    axolotl += "flash_attention: true\noptimizer: adamw_torch\nplugins: [my.Plugin]\n"
    with pytest.raises(InvalidProblemError) as caught:
        read_launch_files(Source(name="a.yml", text=axolotl), Overrides(num_gpus=1))
    assert [one.tip for one in caught.value.errors] == ["--ignore plugins"]


@pytest.mark.parametrize(
    ("num_gpus", "start"), [(None, "python"), (1, "python"), (4, "accelerate launch --num_processes 4")]
)
def test_a_program_alone_is_started_on_all_gpus(num_gpus: int | None, start: str) -> None:
    alone = read_launch_files(Source(name="rloo.py", text=SFT), Overrides(num_gpus=num_gpus))
    assert f"no script starts the program: taken as {start} rloo.py" in alone.notes
    assert alone.workload == own_run(SFT, f"{start} rloo.py").workload
    assert alone.configuration.data_parallel_size == (num_gpus or 1)


TRAINER = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
trainer = Trainer(model=model, args=TrainingArguments(output_dir="o", bf16=True))
"""
SFT_DEFAULTS = SFT.replace("per_device_train_batch_size=4, max_length=512", "output_dir='o'")


@pytest.mark.parametrize(
    ("program", "tool", "seq_length"),
    [
        (SFT.replace("per_device_train_batch_size=4, ", ""), "TRL", 512),
        (SFT_DEFAULTS, "TRL", 1024),  # SFTConfig's
        (SFT_DEFAULTS.replace(", args=config", ""), "TRL", 1024),
        (TRAINER, "transformers", 256),
    ],
)
def test_a_program_without_a_micro_batch_trains_with_its_trainers(
    program: str, tool: str, seq_length: int
) -> None:
    """TrainingArguments' default is 8 (transformers, training_args.py), which SFTConfig keeps."""
    given = Overrides(num_gpus=4, values={"seq_length": 256} if tool == "transformers" else {})
    alone = read_launch_files(Source(name="train.py", text=program), given)
    assert (alone.configuration.micro_batch_size, alone.workload.seq_length) == (8, seq_length)
    assert f"per_device_train_batch_size is not given: 8 is {tool}'s default" in alone.notes
    script = "accelerate launch --num_processes 4 train.py"
    started = Source(name="a.sh", text=script, files={"a.sh": script, "train.py": program})
    assert read_launch_files(started, given).workload == alone.workload


def test_trls_own_script_without_a_micro_batch_is_read() -> None:
    own = "accelerate launch --num_processes 4 trl/scripts/sft.py --model_name_or_path Qwen/Qwen3-8B"
    assert (
        own_run("", f"{own} --max_length 512").workload
        == own_run(SFT.replace("per_device_train_batch_size=4, ", "")).workload
    )


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (SFT_DEFAULTS.replace('"Qwen/Qwen3-8B"', "load()"), "model: the files name no model"),
        ("print(8)", "is a Python program"),
        (f"import unsloth\n{SFT}", "unsloth sets in code"),
        (SFT.replace("SFT", "GRPO"), "roles are priced together.*meshwright explain --from-args rloo.py"),
    ],
)
def test_a_program_alone_that_is_not_read_says_what_is(program: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read_launch_files(Source(name="rloo.py", text=program))


@pytest.mark.parametrize(
    "use",
    ["'Qwen/Qwen3-8B', peft_config=CONFIG", "get_peft_model(M.from_pretrained('Qwen/Qwen3-8B'), CONFIG)"],
)
def test_adapters_and_bits_that_code_states_are_those_of_arguments(use: str) -> None:
    given = use.replace("CONFIG", LORA).replace("M.", "AutoModelForCausalLM.")
    found = own_run(SFT.replace('"Qwen/Qwen3-8B"', given)).workload
    assert (found.lora_rank, found.lora_targets) == (8, ("q_proj", "v_proj"))
    assert found.framework_options.get("adapter_dropout") is None  # LoraConfig's 0, not ModelConfig's .05
    bits = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)\n"
    both = SFT.replace("args=config)", f"args=config, peft_config={LORA})") + bits
    assert own_run(both).workload.base_precision == "nf4-double"
    assert own_run(SFT + f"unused = {LORA}\n").workload.lora_rank == 0


@pytest.mark.parametrize(
    "more",
    [
        "get_peft_model(model, config)",
        f"{LORA}\n{LORA}",
        LORA.replace("r=8", "r=8, rank_pattern={}"),
        LORA.replace("r=8", "r=8, bias='all'"),
        LORA.replace("r=8", "**more"),
        "AdaLoraConfig(r=8)",
    ],
)
def test_adapters_that_no_argument_states_are_said_and_not_read(more: str) -> None:
    assert beyond_arguments(SFT + more)[1] > SFT.count("\n")
    assert defaults_of(SFT + more) == {}


BATCH = "per_device_train_batch_size"
SETS = f"TrainingArguments({BATCH}=SIZE)\n"
CHECKPOINTS = "    model.gradient_checkpointing_enable()\n"


@pytest.mark.parametrize(
    ("program", "command", "says"),
    [
        (f"SIZE: int = 4\n{SETS}", "", f"--{BATCH} 4"),
        (f"SIZE = 4\nSIZE = 8\n{SETS}", "", f"--{BATCH} ?"),
        (f"SIZE = 4\nif big:\n    SIZE *= 2\n{SETS}", "", f"--{BATCH} ?"),
        (f"SIZE = 4\ndef train(SIZE):\n    {SETS}", "", f"--{BATCH} ?"),
        (
            f"if a:\n    {SETS.replace('SIZE', '2')}else:\n    {SETS.replace('SIZE', '4')}",
            "",
            f"--{BATCH} ?",
        ),
        (f"if __name__ == '__main__':\n    {SETS.replace('SIZE', '2')}", "", f"--{BATCH} 2"),
        (f"args.{BATCH} = 2\n", "", f"--{BATCH} 2"),
        (f"a, c, m = parser.parse_args_and_config()\nc.{BATCH} = 2\n", "", f"--{BATCH} 2"),
        (
            f"a = p.parse_args()\n{SETS.replace('SIZE', 'a.rows')}p.add_argument('--rows', default=2)\n",
            "--rows 4",
            f"--{BATCH} 4",
        ),
        ("TrainingArguments(fsdp=['full_shard', 'auto_wrap'])\n", "", "--fsdp full_shard auto_wrap"),
        ("TrainingArguments(fsdp_config={'fsdp_version': 2})\n", "", '--fsdp_config {"fsdp_version": 2}'),
        ("TrainingArguments(fsdp_config={'fsdp_version': version()})\n", "", "--fsdp_config ?"),
        (f"{SETS.replace('SIZE', '4')}args.{BATCH} //= 2\n", "", f"--{BATCH} ?"),
        (f"p.add_argument('--{BATCH}', default=size())\n", "", f"--{BATCH} ?"),
        (f"p.add_argument('--{BATCH}', default=size())\n", f"--{BATCH} 2", f"--{BATCH} 2"),
        (
            f"p.add_argument('--{BATCH}', default=2)\n{SETS.replace('SIZE', f'args.{BATCH}')}",
            "",
            f"--{BATCH} 2",
        ),
        ("TrainingArguments(max_steps=-1)\n", "", "--max_steps -1"),
        (f"if args.save_memory:\n{CHECKPOINTS}", "", ""),
        (f"if args.save_memory:\n{CHECKPOINTS}", "--save_memory", "--gradient_checkpointing true"),
        (f"if args.fast:\n    pass\nelse:\n{CHECKPOINTS}", "--fast", "--fast --gradient_checkpointing ?"),
        (f"if True:\n{CHECKPOINTS}", "", "--gradient_checkpointing true"),
    ],
)
def test_values_that_may_be_others_are_unknown(program: str, command: str, says: str) -> None:
    files = {"train.py": f"from transformers import TrainingArguments\n{program}"}
    found = with_defaults(words(f"train.py {command}"), files)
    assert " ".join("?" if word.unknown else word.text for word in found[1:]) == says
