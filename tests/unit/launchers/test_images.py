"""Models with a vision tower: frozen parts and the largest image are written, read back, or refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import yaml

from meshwright.launchers.images import adapted_pattern, image_warnings
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.adapters import SINGLE_TARGETS, adapter_parameters, target_fault, tower_targets
from meshwright.profiles.capabilities import lacking_facts, launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.library import find_model
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.profiles.tower_modules import TOWER_TARGETS, tower_modules
from meshwright.profiles.towers import FrozenPart
from meshwright.service.requests.launch_files import own_of_files
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.problem import Workload
from meshwright.solver.space.launcher_choice import launchers_able
from tests.launchers.cases import plan
from tests.launchers.plans import FROZEN, SEEING, with_towers

FILES = {
    "ms-swift": "launch.sh",
    "llama-factory": "llama_factory.yaml",
    "llama-factory-accelerate": "llama_factory_train.yaml",
    "trl": "trl_sft.yaml",
    "axolotl": "axolotl.yaml",
}
OF_LLAMA_FACTORY = ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model")


def _first(launcher: str) -> Target:
    return next(iter(with_towers(launcher)))


def _frozen(found: Target, *frozen: FrozenPart, **changes: object) -> Target:
    workload = replace(found.workload, frozen=frozen, **changes)  # type: ignore[arg-type]
    return replace(found, problem=replace(found.problem, workload=workload))


def _texts(found: Target) -> dict[str, str]:
    return export(found.plan, found.problem, found.problem.launcher).files


def _read(found: Target) -> LaunchFile:
    texts = _texts(found)
    name = FILES[found.problem.launcher]
    return read_launch_files(Source(name=name, text=texts[name], files=texts))


@pytest.mark.parametrize("name", ["qwen3.5-4b", "qwen3.5-35b-a3b"])
@pytest.mark.parametrize("launcher", ["ms-swift", "megatron-bridge"])
def test_qwen_3_5_with_its_tower_is_read_back_as_its_launcher_gets_it(launcher: str, name: str) -> None:
    found, model = _frozen(_first("ms-swift"), "vision"), find_model(name)
    config = replace(found.config, stage_layers=(model.num_layers,))
    problem = replace(found.problem, model=model, launcher=launcher)
    seeing = replace(found, problem=problem, plan=plan(config))
    assert not lacking_facts(launcher_capabilities(launcher), model)
    texts = _texts(seeing)
    read = read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts))
    assert replace(read.model, display_name=model.display_name, source=model.source) == model
    assert (read.workload.frozen, read.workload.images_per_sample) == (("vision",), 2.0)


@pytest.mark.parametrize(("name", "flavor"), [("qwen3.5-9b", "9B"), ("qwen3.5-35b-a3b", "35B-A3B")])
@pytest.mark.parametrize("images", [0.0, 3.0])
def test_torchtitan_takes_its_own_qwen_3_5_by_name(name: str, flavor: str, images: float) -> None:
    found, model = _first("ms-swift"), replace(find_model(name), num_mtp_layers=0)  # it has no such layers
    sizes = found.workload.image_tokens if images else None
    found = _frozen(found, images_per_sample=images, image_tokens=sizes)
    problem = replace(found.problem, model=find_model(name), launcher="torchtitan")
    config = Configuration(
        data_parallel_size=4, pipeline_parallel_size=2, num_microbatches=16, micro_batch_size=2,
        zero_stage=3, zero_shard_size=4, pipeline_schedule="1f1b", stage_layers=(model.num_layers - 9, 9),
    )  # fmt: skip
    seeing = replace(found, problem=problem, plan=plan(config))
    text = _texts(seeing)["torchtitan_plan.py"]
    assert f"MODEL_FLAVOR = {flavor!r}" in text
    assert "['vision_encoder', 'tok_embeddings', 'layers.0'," in text
    # 16 micro-batches of 2 samples with 3 images of up to 256 tokens, 2 x 2 patches of 16 x 16 pixels each
    assert ("max_images_per_batch=96" in text) == ("max_pixels=262144" in text) == (images > 0)
    read = read_launch_files(Source(name="torchtitan_plan.py", text=text))
    assert replace(read.model, display_name=model.display_name, source=model.source) == model
    assert (read.configuration, read.workload.images_per_sample) == (config, images)
    with pytest.raises(RefusedExportError, match="these sizes of a model with a vision tower"):
        _texts(replace(seeing, problem=replace(problem, model=replace(model, ffn_hidden_size=8192))))


@pytest.mark.parametrize("launcher", FILES)
def test_frozen_parts_and_images_are_read_back_as_they_were_written(launcher: str) -> None:
    targets = list(with_towers(launcher))
    assert len(targets) >= {"trl": 1, "axolotl": 2}.get(launcher, 3)
    without = _frozen(targets[0], *targets[0].workload.frozen, images_per_sample=0.0, image_tokens=None)
    assert list(image_warnings(without)) == ["the prediction assumes no images: use text-only data"]
    for found in (*targets, without):
        read = _read(found)
        assert read.images_stated
        names = ("images_per_sample", "image_tokens", "frozen")
        assert [getattr(read.workload, name) for name in names] == [
            getattr(found.workload, name) for name in names
        ]
        assert (read.model.tower, read.configuration, read.unread) == (found.model.tower, found.config, ())


@pytest.mark.parametrize(
    ("launcher", "refused"),
    [
        ("ms-swift", []),
        ("llama-factory", [("projector",), ("vision", "projector"), ("projector", "language")]),
        (
            "llama-factory-accelerate",
            [("vision",), ("projector",), ("vision", "language"), ("projector", "language")],
        ),
        ("trl", [one for one in FROZEN if one]),
        ("axolotl", [one for one in FROZEN if one not in ((), ("vision", "projector"))]),
    ],
)
def test_parts_that_a_launcher_freezes_otherwise_are_refused_by_name(
    launcher: str, refused: list[tuple[FrozenPart, ...]]
) -> None:
    found = _first(launcher)
    for parts in FROZEN:
        if parts not in refused:
            assert _texts(_frozen(found, *parts))
            continue
        with pytest.raises(RefusedExportError) as caught:
            _texts(_frozen(found, *parts))
        (fault,) = caught.value.errors
        assert fault.pointer == "/workload/frozen"
        assert launcher in fault.message
        assert fault.nearest is not None


@pytest.mark.parametrize("launcher", ["trl", "axolotl"])
def test_adapters_next_to_images_are_those_of_the_language_model_alone(launcher: str) -> None:
    names = ("q_proj", "v_proj")
    found = _frozen(_first(launcher), lora_rank=8, lora_targets=names)
    texts = _texts(found)
    pattern = yaml.safe_load(texts[FILES[launcher]])["lora_target_modules"]
    pattern = pattern if isinstance(pattern, str) else pattern[0]
    assert re.fullmatch(pattern, "model.language_model.layers.31.self_attn.q_proj")
    assert not re.fullmatch(pattern, "model.visual.blocks.3.attn.q_proj")
    read = _read(found).workload
    assert (read.lora_targets, read.frozen, read.images_per_sample) == (names, (), 2.0)
    with pytest.raises(RefusedExportError, match=r"lora_targets: .* also adapts the tower"):
        _texts(_frozen(found, lora_targets=SINGLE_TARGETS))
    packed = SequenceLengths(percentiles=((0.0, 64), (100.0, 256)), batching="packing")
    with pytest.raises(RefusedExportError, match=r"batching: .* doesn't pack documents with images"):
        _texts(_frozen(found, lengths=packed))


@pytest.mark.parametrize("launcher", ["trl", "axolotl"])
@pytest.mark.parametrize(
    "targets",
    [
        ("q_proj", "v_proj", "vision.qkv_proj"),
        ("q_proj", "vision.o_proj", "vision.up_proj", "vision.down_proj", "projector"),
        ("vision.up_proj",),
    ],
)
def test_adapters_in_a_tower_are_paths_of_its_class(launcher: str, targets: tuple[str, ...]) -> None:
    found = _frozen(_first(launcher), lora_rank=8, lora_targets=targets)
    pattern = yaml.safe_load(_texts(found)[FILES[launcher]])["lora_target_modules"]
    pattern = pattern if isinstance(pattern, str) else pattern[0]
    paths = {
        "q_proj": "model.language_model.layers.31.self_attn.q_proj",
        "vision.qkv_proj": "model.visual.blocks.3.attn.qkv",
        "vision.down_proj": "model.visual.blocks.26.mlp.linear_fc2",
        "projector": "model.visual.merger.linear_fc2",
    }
    for name, path in paths.items():
        assert bool(re.fullmatch(pattern, path)) == (name in targets), path
    read = _read(found).workload
    assert (read.lora_targets, read.frozen, read.images_per_sample) == (targets, (), 2.0)


OF_TRL = (
    "model_name_or_path: m\nmax_length: 2048\npacking: false\nper_device_train_batch_size: 1\nbf16: true\n"
    "gradient_accumulation_steps: 8\nuse_peft: true\nlora_r: 8\n"
)
OF_AXOLOTL = (
    "base_model: m\nsequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n"
    "adapter: lora\nlora_r: 8\n"
)
OF_LLAMA = (
    "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: lora\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n"
)
BY_ENDS = {"trl": OF_TRL, "axolotl": f"{OF_AXOLOTL}processor_type: AutoProcessor\n"}


def _named(text: str, names: str, model: str) -> LaunchFile:
    key = "lora_target" if "stage" in text else "lora_target_modules"
    source = Source(name="a.yaml", text=f"{text}{key}: [{names}]\n")
    return read_launch_files(source, Overrides(model=find_model(model), num_gpus=8))


@pytest.mark.parametrize("launcher", BY_ENDS)
@pytest.mark.parametrize(
    ("model", "names", "targets"),
    [
        ("qwen3.5-4b", "q_proj, qkv", ("q_proj", "vision.qkv_proj")),
        ("qwen3.5-4b", "qkv, proj", ("vision.qkv_proj", "vision.o_proj")),
        ("qwen3.5-4b", "q_proj, v_proj", ("q_proj", "v_proj")),  # its tower has them in one layer
        ("internvl3.5-8b", "q_proj, v_proj", ("q_proj", "v_proj", "vision.q_proj", "vision.v_proj")),
        # the tower's names of Megatron-Core's layers, with the projector's two
        ("qwen3.5-4b", "linear_fc1, linear_fc2", ("vision.up_proj", "vision.down_proj", "projector")),
    ],
)
def test_peft_finds_names_in_the_tower_that_a_trainer_loads(
    launcher: str, model: str, names: str, targets: tuple[str, ...]
) -> None:
    """peft 0.21.2, tuners/tuners_utils.py: a name is the end of a path, in the whole model."""
    assert _named(BY_ENDS[launcher], names, model).workload.lora_targets == targets


@pytest.mark.parametrize(
    ("text", "model", "names", "why"),
    [
        *((text, "internvl3.5-8b", "q_proj, qkv", '"qkv" is not a layer') for text in BY_ENDS.values()),
        (OF_AXOLOTL, "qwen3.5-4b", "q_proj, qkv", '"qkv" is not a layer'),  # without a processor
        (OF_AXOLOTL, "qwen3.5-4b", "qkv", '"qkv" is not a layer'),
        # of one layer of the tower, which was read as all of them
        *(
            (text, "qwen3.5-4b", "q_proj, blocks.0.attn.qkv", '"blocks.0.attn.qkv" is not a layer')
            for text in BY_ENDS.values()
        ),
        # Meshwright's own names of a tower's layers, which no class has
        *(
            (text, "qwen3.5-4b", f"q_proj, {own}", f'"{own}" is not a layer')
            for text in (*BY_ENDS.values(), OF_LLAMA)
            for own in ("vision.qkv_proj", "projector")
        ),
        (
            OF_LLAMA, "qwen3.5-4b", "qkv, proj",
            "lora_target: line 9: names layers of a frozen vision tower alone",
        ),
    ],
)  # fmt: skip
def test_names_that_no_layer_has_are_refused_by_name(text: str, model: str, names: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=re.escape(why)) as caught:
        _named(text, names, model)
    assert "vision." not in str(caught.value).partition("Allowed")[2]


@pytest.mark.parametrize(
    ("text", "model", "names", "note"),
    [
        (OF_AXOLOTL, "internvl3.5-8b", "q_proj", "q_proj: priced in the language model alone"),
        (
            OF_LLAMA,
            "qwen3.5-4b",
            "q_proj, qkv",
            "qkv: only frozen layers of the vision tower are called so",
        ),
    ],
)
def test_names_of_a_tower_without_trained_layers_are_noted(
    text: str, model: str, names: str, note: str
) -> None:
    found = _named(text, names, model)
    assert found.workload.lora_targets == ("q_proj",)
    assert [one for one in found.notes if one.startswith(note)]


@pytest.mark.parametrize("images", [0, 1])
def test_adapters_of_a_tower_that_sees_no_image_are_left_out_with_a_note(images: int) -> None:
    source = Source(name="a.yaml", text=f"{OF_TRL}lora_target_modules: [q_proj, v_proj]\n")
    request = {
        "model": {"name": "internvl3.5-8b"},
        "cluster": {"num_nodes": 1, "gpus_per_node": 8, "gpu": "h100-sxm"},
        "workload": {"images_per_sample": images},
    }  # fmt: skip
    own = own_of_files(request, source)
    of_tower = ("vision.q_proj", "vision.v_proj")
    assert own.problem.workload.lora_targets == ("q_proj", "v_proj", *(of_tower if images else ()))
    noted = [one for one in own.notes if one.startswith("vision.q_proj, vision.v_proj: ")]
    assert len(noted) == 1 - images


@pytest.mark.parametrize("launcher", ["trl", "axolotl"])
@pytest.mark.parametrize("kind", tower_modules())
def test_a_pattern_of_a_whole_tower_is_read_back(kind: str, launcher: str) -> None:
    """Every linear layer of the language model, of the tower and of its projector, for every known type."""
    assert SEEING.tower is not None
    model = replace(SEEING, tower=replace(SEEING.tower, model_type=kind))
    targets = (*SINGLE_TARGETS[:7], *tower_targets(model))
    found = _frozen(_first(launcher), lora_rank=8, lora_targets=targets)
    pattern = adapted_pattern(replace(found, problem=replace(found.problem, model=model)), targets)
    text = f"{BY_ENDS[launcher]}lora_target_modules: ['{pattern}']\n"
    read = read_launch_files(Source(name="a.yaml", text=text), Overrides(model=model, num_gpus=8))
    assert read.workload.lora_targets == targets


OF_TOWER = ("vision.qkv_proj", "vision.o_proj", "vision.up_proj", "vision.down_proj")


@pytest.mark.parametrize(
    ("more", "targets"),
    [
        ({}, ()),  # both parts are frozen by default (0.9.5 hparams/finetuning_args.py)
        ({"freeze_vision_tower": False, "freeze_multi_modal_projector": False}, (*OF_TOWER, "projector")),
        # names of all linear layers are looked for in every path: of "qkv" in the tower's alone
        ({"freeze_vision_tower": False, "freeze_multi_modal_projector": False, "lora_target": "qkv,q_proj"},
         ("vision.qkv_proj",)),
        ({"freeze_vision_tower": False, "freeze_multi_modal_projector": False,
          "lora_target": ["qkv", "q_proj"]}, ("vision.qkv_proj",)),
        ({"lora_target": "qkv,q_proj"}, ()),  # of the tower's a note says that they are frozen
        ({"freeze_multi_modal_projector": False}, ()),
    ],
)  # fmt: skip
def test_llama_factory_adapts_a_tower_that_it_does_not_freeze(
    more: dict[str, object], targets: tuple[str, ...]
) -> None:
    given: dict[str, object] = {
        "model_name_or_path": "m", "stage": "sft", "do_train": True, "finetuning_type": "lora",
        "lora_target": "all", "cutoff_len": 2048, "per_device_train_batch_size": 1, "bf16": True,
        "gradient_accumulation_steps": 8,
    }  # fmt: skip
    text = yaml.safe_dump({**given, **more})
    found = read_launch_files(Source(name="a.yaml", text=text), Overrides(model=SEEING, num_gpus=8))
    language = ("q_proj",) if "lora_target" in more else SINGLE_TARGETS
    assert found.workload.lora_targets == (*language, *targets)
    assert found.workload.frozen == ()


@pytest.mark.parametrize("language", [SINGLE_TARGETS, SINGLE_TARGETS[:7]])  # with layers it lacks, and not
def test_llama_factorys_freeze_switches_select_adapters_in_a_tower(language: tuple[str, ...]) -> None:
    every = (*language, *OF_TOWER, "projector")
    found = _frozen(_first("llama-factory-accelerate"), lora_rank=8, lora_targets=every)
    written = yaml.safe_load(_texts(found)["llama_factory_train.yaml"])
    assert written["lora_target"] == "all"
    assert [written[name] for name in OF_LLAMA_FACTORY] == [False, False, False]
    assert _read(found).workload.lora_targets == every
    # its inner layers' projectors have the names of the tower's layers, and count as the tower's
    with pytest.raises(RefusedExportError, match=r"LLaMA-Factory would adapt .*deepstack_merger_list"):
        _texts(_frozen(found, lora_targets=(*SINGLE_TARGETS, *OF_TOWER)))


def test_names_that_are_all_linear_layers_do_not_mean_a_tower_to_llama_factory() -> None:
    """``lora_target`` lists what the language model has; the tower's qkv is in no path of these words."""
    text = yaml.safe_dump({
        "model_name_or_path": "m", "stage": "sft", "do_train": True, "finetuning_type": "lora",
        "lora_target": ",".join(SINGLE_TARGETS), "cutoff_len": 2048, "per_device_train_batch_size": 1,
        "bf16": True, "freeze_vision_tower": False, "freeze_multi_modal_projector": False,
    })  # fmt: skip
    found = read_launch_files(Source(name="a.yaml", text=text), Overrides(model=SEEING, num_gpus=8))
    assert not {*found.workload.lora_targets} & {*TOWER_TARGETS}


