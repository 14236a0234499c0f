"""Training on preferences: files of TRL, LLaMA-Factory, ms-swift and Axolotl, read and written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import REFERENCE, price
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem

_MODEL = "Qwen/Qwen2.5-7B-Instruct"
_TRL = f"--model_name_or_path {_MODEL} --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
_LLAMA_FACTORY = f"""\
model_name_or_path: {_MODEL}
do_train: true
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
_ASFT = "stage: sft\nfinetuning_type: full\nuse_asft_loss: true\n"
_AXOLOTL = f"""\
base_model: {_MODEL}
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
flash_attention: true
"""
_SWIFT = "--max_length 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
_READ = {
    "trl/scripts/dpo.py": (f"trl dpo {_TRL} --beta .1 --max_length 2048", ("pair", "frozen", "fp32")),
    "adapters": (f"trl dpo {_TRL} --use_peft --lora_r 8", ("pair", "adapters-off", "fp32")),
    "scored before": (f"trl dpo {_TRL} --precompute_ref_log_probs", ("pair", "none", "bf16")),
    "loaded": (f"""trl dpo {_TRL} --model_init_kwargs '{{"dtype": "bfloat16"}}'""",
               ("pair", "frozen", "bf16")),
    "loaded wide": (f"""trl dpo {_TRL} --dtype bfloat16 --model_init_kwargs '{{"dtype": "float32"}}'""",
                    ("pair", "frozen", "fp32")),
    "kto": (f"python trl/scripts/kto.py {_TRL} --dtype bfloat16", ("unpaired", "frozen", "bf16")),
    "cpo": (f"python examples/scripts/cpo.py {_TRL} --loss_type simpo", ("pair", "none", "bf16")),
    "tpo": (f"python examples/scripts/tpo.py {_TRL} --tpo_alpha .5", ("triple", "none", "bf16")),
    "tpo of two": (f"python examples/scripts/tpo.py {_TRL} --tpo_alpha 0.0", ("pair", "none", "bf16")),
    "mpo": (f"python examples/scripts/mpo.py {_TRL} --dtype bfloat16 --loss_type sigmoid bco_pair sft",
            ("pair", "frozen", "bf16")),
    "swift": (f"swift rlhf --model {_MODEL} {_SWIFT}", ("pair", "adapters-off", "bf16")),
    "dpo.yaml": (f"{_LLAMA_FACTORY}stage: dpo\nfinetuning_type: full\n", ("pair", "frozen", "bf16")),
    "lora.yaml": (f"{_LLAMA_FACTORY}stage: dpo\nfinetuning_type: lora\n", ("pair", "adapters-off", "bf16")),
    "simpo.yaml": (f"{_LLAMA_FACTORY}stage: dpo\npref_loss: simpo\nfinetuning_type: lora\n",
                   ("pair", "none", "bf16")),
    "rm.yaml": (f"{_LLAMA_FACTORY}stage: rm\nfinetuning_type: lora\n", ("pair", "none", "bf16")),
    "kto.yaml": (f"{_LLAMA_FACTORY}stage: kto\nfinetuning_type: lora\n",
                 ("unpaired", "adapters-off", "bf16")),
    "asft.yaml": (f"{_LLAMA_FACTORY}{_ASFT}", ("sequence", "frozen", "bf16")),
    "asft-lora.yaml": (f"{_LLAMA_FACTORY}stage: sft\nuse_asft_loss: true\nref_model: {_MODEL}\n",
                       ("sequence", "frozen", "bf16")),
    "axolotl.yaml": (f"{_AXOLOTL}rl: dpo\n", ("pair", "frozen", "bf16")),
    "axolotl-lora.yaml": (f"{_AXOLOTL}rl: orpo\nadapter: lora\nlora_r: 8\n", ("pair", "none", "bf16")),
}  # fmt: skip


