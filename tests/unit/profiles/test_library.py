"""The catalog: what it must hold, and that its figures are sane."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
import yaml

from meshwright.profiles import library
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError, ProfileError, UnknownNameError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import (
    _hub_ids,
    _named_link,
    cluster_names,
    find_cluster,
    find_gpu,
    find_model,
    gpu_alias_note,
    gpu_names,
    gpu_of_device,
    model_like,
    model_names,
    model_of_folder,
)
from meshwright.profiles.model_shapes import model_from_shape, model_to_mapping
from meshwright.profiles.nearest_models import kind_words, nearest_models
from meshwright.profiles.reading import FieldReader
from meshwright.profiles.stored import StoredAs
from meshwright.profiles.units import GIB, MIB
from tests.draws import draws

# every slug that occurs in the measured runs, and every type that users were promised
REQUIRED_GPUS = [
    "a100-sxm",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "b200-sxm-180gb",
    "b300",
    "gb200",
    "gb300",
    "h100-sxm-80gb",
    "h100-sxm-96gb-hbm2e",
    "h200-sxm-141gb",
    "h200-nvl-141gb",
    "l40s",
    "mi300x",
    "mi355x",
    "v100-sxm-32gb",
    "v100-sxm-16gb",
    "v100-pcie-16gb",
    "v100-pcie-32gb",
    "t4",
    "a10g",
    "l4",
    "rtx-2080-ti",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "a800-sxm-80gb",
    "h800-sxm-80gb",
    "h20-sxm-96gb",
    "h100-pcie-80gb",
    "gh200",
    "mi250x",
    "mi325x",
    "mi350x",
]
REQUIRED_CLUSTERS = ["dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "frontier-like"]


@pytest.mark.parametrize("slug", REQUIRED_GPUS)
def test_every_promised_gpu_is_found(slug: str) -> None:
    gpu = find_gpu(slug)
    assert gpu.sources
    assert slug in gpu_names()
    assert gpu.slug == slug or gpu_alias_note(slug)


def test_a_core_of_a_cpu_multiplies_twice_as_fast_in_16_bits() -> None:
    core = find_gpu("epyc-9004-core")
    # 3.7 GHz, 32 fp32 FLOP a clock: 118 GFLOP/s
    assert core.peak_flops["fp32"] == pytest.approx(3.7e9 * 32, rel=0.01)
    assert core.peak_bf16_flops == pytest.approx(2 * core.peak_flops["fp32"], rel=0.01)


@pytest.mark.parametrize("slug", [slug for slug in gpu_names() if find_gpu(slug).architecture != "cpu"])
def test_a_gpu_has_sane_dense_figures(slug: str) -> None:
    gpu = find_gpu(slug)
    half = gpu.peak_bf16_flops
    assert 18e12 < half < 3e15  # from an RTX 3050 to a Blackwell Ultra
    if gpu.nearest:  # neither NVIDIA's nor AMD's: some multiply in 8 bits, or in TF32, as fast as in 16
        assert all(half <= gpu.peak_flops.get(name, half) <= 2 * half for name in ("fp8", "tf32"))
        assert gpu.peak_flops.get("fp32", 0.0) < half
    else:
        assert gpu.peak_flops["fp16"] == half
        assert gpu.peak_flops["fp32"] < half
        # dense fp8 is twice dense bf16: a figure with sparsity would be four times
        assert gpu.peak_flops.get("fp8", 2 * half) == pytest.approx(2 * half, rel=0.02)
        assert gpu.peak_flops.get("tf32", half / 2) == pytest.approx(half / 2, rel=0.02)
    assert 5.9 * GIB < gpu.memory_bytes < 300 * GIB
    assert gpu.inter_node.bytes_per_s <= gpu.intra_node.bytes_per_s
    assert gpu.intra_node.source
    assert gpu.inter_node.source
    # roofline ridge of half precision: 37 (H20) to 574 FLOP a byte (TPU v6e)
    assert 30 < half / gpu.hbm_bytes_per_s < 580


def test_an_h100_has_the_memory_that_its_driver_reports() -> None:
    assert find_gpu("h100-sxm-80gb").memory_bytes == 81559 * 2**20  # 79.6 GiB
    assert find_gpu("h100-sxm-80gb").peak_bf16_flops == pytest.approx(989.4e12)


def test_a_volta_has_no_bf16_so_its_peak_is_fp16() -> None:
    gpu = find_gpu("v100-sxm-32gb")
    assert "bf16" not in gpu.peak_flops
    assert gpu.peak_bf16_flops == pytest.approx(125e12)


def test_the_fast_link_of_an_nvl72_joins_72_gpus() -> None:
    assert find_gpu("gb200").island_gpus == 72
    assert find_cluster("gb200-nvl72").num_gpus == 72
    assert find_cluster("gb200-nvl72", num_nodes=36).num_gpus == 144


def test_an_alias_says_what_it_assumes() -> None:
    assert find_gpu("a100-sxm").slug == "a100-sxm-80gb"
    assert gpu_alias_note("a100-sxm") == "assuming 80 GB"
    assert gpu_alias_note("a100-sxm-80gb") is None


@pytest.mark.parametrize("name", REQUIRED_CLUSTERS)
def test_every_promised_cluster_is_found(name: str) -> None:
    assert find_cluster(name).source
    assert name in cluster_names()


def test_sixteen_dgx_h100_are_128_gpus() -> None:
    cluster = find_cluster("dgx-h100", num_nodes=16)
    assert cluster.title == "16 × DGX H100 = 128 GPUs"
    assert cluster.groups[0].inter_node.bytes_per_s == pytest.approx(50e9)  # 400 Gbit/s a GPU
    assert find_cluster("dgx-h100").num_nodes == 1  # the catalog's own entry is untouched


@pytest.mark.parametrize("num_nodes", [0, -1, 10**9])
def test_an_impossible_number_of_nodes_is_refused(num_nodes: int) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        find_cluster("dgx-h100", num_nodes=num_nodes)
    assert caught.value.errors[0].pointer == "/cluster/num_nodes"


def test_more_than_a_million_gpus_are_refused_and_a_million_are_not() -> None:
    assert find_cluster("dgx-h100", num_nodes=125_000).num_gpus == 1_000_000
    with pytest.raises(InvalidProblemError, match="1000008 GPUs are too many"):
        find_cluster("dgx-h100", num_nodes=125_001)


def test_every_model_names_its_source_and_is_named_after_its_file() -> None:
    for name in model_names():
        assert find_model(name).name == name
        assert find_model(name).source
        assert find_model(name).title != name


def test_unknown_names_list_the_nearest_and_point_at_the_field() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean .*llama-3.1-70b") as model:
        find_model("lama-3.1-70b")
    with pytest.raises(UnknownNameError, match="dgx-h100") as cluster:
        find_cluster("dgx-h10")
    with pytest.raises(UnknownNameError, match="trainium-2") as gpu:
        find_gpu("trainum-2")
    pointers = [caught.value.errors[0].pointer for caught in (model, cluster, gpu)]
    assert pointers == ["/model/name", "/cluster/name", "/cluster/gpu"]


@pytest.mark.parametrize("name", ["../models/llama-2-7b", "", "a" * 1_000_000, "gpus/t4", "llama-2-7b\x00"])
def test_a_hostile_name_is_just_unknown(name: str) -> None:
    for find in (find_model, find_gpu, find_cluster):
        with pytest.raises(UnknownNameError) as caught:
            find(name)
        assert len(str(caught.value)) < 2500  # sixty names that are known, and little of the given one


def test_a_model_is_known_by_name_and_sizes_together() -> None:
    known = find_model("gpt-oss-120b")
    stated = replace(known, name="GPT-OSS-120B", mlp_bias=False, sliding_window=None)
    assert model_like(stated) is known
    assert model_like(replace(stated, num_layers=24)) is None
    assert model_like(replace(stated, moe=None)) is None
    assert model_like(replace(stated, name="mine")) is None


def test_names_are_found_in_any_case() -> None:
    assert find_model("Llama-3.1-8B").name == "llama-3.1-8b"


def test_catalog_entries_can_be_copied_for_other_processes() -> None:
    assert copy.deepcopy(find_cluster("dgx-b200")) == find_cluster("dgx-b200")


def test_aliases_and_links_refer_to_what_exists() -> None:
    files = {path.stem for path in (CATALOG / "gpus").glob("*.yaml")}
    aliases = yaml.safe_load((CATALOG / "gpu_aliases.yaml").read_text())
    assert {entry["of"] for entry in aliases.values()} <= files
    assert not set(aliases) & files
    links = set(yaml.safe_load((CATALOG / "links.yaml").read_text()))
    used = set()
    for path in (CATALOG / "gpus").glob("*.yaml"):
        raw = yaml.safe_load(path.read_text())
        used |= {raw["intra_node"], raw["inter_node"]}
    for path in (CATALOG / "clusters").glob("*.yaml"):
        used |= {yaml.safe_load(path.read_text()).get("inter_node", "ethernet-100")}
    assert used == links


def test_one_look_up_of_each_kind_reads_the_files_that_it_names_and_loads_little() -> None:
    code = (
        "import sys; from pathlib import Path; known, read = set(sys.modules), []\n"
        "sys.addaudithook(lambda event, given: event == 'open' and read.append(Path(str(given[0]))))\n"
        "from meshwright.profiles.library import find_cluster, find_gpu, find_model\n"
        "find_gpu('a100-sxm'), find_cluster('dgx-h100', num_nodes=16), find_model('deepseek-v3')\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - known} - sys.stdlib_module_names\n"
        "print(*(path.stem for path in read if path.suffix == '.yaml'))\n"
        "print(*(name for name in loaded if 'cython' not in name))"
    )
    root = Path(library.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    read, loaded = (set(line.split()) for line in run.stdout.splitlines())
    assert read == {"gpu_aliases", "a100-sxm-80gb", "links", "dgx-h100", "h100-sxm-80gb", "deepseek-v3"}
    assert loaded == {"meshwright", "numpy", "yaml"}


def test_a_second_look_up_reads_no_file() -> None:
    find_model("deepseek-v3")
    with patch("io.open", side_effect=AssertionError), patch("os.open", side_effect=AssertionError):
        find_model("deepseek-v3")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rtx-4090-24gb", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("h200-sxm", "h200-sxm-141gb"),
        ("h200-nvl", "h200-nvl-141gb"),
        ("h20-96gb", "h20-sxm-96gb"),
        ("mi300x-192gb", "mi300x"),
        ("l4-24gb", "l4"),
    ],
)
def test_a_gpu_is_found_in_any_spelling_with_or_without_its_memory(written: str, meant: str) -> None:
    assert find_gpu(written).slug == meant


@pytest.mark.parametrize("written", ["rtx-4090-48gb", "h100-nvl-80gb", "v100-pcie", "gb"])
def test_a_gpu_of_another_memory_or_form_is_not_guessed(written: str) -> None:
    with pytest.raises(UnknownNameError):
        find_gpu(written)


# names and MiB as torch and nvidia-smi report them
@pytest.mark.parametrize(
    ("name", "mib", "slug"),
    [
        ("NVIDIA A100-SXM4-40GB", 40326, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81050, "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", 81050, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 81090, "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", 81090, "h100-pcie-80gb"),
        ("NVIDIA H200", 143167, "h200-sxm-141gb"),
        ("NVIDIA H200 NVL", 143167, "h200-nvl-141gb"),
        ("Tesla V100-SXM2-16GB", 16151, "v100-sxm-16gb"),
        ("Tesla V100-SXM2-32GB", 32494, "v100-sxm-32gb"),
        ("NVIDIA GeForce RTX 4090", 24079, "rtx-4090"),
        ("NVIDIA L4", 22700, "l4"),
        ("Tesla T4", 14917, "t4"),
        ("AMD Instinct MI300X", 196592, "mi300x"),
        ("NVIDIA H100 NVL", 95320, "h100-nvl-94gb"),
        ("NVIDIA H100 NVL", 81090, None),
        ("NVIDIA A100-SXM4-40GB", 20000, None),  # a slice of it
        ("Quadro K620", 2000, None),
    ],
)
def test_a_device_name_means_one_type_of_the_catalog_or_none(name: str, mib: int, slug: str | None) -> None:
    assert gpu_of_device(name, mib * MIB) == slug


def test_a_name_without_an_end_is_none() -> None:
    assert gpu_of_device("x" * 100_000, 80 * GIB) is None


@pytest.mark.parametrize(
    ("hub_id", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b-2507"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("google/gemma-4-31B-it", "gemma-4-31b"),
        ("tiiuae/Falcon3-10B-Instruct", "falcon3-10b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("Qwen/Qwen-1_8B-Chat", "qwen-1.8b"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b"),
        ("zai-org/GLM-4.7", "glm-4.6"),
        ("Qwen/Qwen1.5-1.8B-Chat", "qwen1.5-1.8b"),
        ("bigscience/bloomz-560m", "bloom-560m"),
        ("internlm/internlm2-chat-7b", "internlm2-7b"),
        ("lmsys/vicuna-7b-v1.3", "llama-7b"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-instruct"),
        ("unsloth/llama-3-8b-bnb-4bit", "llama-3-8b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("axolotl-ai-co/gpt-oss-120b-dequantized", "gpt-oss-120b"),
        ("hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "llama-3.1-405b"),
        ("ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16", "llama-3-8b"),
    ],
)
def test_a_hub_id_names_the_architecture_whatever_its_weights_were_trained_for(
    hub_id: str, name: str
) -> None:
    assert replace(find_model(hub_id), stored_as="") == find_model(name)


# Hub ids: the type of their configs, and the billions of parameters that their names or cards state.
OF_2025 = {
    "Qwen/Qwen2.5-VL-3B-Instruct": ("qwen2.5-vl-3b", 3.75),
    "Qwen/Qwen2.5-VL-7B-Instruct": ("qwen2.5-vl-7b", 8.29),
    "Qwen/Qwen2.5-VL-72B-Instruct-AWQ": ("qwen2.5-vl-72b", 73.4),
    "unsloth/Qwen2.5-VL-32B-Instruct-bnb-4bit": ("qwen2.5-vl-32b", 33.5),
    "Qwen/Qwen2-VL-2B-Instruct": ("qwen2-vl-2b", 2.21),
    "Qwen/Qwen3-VL-8B-Thinking": ("qwen3-vl-8b", 8.77),
    "Qwen/Qwen3-VL-30B-A3B-Instruct-FP8": ("qwen3-vl-30b-a3b", 31.1),
    "Qwen/Qwen3.5-0.8B-Base": ("qwen3.5-0.8b", 0.85),
    "Qwen/Qwen3.5-4B": ("qwen3.5-4b", 4.54),
    "Qwen/Qwen3.5-397B-A17B": ("qwen3.5-397b-a17b", 397),
    "Qwen/Qwen3.6-27B": ("qwen3.5-27b", 27.4),
    "Qwen/Qwen3.6-35B-A3B-FP8": ("qwen3.5-35b-a3b", 35.1),
    "Qwen/Qwen3-Next-80B-A3B-Thinking": ("qwen3-next-80b-a3b", 79.7),
    "Qwen/Qwen3-Coder-Next": ("qwen3-next-80b-a3b", 79.7),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron-3-nano-30b-a3b", 31.6),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": ("nemotron-3-super-120b-a12b", 121),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": ("nemotron-3-ultra-550b-a55b", 549),
    "OpenGVLab/InternVL3_5-8B-HF": ("internvl3.5-8b", 8.53),  # a head of its own: 8.2 and .3 billion
    "OpenGVLab/InternVL3_5-1B": ("internvl3.5-1b", 1.06),
    "zai-org/GLM-4.5V": ("glm-4.5v", 108),
    "zai-org/GLM-5-FP8": ("glm-5", 744),
    "moonshotai/Kimi-K2-Thinking": ("kimi-k2-0905", 1026),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": ("kimi-linear-48b-a3b", 49.1),
    "MiniMaxAI/MiniMax-M2": ("minimax-m2.5", 229),
    "deepseek-ai/DeepSeek-V3.2-Speciale": ("deepseek-v3.2", 672),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": ("mistral-small-3.1-24b", 24.0),
    "google/gemma-4-31B-it": ("gemma-4-31b", 30.7),
    "moonshotai/Kimi-K3": ("kimi-k3", 2780),
    "LiquidAI/LFM2-1.2B": ("lfm2-1.2b", 1.17),
    "LiquidAI/LFM2-350M": ("lfm2-350m", 0.354484),
    "LiquidAI/LFM2-8B-A1B": ("lfm2-8b-a1b", 8.33993),
    "tiiuae/Falcon-H1-3B-Base": ("falcon-h1-3b", 3.15),
}


@pytest.mark.parametrize(
    ("hub_id", "name", "billions"), [(hub_id, *row) for hub_id, row in OF_2025.items()]
)
def test_hub_ids_of_2025_and_2026_are_known_with_the_parameters_that_their_cards_state(
    hub_id: str, name: str, billions: float
) -> None:
    model = find_model(hub_id)
    assert model.name == name
    assert model.num_parameters() / 1e9 == pytest.approx(billions, rel=0.006)
    named = "sees" in kind_words(hub_id) or "qwen3.5" in name or name.startswith("mistral-small-3")
    assert (model.tower is not None) == named


def test_a_name_without_its_owner_means_the_hub_id_that_ends_in_it() -> None:
    names = {"Qwen2.5-VL-7B-Instruct": "qwen2.5-vl-7b", "llama-3.1-8b-instruct": "llama-3.1-8b",
             "qwen3-8b-base": "qwen3-8b", "Qwen2.5-7B-Instruct-AWQ": "qwen2.5-7b"}  # fmt: skip
    assert {name: find_model(name).name for name in names} == names


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("Qwen/Qwen2.5-VL-9B-Instruct", "qwen/qwen2.5-vl-7b-instruct"),
        ("Qwen/Qwen3.5-10B", "qwen/qwen3.5-0.8b"),  # a series that sees without a word for it
        ("Qwen/Qwen3-9B", "qwen/qwen3-8b"),
        ("zai-org/GLM-4.6V", "zai-org/glm-4.6v-flash"),
        ("Qwen/Qwen3-Next-90B-A3B", "qwen/qwen3-next-80b-a3b"),
        ("deepseek-ai/DeepSeek-V3.3", "deepseek-ai/deepseek-v3.2"),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", None),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", None),
        ("my-org/private-model", None),
    ],
)
def test_an_unknown_model_is_asked_for_its_config_and_offered_names_of_its_kind_alone(
    wrong: str, near: str | None
) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model(wrong)
    (fault,) = caught.value.errors
    assert f"https://huggingface.co/{wrong}/resolve/main/config.json" in str(fault.allowed)
    offered = fault.message.partition("Did you mean ")[2]
    assert offered.startswith(near) if near else not offered
    assert "None of" not in fault.message


@pytest.mark.parametrize(
    ("written", "name", "stored"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", "qwen3-8b", ""),
        ("hf://meta-llama/Llama-3.1-8B", "llama-3.1-8b", ""),
        ("hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "llama-3.1-8b", "gguf"),
        ("mistral-7b-instruct-v0.2.Q4_K_M.gguf", "mistral-7b-v0.2", "gguf"),
        ("gemma-3-27b-it-IQ4_XS.gguf", "gemma-3-27b", "gguf"),
        ("qwen2.5:7b-instruct-q4_K_M", "qwen2.5-7b", "gguf"),
        ("deepseek-r1:14b", "qwen2.5-14b", ""),  # distilled, as Ollama's tags are
        ("deepseek-r1:8b", "qwen3-8b", ""),  # since R1-0528
        ("deepseek-r1:671b", "deepseek-v3", "fp8"),
    ],
)
def test_a_model_is_found_as_pages_files_and_ollama_name_it(written: str, name: str, stored: str) -> None:
    model = find_model(written)
    assert (model.name, model.stored_as) == (name, stored)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("google-bert/bert-base-uncased", "an encoder"),
        ("answerdotai/ModernBERT-base", "an encoder"),
        ("BAAI/bge-m3", "an encoder"),
        ("google/flan-t5-xl", "an encoder-decoder model"),
        ("google/t5gemma-2b-2b-prefixlm", "an encoder-decoder model"),
        ("openai/whisper-large-v3", "a speech model"),
        ("ViT-B/16", "a vision model"),
        ("SDXL", "an image or video model"),
        ("intfloat/e5-mistral-7b-instruct", None),
        ("Alibaba-NLP/gte-Qwen2-7B-instruct", None),
        ("bartowski/some-model", None),
        ("black-forest-labs/FLUX.1-dev", None),
    ],
)
def test_a_name_of_another_kind_of_model_is_told_so_and_offered_none(wrong: str, kind: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model(wrong)
    (fault,) = caught.value.errors
    assert (f"Its name is that of {kind}: " in fault.message) == (kind is not None)
    assert kind is None or (fault.nearest is None and "config.json" not in str(fault.allowed))


def test_the_config_of_a_pipeline_is_that_of_its_transformer() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model("black-forest-labs/FLUX.1-dev")
    assert "FLUX.1-dev/resolve/main/transformer/config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("Qwen/Qwen2.5-14B-Instruct-1M", "qwen/qwen2.5-14b"),
        ("llama-1b", "llama3.2-1b"),
        ("7B", "qwen2.5-7b, llama2-7b or mistral-7b"),
    ],
)
def test_the_nearest_model_has_the_stated_size(wrong: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean .*{near}"):
        find_model(wrong)


def test_a_name_with_a_typo_is_never_offered_a_model_of_another_kind() -> None:
    random, ids = Random(57), sorted(_hub_ids())
    offered = 0
    for hub_id in random.sample(ids, draws(60)) if draws(60) < len(ids) else ids:
        right = find_model(hub_id)
        owner, _, bare = hub_id.partition("/")
        at = random.randrange(len(owner))  # a letter of the owner's, which says nothing of the model
        wrong = f"{owner[:at]}{random.choice('xyz0')}{owner[at + 1 :]}/{bare}"
        if kind_words(wrong) != kind_words(hub_id):
            continue
        near = nearest_models(wrong, ids, find_model)
        offered += bool(near)
        for one in map(find_model, near):
            assert (one.tower is None, one.moe is None) == (right.tower is None, right.moe is None), wrong
    assert offered >= 50


# --------------------------------------------------------------------------------------------------
# Weights that are published in fewer than 16 bits: by a name, and by a config.

QUANTIZED: list[tuple[dict[str, object], str, StoredAs]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8", "fp8"),
    ({"quant_method": "mxfp4"}, "MXFP4", "mxfp4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4", "nvfp4"),
    ({"quant_method": "compressed-tensors"}, "quantized.w8a8", "compressed-tensors"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-4bit", "bnb-4bit"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-8bit", "bnb-8bit"),
    ({"quant_method": "gptq", "bits": 4}, "GPTQ-Int4", "gptq"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "GPTQ-Int8", "gptq-8bit"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "GPTQ-W8A16", "gptq-8bit"),
    ({"quant_method": "gptq", "bits": 8}, "Int8-GPTQ", "gptq-8bit"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "GPTQ-4bit-128g", "gptq"),
    ({"quant_method": "gptq", "bits": 3}, "GPTQ-Int3", "quantized"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "GPTQ-4bit-32g", "quantized"),
    ({"quant_method": "awq", "bits": 4}, "AWQ", "awq"),
    ({"quant_method": "awq", "bits": 8}, "AWQ-8bit", "quantized"),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "aqlm-2Bit-2x8", "quantized"),
    (
        {"quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 16, "in_group_size": 8},
        "AQLM-2Bit-1x16",
        "aqlm",
    ),
    (
        {"quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 16, "in_group_size": 16},
        "AQLM-PV-1Bit-1x16",
        "quantized",
    ),
]


@pytest.mark.parametrize(("stated", "suffix", "kind"), QUANTIZED)
def test_a_name_and_a_config_state_the_same_of_quantised_weights(
    stated: dict[str, object], suffix: str, kind: StoredAs
) -> None:
    plain = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512}
    config = model_from_config({**plain, "quantization_config": stated}, name="a")
    assert config == replace(model_from_config(plain, name="a"), stored_as=kind)
    named = find_model(f"unsloth/Llama-3.1-8B-Instruct-{suffix}")
    assert named == replace(find_model("llama-3.1-8b"), stored_as=kind)
    assert model_from_shape(model_to_mapping(named)) == named


def test_any_other_method_of_a_config_is_stated_too_and_none_is_none() -> None:
    plain = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512}
    groups_of_32 = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    for stated in ({"quant_method": "hqq"}, {"quant_method": "a new one"}, {"bits": 3}, groups_of_32):
        assert (
            model_from_config({**plain, "quantization_config": stated}, name="a").stored_as == "quantized"
        )
    assert model_from_config({**plain, "quantization_config": None}, name="a").stored_as == ""
    # the model's own hub id is of fp8 weights, the catalog's name of the architecture, a copy of 16 bits
    names = ("deepseek-ai/DeepSeek-V3", "deepseek-v3", "openai/gpt-oss-20b", "unsloth/gpt-oss-20b-BF16")
    assert [find_model(name).stored_as for name in names] == ["fp8", "", "mxfp4", ""]


def test_an_unknown_hub_id_lists_the_nearest_ones_and_every_known_one_has_an_entry() -> None:
    with pytest.raises(UnknownNameError, match=r"meta-llama/llama-3\.1-8b"):
        find_model("meta-lama/Llama-3.1-8B")
    assert set(_hub_ids().values()) <= set(model_names())


def test_a_version_that_is_another_model_is_found_as_it_is_listed() -> None:
    found = {
        "deepseek-ai/DeepSeek-V3.1": "deepseek-v3", "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek-v3.2",
        "mistralai/Mistral-7B-Instruct-v0.2": "mistral-7b-v0.2",
        "mistralai/Mistral-7B-v0.3": "mistral-7b-v0.3",
        "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3", "google/gemma-3-27b-it": "gemma-3-27b",
    }  # fmt: skip
    assert {hub_id: find_model(hub_id).name for hub_id in found} == found
    # the 2507 editions of Qwen3 are trained to 262 144 tokens, the first ones to 40 960
    positions = {
        name: find_model(name).max_position_embeddings
        for name in ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B")
    }
    assert list(positions.values()) == [262_144, 40_960]
    # v0.3 has 768 tokens more than the 32000 of v0.1, in the embedding and in the head
    more = find_model("mistral-7b-v0.3").num_parameters() - find_model("mistral-7b").num_parameters()
    assert more == 2 * 768 * 4096


@pytest.mark.parametrize(
    "name",
    [
        "mistralai/Mistral-7B-v0.4",  # v0.3 has other tokens than v0.1, so that another one may have, too
        "TinyLlama/TinyLlama-1.1B-Chat-v0.4",  # three tokens more than v1.0
        "Qwen/Qwen3-4B-2508",
        "mistralai/Mixtral-8x22B-Instruct-v0.3",
    ],
)
def test_a_version_or_date_that_is_not_listed_is_not_guessed(name: str) -> None:
    for find in (find_model, model_of_folder):
        with pytest.raises(UnknownNameError):
            find(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/models/Meta-Llama-3-8B-Instruct-HF/", "llama-3-8b"),
        ("../hf-llama-7b", "llama-7b"),
        ("Qwen3-1.7B-bf16-bak", "qwen3-1.7b"),
        ("models/llama2_7B", "llama-2-7b"),
        ("Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("somebody/GLM-4-9B-0414", "glm-4-9b-0414"),  # with two norms more a layer than glm-4-9b
        ("~/.cache/huggingface/hub/models--Qwen--Qwen2.5-14B/snapshots/97e1e76", "qwen2.5-14b"),
        ("D:\\modelscope\\Qwen\\Qwen2___5-7B-Instruct", "qwen2.5-7b"),
    ],
)
def test_a_folder_names_a_model_when_the_rest_of_its_name_is_harmless(path: str, name: str) -> None:
    assert model_of_folder(path).name == name


@pytest.mark.parametrize(
    "path",
    [
        "my-llama-7b-medical", "Llama-3-8B-Lexi-Uncensored",  # may have tokens of their own
        "OpenHermes-2.5-Mistral-7B", "Llama-3.1-Tulu-3-8B",  # have: 32 002 and 128 264
        "Llama-2-7B-32K", "Qwen2.5-7B-Instruct-1M", "glm-4-9b-chat-1m",  # other positions
        "opt-1_3b",  # is not opt-13b
        "outputs/qwen2.5-7b/checkpoint-500", "/", "models--", "",
    ],
)  # fmt: skip
def test_a_folder_with_any_other_word_is_not_guessed(path: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown"):
        model_of_folder(path)


def test_the_catalog_counts_what_model_cards_print() -> None:
    # parameters of the published safetensors
    published = {
        "qwen2.5-14b": 14_770_033_664, "qwen2.5-72b": 72_706_203_648, "qwen3-4b": 4_022_468_096,
        "qwen3-1.7b": 1_720_574_976, "mistral-7b": 7_241_732_096, "dbrx": 131_596_523_520,
        "phi-4": 14_659_507_200, "mistral-nemo-12b": 12_247_782_400, "starcoder2-3b": 3_030_371_328,
        "mistral-large-123b": 122_610_069_504, "deepseek-v2": 235_741_434_880, "glm-4.6": 352_797_814_784,
        "codellama-7b": 6_738_546_688, "codellama-70b": 68_976_910_336, "falcon3-1b": 1_669_408_768,
        "pythia-2.8b": 2_775_208_960, "phi-2": 2_779_683_840, "olmo-3-7b": 7_298_011_136,
        "seed-oss-36b": 36_151_104_512, "olmo-1b": 1_176_764_416, "minimax-m2.7": 228_689_748_992,
        "qwen3-coder-30b-a3b": 30_532_122_624, "exaone-4.0-32b": 32_003_216_384,
        "trinity-mini-26b": 26_123_974_400, "glm-4.7-flash": 29_943_390_976,
        "falcon3-7b": 7_455_550_464, "smollm2-1.7b": 1_711_376_384, "gpt2-xl": 1_557_611_200,
        "qwen1.5-0.5b": 463_987_712, "qwen1.5-1.8b": 1_836_828_672, "qwen1.5-32b": 32_512_218_112,
        "qwen-7b": 7_721_324_544, "bloom-560m": 559_214_592, "bloom-7b1": 7_069_016_064,
        "gpt2-large": 774_030_080, "opt-1.3b": 1_315_758_080, "gpt-neo-125m": 125_198_592,
        "internlm2-20b": 19_861_149_696, "smollm-135m": 134_515_008, "yi-1.5-9b": 8_829_407_232,
        "glm-4-9b": 9_399_951_360, "glm-4-9b-0414": 9_400_279_040, "granite-3.3-2b": 2_533_539_840,
        "deepseek-r1-distill-qwen-1.5b": 1_777_088_000, "qwen2.5-math-1.5b": 1_543_714_304,
        "llama-65b": 65_285_660_672, "codestral-22b": 22_247_282_688, "starcoder-15b": 15_517_456_384,
        "deepseek-coder-33b": 33_342_991_360, "deepseek-llm-7b": 6_910_365_696, "gemma-3-270m": 268_098_176,
        "olmo-2-1b": 1_484_916_736, "pythia-14m": 14_067_712, "codeqwen1.5-7b": 7_250_284_544,
    }  # fmt: skip
    assert {name: find_model(name).num_parameters() for name in published} == published


def test_a_link_that_there_is_not_is_named_with_the_file_that_asks_for_it_and_those_that_there_are() -> (
    None
):
    gpu = FieldReader({"intra_node": "pcie-9"}, "/gpus/a30-24gb")
    with pytest.raises(ProfileError, match=r'/gpus/a30-24gb/intra_node: no link "pcie-9".*pcie-4, pcie-5'):
        _named_link(gpu, "intra_node")


@pytest.mark.parametrize("name", model_names())
def test_a_model_is_found_by_the_title_that_answers_print(name: str) -> None:
    model = find_model(name)
    found = find_model(model.title)
    assert replace(found, stored_as=model.stored_as) == model  # a hub id may state another storage


@pytest.mark.parametrize(
    ("typed", "name"),
    [("llama3:8b", "llama-3-8b"), ("qwen3:30b-a3b", "qwen3-30b-a3b"), ("gemma 2 9b it", "gemma-2-9b")],
)
def test_a_model_is_found_as_ollama_and_people_write_it(typed: str, name: str) -> None:
    assert find_model(typed) == find_model(name)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("llama3", "llama3-8b or llama3-70b or llama3.1-8b"),  # not llama30b, which is spelled more like it
        ("mistral", "mistral-7b or mistral-nemo or mistral-large"),
    ],
)
def test_a_series_offers_its_models(typed: str, offered: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model(typed)
    assert caught.value.errors[0].nearest == offered


@pytest.mark.parametrize(
    ("slug", "larger"),
    [
        # no card of 24 GB is larger than another, so that those of 80 and 96 GB are among the six sizes
        ("rtx-4090", ["rtx-5090", "a100-pcie-40gb", "rtx-6000-ada", "h100-pcie-80gb", "rtx-pro-6000"]),
        # not an A800, which has a half percent more, nor GH200 or GB200: its boards hold eight
        ("h100-sxm-80gb", ["h100-sxm-96gb-hbm2e", "h200-sxm-141gb", "b200-sxm-180gb", "b300"]),
        # modules with a switch, and not the NVL cards, whose bridge is NVLink too
        (
            "v100-sxm-16gb",
            [
                "v100-sxm-32gb",
                "a100-sxm-40gb",
                "a100-sxm-64gb",
                "h100-sxm-80gb",
                "h100-sxm-96gb-hbm2e",
                "h200-sxm-141gb",
            ],
        ),
        ("mi210", []),  # no other maker's
    ],
)
def test_a_larger_gpu_is_the_makers_fastest_of_the_next_nominal_size(slug: str, larger: list[str]) -> None:
    group = find_cluster("dgx-h100").groups[0]
    own = library.with_gpu(group, library.find_gpu(slug))
    group = replace(own, intra_node=own.gpu.intra_node)
    assert [gpu.slug for gpu in library.larger_gpus(group)] == larger