@pytest.mark.parametrize(
    ("frozen", "free", "names"),
    [
        ("freeze_multi_modal_projector", "freeze_vision_tower", "all"),
        ("freeze_vision_tower", "freeze_multi_modal_projector", "[linear_fc1, linear_fc2]"),
    ],
)
def test_some_projectors_alone_name_the_switch_that_freezes_the_others(
    frozen: str, free: str, names: str
) -> None:
    """LLaMA-Factory 0.9.5, model/model_utils/visual.py: Qwen3-VL's inner projectors are the tower's."""
    text = f"{OF_LLAMA}lora_target: {names}\n{free}: false\n"
    with pytest.raises(InvalidProblemError) as caught:
        read_launch_files(Source(name="a.yaml", text=text), Overrides(model=SEEING, num_gpus=8))
    (fault,) = caught.value.errors
    assert (fault.pointer, fault.nearest) == (frozen, "false")
    mended = Source(name="a.yaml", text=f"{text}{frozen}: false\n")
    read = read_launch_files(mended, Overrides(model=SEEING, num_gpus=8))
    assert {"vision.up_proj", "projector"} <= {*read.workload.lora_targets}


WITH_A_TOWER = [
    ("qwen3-vl-8b", (*OF_TOWER, "projector")),
    ("qwen2-vl-7b", OF_TOWER),  # the last names of its projector are numbers, which no word means
    ("internvl3.5-8b", ("vision.q_proj", "vision.k_proj", "vision.v_proj", "vision.o_proj",
                        "vision.up_proj", "vision.down_proj")),
]  # fmt: skip