@pytest.mark.parametrize("name", _READ)
def test_files_state_samples_and_their_reference(name: str) -> None:
    text, expected = _READ[name]
    source = Source(name=name if name.endswith(".yaml") else "run.sh", text=text)
    found = read_launch_files(source, Overrides(num_gpus=1))
    work = found.workload
    assert (work.sample, work.reference, work.base_precision) == expected
    assert (found.configuration.micro_batch_size, found.configuration.num_microbatches) == (2, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f"trl grpo {_TRL}"),
        ("run.sh", f"swift rlhf --rlhf_type grpo --model {_MODEL} {_SWIFT}"),
        ("ppo.yaml", f"{_LLAMA_FACTORY}stage: ppo\nfinetuning_type: lora\n"),
        ("grpo.yaml", f"{_AXOLOTL}rl: grpo\n"),
    ],
)
def test_training_that_generates_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidProblemError, match="generates answers"):
        read_launch_files(Source(name=name, text=text), Overrides(num_gpus=1))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("enable_liger_kernel: true\n", "use_asft_loss: .* Liger's loss returns no logits"),
        ("use_dft_loss: true\n", "use_dft_loss: .* next to use_asft_loss: one loss is computed"),
        (
            "finetuning_type: lora\n",
            "use_asft_loss: .* next to LoRA.*Allowed: false, or finetuning_type full",
        ),
    ],
)
def test_a_loss_of_two_models_logits_needs_both(more: str, why: str) -> None:
    key = more.partition(":")[0]
    kept = "".join(f"{line}\n" for line in _ASFT.splitlines() if not line.startswith(key))
    with pytest.raises(InvalidProblemError, match=why):
        read_launch_files(
            Source(name="asft.yaml", text=f"{_LLAMA_FACTORY}{kept}{more}"), Overrides(num_gpus=1)
        )


def test_only_fine_tuning_compares_logits() -> None:
    text = f"{_LLAMA_FACTORY}{_ASFT}".replace("stage: sft", "stage: pt")
    found = read_launch_files(Source(name="pt.yaml", text=text), Overrides(num_gpus=1))
    assert found.workload.reference == "none"
    assert "loss_kernel" not in found.workload.framework_options


def _problem(launcher: str = "trl", *, gpus: int = 8, **workload: object) -> Problem:
    work = {"global_batch_size": 16, "seq_length": 1024, **workload}
    cluster = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": gpus}]}
    return parse_problem(
        {"model": "qwen3-8b", "cluster": cluster, "workload": work, "launcher": launcher,
         "search": {"top_k": 1, "certify": "none"}}
    )  # fmt: skip


@pytest.mark.parametrize("launcher", ["trl", "llama-factory-accelerate", "axolotl"])
@pytest.mark.parametrize(
    ("sample", "reference", "rank"),
    [("pair", "frozen", 0), ("pair", "adapters-off", 8), ("unpaired", "frozen", 0)],
)
def test_plans_are_written_and_read_again(launcher: str, sample: str, reference: str, rank: int) -> None:
    problem = _problem(launcher, sample=sample, reference=reference, lora_rank=rank)
    (plan,) = ask(problem, default_profile(problem.cluster, problem.priced_as)).plans
    files = export(plan, problem, launcher).files
    found = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert (found.workload.sample, found.workload.reference) == (sample, reference)
    assert found.configuration == plan.config


def test_a_loss_of_two_models_logits_is_written_and_read_again() -> None:
    launcher, kernel = "llama-factory-accelerate", {"loss_kernel": "compared"}
    problem = _problem(launcher, reference="frozen", framework_options=kernel)
    (plan,) = ask(problem, default_profile(problem.cluster, problem.priced_as)).plans
    files = export(plan, problem, launcher).files
    assert "use_asft_loss: true" in files["llama_factory_train.yaml"]
    found = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert (found.workload.sample, found.workload.reference) == ("sequence", "frozen")
    assert found.workload.framework_options["loss_kernel"] == "compared"
    assert found.configuration == plan.config
    with pytest.raises(InvalidProblemError, match=r"to a reference only with loss_kernel=compared"):
        _problem(launcher, reference="frozen")


def _prices(zero: int, **workload: object) -> tuple[float, float, float]:
    """Return forward seconds of a layer, seconds of the reference, and bytes of a layer's weights."""
    work: dict[str, Any] = {"seq_length": 8192, **workload}  # longer than what launches take
    problem = _problem("none", **work)
    config = Configuration(
        data_parallel_size=8, micro_batch_size=1, num_microbatches=2, zero_stage=zero,
        zero_shard_size=8 if zero else 1, stage_layers=(36,),
    )  # fmt: skip
    problem = replace(problem, stack="trl")
    prices = price(problem, Columns.of([config]), default_profile(problem.cluster, "trl"))
    scored = prices.breakdown_s.get(REFERENCE)
    return (
        float(prices.forward_s[0, 0]), 0.0 if scored is None else float(scored[0, 0]),
        float(prices.weights_bytes[0, 0]),
    )  # fmt: skip