def _requested(name: str, launcher: str, *targets: str) -> dict[str, object]:
    images = {} if "internvl" in name else {"image_tokens": 1024}
    workload = {
        "global_batch_size": 8, "seq_length": 4096, "lora_rank": 8, "lora_targets": list(targets),
        "images_per_sample": 1, **images,
    }  # fmt: skip
    cluster = {"num_nodes": 1, "gpus_per_node": 2, "gpu": "h100-sxm"}
    return {"model": name, "cluster": cluster, "workload": workload, "launcher": launcher}


@pytest.mark.parametrize(("name", "reached"), WITH_A_TOWER)
def test_a_refusal_of_words_for_a_tower_names_layers_that_llama_factory_reaches(
    name: str, reached: tuple[str, ...]
) -> None:
    """What a request's files cannot say is refused before planning, and what stands in its place plans."""
    launcher = "llama-factory-accelerate"
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(_requested(name, launcher, "o_proj", "vision.down_proj"))
    (fault,) = caught.value.errors
    assert fault.message.endswith("LLaMA-Factory would adapt nothing of the tower instead")
    assert json.loads(fault.nearest or "") == ["all-linear", *reached]
    found = parse_problem(_requested(name, launcher, "all-linear", *reached))
    assert found.workload.lora_targets == (*SINGLE_TARGETS, *reached)
    skipped = parse_problem(_requested(name, "any", "o_proj", "vision.down_proj"))
    assert {*launchers_able(skipped)} & {*FILES} == {"trl", "axolotl"}


@pytest.mark.parametrize("launcher", ["trl", "axolotl", "llama-factory-accelerate", "any"])
def test_layers_of_a_tower_next_to_all_linear_layers_have_adapters_too(launcher: str) -> None:
    """Weights of rank 8: those of all linear layers, and those of the tower with its projector."""
    tower = (*OF_TOWER, "projector")
    found = parse_problem(_requested("qwen3-vl-8b", launcher, *tower, "all-linear"))
    both, language, own = (
        adapter_parameters(found.model, 8, named)
        for named in (found.workload.lora_targets, ("all-linear",), tower)
    )
    assert both == language + own
    assert parse_problem(problem_to_mapping(found)) == found


def test_a_launcher_that_has_no_layers_of_a_tower_refuses_them_next_to_all_linear_layers() -> None:
    with pytest.raises(InvalidProblemError, match=r"ms-swift has no modules called vision\.qkv_proj"):
        parse_problem(_requested("qwen3-vl-8b", "ms-swift", "all-linear", "vision.qkv_proj"))


def test_adapters_in_a_tower_are_refused_where_a_launcher_or_the_class_has_none() -> None:
    named = ("q_proj", "vision.qkv_proj")
    with pytest.raises(RefusedExportError, match=r"LLaMA-Factory would adapt nothing of the tower instead"):
        _texts(_frozen(_first("llama-factory-accelerate"), lora_rank=8, lora_targets=named))
    with pytest.raises(RefusedExportError, match=r"has no modules called q_proj or vision\.qkv_proj"):
        _texts(_frozen(_first("ms-swift"), lora_rank=8, lora_targets=named))
    assert SEEING.tower is not None
    assert target_fault(SEEING, named) is None
    others = ", ".join(tower_targets(SEEING))
    assert target_fault(SEEING, ("vision.gate_proj",)) == (
        f"vision.gate_proj: the targets in {SEEING.title}'s tower are {others}"
    )
    unknown = replace(SEEING, tower=replace(SEEING.tower, model_type="mistral3"))
    assert target_fault(unknown, named) == (
        f"vision.qkv_proj: Meshwright doesn't know the linear layers of {SEEING.title}'s tower"
    )
    blind = replace(SEEING, tower=None)
    assert target_fault(blind, named) == f"vision.qkv_proj: {SEEING.title} has no vision tower"