def test_a_pair_is_two_sequences_and_its_reference_a_forward_pass() -> None:
    plain, _, held = _prices(0)
    pair, _, _ = _prices(0, sample="pair")
    scored, own, copied = _prices(0, sample="pair", reference="frozen")
    layer = (find_model("qwen3-8b").num_parameters() - 2 * 151_936 * 4096) / 36
    assert 1.6 * plain < pair < 2.1 * plain
    assert scored == pytest.approx(pair + own)
    assert 0.7 * pair < own < pair  # autocast casts what is trained in fp32, and nothing of a copy in bf16
    assert copied - held == pytest.approx(2 * layer, rel=1e-3)  # whole on each rank, 2 bytes a weight


def test_a_triple_is_three_sequences_in_one_pass() -> None:
    """TRL f2cd5771, experimental/tpo/tpo_trainer.py: :186 joins the answers, :639 runs them together."""
    plain, pair, triple = (_prices(0, sample=word)[0] for word in ("sequence", "pair", "triple"))
    assert triple - pair == pytest.approx(
        pair - plain, rel=0.05
    )  # a third one costs what a second one does


def test_tpo_keeps_all_logits() -> None:
    """TRL f2cd5771, experimental/tpo/tpo_trainer.py:643 reads ``outputs.logits``; DPO makes chunks."""
    kernels = []
    for name in ("dpo", "tpo"):
        source = Source(name="run.sh", text=f"python examples/scripts/{name}.py {_TRL}")
        found = read_launch_files(source, Overrides(num_gpus=1))
        kernels.append(found.workload.framework_options.get("loss_kernel"))
    assert kernels == ["chunked", None]  # None: whole, as accelerate's other runs


def test_a_reference_is_cut_as_the_model_is() -> None:
    _, _, held = _prices(3)
    _, _, copied = _prices(3, reference="frozen")
    layer = (find_model("qwen3-8b").num_parameters() - 2 * 151_936 * 4096) / 36
    assert copied - held == pytest.approx(2 * layer / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"reference": "adapters-off"}, "reference"),
        ({"sample": "unpaired"}, "sample"),
        ({"sample": "pair", "lengths": {"percentiles": {"p50": 100, "p100": 1024}}}, "lengths/batching"),
        ({"framework_options": {"loss_kernel": "compared"}}, "framework_options/loss_kernel"),
        (
            {"sample": "pair", "reference": "frozen", "framework_options": {"loss_kernel": "compared"}},
            "framework_options/loss_kernel",
        ),
        ({"framework_options": {"loss_kernel": "masked"}}, "framework_options/loss_kernel"),
    ],
)
def test_what_contradicts_is_refused(workload: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        _problem("none", **workload)
    assert f"/workload/{field}" in [one.pointer for one in fault.value.errors]


@pytest.mark.parametrize(
    ("workload", "allowed"),
    [
        (
            {"reference": "frozen", "lora_rank": 8},
            "reference none, or frozen with lora_rank 0, or adapters-off",
        ),
        ({"sample": "triple", "reference": "frozen"}, "reference none"),
    ],
)
def test_a_reference_that_no_launcher_has_is_refused(workload: dict[str, Any], allowed: str) -> None:
    with pytest.raises(InvalidProblemError, match="no launcher can train") as fault:
        _problem("deepspeed", **workload)
    first = next(one for one in fault.value.errors if one.message.startswith("no launcher"))
    assert (first.pointer, first.allowed, first.tip) == ("/workload/reference", allowed, "")


def test_what_has_no_plan_is_answered_where_no_launcher_has_its_reference_next_to_adapters() -> None:
    """One GPU holds no training of 8 billion weights, and adapters next to a frozen copy are no remedy."""
    problem = _problem("deepspeed", gpus=1, reference="frozen")
    answer = ask(problem, default_profile(problem.cluster, problem.priced_as))
    assert answer.infeasible is not None
    assert not any("LoRA" in str(one) for one in answer.infeasible.remedies)