def test_every_part_and_the_largest_image_are_written() -> None:
    found = _frozen(_first("ms-swift"), "vision")
    texts = _texts(found)
    lines = [line.strip() for line in texts["plan_args.sh"].splitlines()]
    assert [line for line in lines if line.startswith("--freeze_")] == [
        "--freeze_vit true", "--freeze_aligner false", "--freeze_llm false",
    ]  # fmt: skip
    # 256 tokens of 2 x 2 patches of 16 x 16 pixels
    assert f"--max_pixels {256 * 4 * 16 * 16}" in lines
    assert f"export MAX_PIXELS={256 * 4 * 16 * 16}\n" in texts["launch.sh"]
    written = yaml.safe_load(_texts(_frozen(_first("llama-factory"), "vision"))["llama_factory.yaml"])
    assert [written[name] for name in OF_LLAMA_FACTORY] == [True, False, False]
    assert written["image_max_pixels"] == 256 * 4 * 16 * 16


def test_a_tower_replays_its_layers_where_it_is_trained_and_the_plan_recomputes() -> None:
    found = _first("ms-swift")
    full = replace(found.config, recompute_granularity="full", recompute_layers=32)
    for parts, config, word in (
        ((), full, "true"),
        (("vision",), full, "false"),
        ((), found.config, "false"),
    ):
        of_plan = replace(_frozen(found, *parts), plan=plan(config))
        assert f"--vit_gradient_checkpointing {word}\n" in _texts(of_plan)["plan_args.sh"]


SWIFT = "megatron sft --model Qwen/Qwen3-VL-2B --tensor_model_parallel_size 2 --micro_batch_size 1 "
SWIFT += "--max_length 4096 --torch_dtype bfloat16 --sequence_parallel true "


def _of_swift(more: str, before: str = "") -> LaunchFile:
    source = Source(name="a.sh", text=f"NPROC_PER_NODE=8 {before}{SWIFT}{more}\n")
    return read_launch_files(source, Overrides(model=SEEING))


def test_ms_swift_freezes_tower_and_projector_unless_it_is_stated_otherwise() -> None:
    assert _of_swift("").workload.frozen == ("vision", "projector")
    assert _of_swift("--freeze_vit false --freeze_aligner false").workload.frozen == ()
    assert _of_swift("--freeze_llm true --freeze_aligner false").workload.frozen == ("vision", "language")
    assert _of_swift("--language_model_only true").model.tower is None
    lora = _of_swift("--tuner_type lora --target_modules all-linear")
    assert (lora.workload.lora_rank, lora.workload.frozen) == (8, ())
    with pytest.raises(InvalidProblemError, match="adapters in vision are not supported"):
        _of_swift("--tuner_type lora --freeze_vit false")


def test_the_largest_image_of_files_is_every_image_until_its_tokens_are_stated() -> None:
    for read in (_of_swift("--max_pixels 262144"), _of_swift("", "MAX_PIXELS=262144 ")):
        assert read.workload.image_tokens is not None
        assert read.workload.image_tokens.longest == 262144 // (4 * 16 * 16)
        assert any("256 tokens" in note for note in read.notes)


def test_a_tower_that_replays_its_layers_by_default_is_noted_where_it_is_priced_otherwise() -> None:
    plain = _of_swift("--freeze_vit false --recompute_granularity none")
    assert any("vit_gradient_checkpointing is true" in note for note in plain.notes)
    off = _of_swift("--freeze_vit false --recompute_granularity none --vit_gradient_checkpointing false")
    assert not any("vit_gradient_checkpointing" in note for note in off.notes)


def test_a_limit_of_images_needs_a_model_with_a_tower_under_llama_factory() -> None:
    given = {
        "model_name_or_path": "m", "stage": "sft", "do_train": True, "finetuning_type": "full",
        "cutoff_len": 2048, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
        "bf16": True, "image_max_pixels": 262144, "pure_bf16": True,
    }  # fmt: skip
    text = yaml.safe_dump(given)
    read = read_launch_files(Source(name="a.yaml", text=text), Overrides(model=SEEING, num_gpus=8))
    assert read.workload.frozen == ("vision", "projector")
    with pytest.raises(InvalidProblemError, match="has no vision tower") as caught:
        read_launch_files(
            Source(name="a.yaml", text=text), Overrides(model=find_model("llama-3.1-8b"), num_gpus=8)
        )
    assert caught.value.errors[0].pointer == "image_max_pixels"


def test_the_first_chunk_holds_the_layers_that_add_the_towers_inner_outputs() -> None:
    tower = SEEING.tower
    assert tower is not None
    deep = replace(SEEING, tower=replace(tower, inner_outputs=3))
    found = _first("ms-swift")
    config = Configuration(
        pipeline_parallel_size=2, data_parallel_size=4, num_microbatches=32, pipeline_schedule="1f1b",
        stage_layers=(2, 30),
    )  # fmt: skip
    narrow = replace(found, plan=plan(config), problem=replace(found.problem, model=deep))
    with pytest.raises(RefusedExportError, match="the first chunk has 2 layers"):
        _texts(narrow)


def test_ranks_with_the_whole_tower_hold_all_of_it_and_pass_every_image() -> None:
    split, whole = (
        replace(_first("ms-swift").problem, launcher=launcher) for launcher in ("none", "ms-swift")
    )
    columns = Columns.of(
        [
            Configuration(
                tensor_parallel_size=4, data_parallel_size=2, num_microbatches=64, stage_layers=(32,)
            )
        ]
    )
    prices = [price(one, columns, default_profile(one.cluster, "ms-swift")) for one in (split, whole)]
    held = [one.weights_bytes[0, -2] for one in prices]
    embedding = 2.0 * SEEING.embedding_parameters / 4
    assert held[1] - embedding == pytest.approx(2.0 * SEEING.tower_parameters())
    assert held[0] < held[1]
    assert prices[0].forward_s[0, -2] < prices[1].forward_s[0, -2]


CLUSTER = {"name": "dgx-h100", "num_nodes": 1}


def _own(more: str, **workload: object) -> Workload:
    source = Source(name="a.sh", text=f"NPROC_PER_NODE=8 {SWIFT}{more}\n")
    request = {"cluster": CLUSTER, "model": model_to_mapping(SEEING), "workload": workload}
    return own_of_files(request, source).problem.workload


def test_images_are_stated_next_to_files_that_name_none() -> None:
    work = _own("--max_pixels 262144 --packing true", images_per_sample=1.5)
    assert (work.images_per_sample, work.image_tokens) == (1.5, _alike(256))
    work = _own("--max_pixels 262144 --packing true", images_per_sample=1, image_tokens=64)
    assert work.image_tokens == _alike(64)
    with pytest.raises(InvalidProblemError, match="has a vision tower") as caught:
        _own("--max_pixels 262144 --packing true")
    assert [one.pointer for one in caught.value.errors] == ["/workload/images_per_sample"]
    with pytest.raises(InvalidProblemError) as caught:
        _own("--packing true")  # which limits no image
    asked = ["/workload/images_per_sample", "/workload/image_tokens"]
    assert [one.pointer for one in caught.value.errors] == asked
    work = _own("--max_pixels 262144 --packing true", images_per_sample=0)
    assert (work.images_per_sample, work.image_tokens) == (0.0, None)


def _alike(tokens: int) -> SequenceLengths:
    return SequenceLengths(percentiles=((0.0, tokens), (100.0, tokens)))


def test_swift_sft_freezes_the_tower_and_its_projector_unless_an_argument_trains_them() -> None:
    run = (
        "NPROC_PER_NODE=8 swift sft --model org/vl --train_type full --torch_dtype bfloat16 "
        "--per_device_train_batch_size 1 --max_length 4096"
    )

    def frozen(more: str) -> tuple[FrozenPart, ...]:
        overrides = Overrides(num_gpus=8, model=SEEING)
        return read_launch_files(Source(name="a.sh", text=f"{run} {more}\n"), overrides).workload.frozen

    assert (frozen(""), frozen("--freeze_vit false")) == (("vision", "projector"), ("projector",))
