"""Loads a launch file of post-training with the launcher's own configuration classes, on a CPU.

``python post_training.py nemo-rl|verl|slime|trl CHECKOUT FOLDER``. Whatever the launcher imports beyond
what its configuration needs is a stand-in: Ray, vLLM, transformers, Megatron. TRL is an installed package.

NeMo-RL: ``load_config`` follows the file's base, ``MasterConfig`` takes the result, and resources are as
``setup`` of nemo_rl/algorithms/grpo.py asks. Every key of ours is the base's, or one of a declared class.
verl: Hydra composes the overrides, which refuses unknown names, and ``validate_config`` takes the result.
slime: its own parser takes its arguments, with Megatron-LM's by the table next to that launcher, and
``slime_validate_args`` the result. SGLang's arguments are those of a stand-in.
TRL: ``trl grpo``'s parser and ``GRPOConfig`` take its YAML on as many processes, accelerate its file, and
the server has the arguments that ``trl vllm-serve`` would give it.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204, PLC0415 - stand-ins have no types
from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import os
import re
import shlex
import sys
import typing
from pathlib import Path
from types import ModuleType

import yaml

MEGATRON = Path(__file__).resolve().parents[3] / "launchers" / "megatron_lm"
KEPT = {
    "nemo_rl",
    "verl",
    "slime",
    "recipe",
    "torch_npu",
    "vllm",
    "sglang",
    "tensorrt_llm",
    "sitecustomize",
}
# keys that NeMo-RL declares, and its base file leaves out
DECLARED = {"skip_reference_policy_logprobs_calculation", "recompute_granularity", "max_num_seqs"}


class _Kind(type):
    """A class with whatever attribute is asked for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {})

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls


class _Anything(metaclass=_Kind):
    def __init__(self, *_given, **_options):
        pass

    def __call__(self, *given, **options):
        return given[0] if len(given) == 1 and not options and callable(given[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Module(ModuleType):
    __version__ = "5.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {})


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is not installed."""

    def find_spec(self, fullname, path, target=None):  # noqa: ARG002
        if fullname.partition(".")[0] in KEPT | sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def keys_of(values, at=""):
    """Yield the dotted names of all leaves."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from keys_of(value, f"{at}{name}.")
        else:
            yield f"{at}{name}"


def judge_nemo_rl(checkout, folder):
    """Load the YAML as examples/run_grpo.py does."""
    import omegaconf
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # pydantic asks for it below Python 3.12
    from nemo_rl.algorithms.grpo import MasterConfig
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

    register_omegaconf_resolvers()
    text = (folder / "nemo_rl_grpo.yaml").read_text()
    own = yaml.safe_load(text)
    base_file = checkout / own.pop("defaults").split("/opt/nemo-rl/")[1]
    local = folder / "local.yaml"
    local.write_text(text.replace("/opt/nemo-rl", str(checkout)))
    config = MasterConfig(**omegaconf.OmegaConf.to_container(load_config(str(local)), resolve=True))
    known = {*keys_of(omegaconf.OmegaConf.to_container(load_config(str(base_file)), resolve=False))}
    unknown = [key for key in keys_of(own) if key not in known and key.rpartition(".")[2] not in DECLARED]
    assert not [key for key in unknown if not any(one.startswith(f"{key}.") for one in known)], unknown
    resources = config.policy["generation"]["colocated"]
    reward = {"num_nodes": 0, "gpus_per_node": 0}
    if config.data["default"]["env_name"] == "reward_model":
        reward = config.env["reward_model"]["resources"]
    total = config.cluster["num_nodes"]
    left = total if total == 1 else total - reward["num_nodes"]
    free = config.cluster["gpus_per_node"] - (reward["gpus_per_node"] if total == 1 else 0)
    assert left > 0
    assert free > 0
    if not resources["enabled"]:
        nodes, each = resources["resources"]["num_nodes"], resources["resources"]["gpus_per_node"]
        if left == 1:
            assert nodes in {None, 1}
            assert 0 < each < free
        else:
            assert each == config.cluster["gpus_per_node"]
            assert 0 < nodes < left
    if config.grpo["async_grpo"]["enabled"]:
        assert config.policy["generation"]["vllm_cfg"]["async_engine"]
        assert config.loss_fn.use_importance_sampling_correction


def judge_verl(checkout, folder):
    """Compose the overrides as Hydra does for its main functions, and validate the result."""
    from hydra import compose, initialize_config_dir
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    text = (folder / "run.sh").read_text()
    words = shlex.split(text[text.index("exec python3") :].replace("\\\n", " "))
    words = [word.replace("${TRAIN_FILES}", "a").replace("${VAL_FILES}", "b") for word in words]
    name = next(word.split("=", 1)[1] for word in words if word.startswith("--config-name"))
    overrides = [word for word in words if re.match(r"^[+~]*[a-z_]+(\.[a-z_0-9]+)*=", word)]
    at = "recipe/fully_async_policy/config" if "fully_async" in name else "verl/trainer/config"
    with initialize_config_dir(config_dir=str(checkout / at), version_base=None):
        config = compose(config_name=name, overrides=overrides)
    with contextlib.redirect_stdout(io.StringIO()):
        uses = config.actor_rollout_ref.actor.use_kl_loss
        validate_config(config, use_reference_policy=uses, use_critic=False)
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert config.critic.strategy == config.actor_rollout_ref.actor.strategy


SGLANG = {"--sglang-mem-fraction-static": float, "--sglang-max-running-requests": int}


def judge_slime(checkout, folder):  # noqa: ARG001 - as the others
    """Parse the script's arguments as slime/utils/arguments.py parse_args does."""
    import argparse

    KEPT.discard("sglang")  # whose arguments slime adds to its own
    from slime.utils.arguments import _pre_parse_mode, get_slime_extra_args_provider, slime_validate_args

    reference = folder / "ref"
    reference.mkdir(exist_ok=True)
    for name in ("HF_CHECKPOINT", "REF_LOAD", "PROMPT_DATA"):
        os.environ[name] = str(reference)
    os.environ["NUM_ROLLOUT"] = "10"
    text = (folder / "run.sh").read_text()
    command = text[text.index("exec python3") :].replace("\\\n", " ").replace('"$@"', "")
    words = shlex.split(os.path.expandvars(command))
    program, given = words[2], words[3:]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    table = yaml.safe_load((MEGATRON / "flags.yaml").read_text())
    own = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    known = {name for action in own._actions for name in action.option_strings}
    for name, kind in SGLANG.items():
        parser.add_argument(name, type=kind)
    for row, facts in table.items():
        name = "--" + row.replace("_", "-")
        if name not in known:
            switch = {"action": "store_true"} if facts["type"] == "bool" else {"nargs": 1}
            parser.add_argument(name, dest=f"megatron_{row}", **switch)
    parser = get_slime_extra_args_provider()(parser)
    args = parser.parse_args(given)
    sys.argv = [program, *given]
    vars(args).update(vars(_pre_parse_mode()))
    slime_validate_args(args)
    assert args.global_batch_size
    assert args.use_critic == ("--critic-num-nodes" in given)
    assert not (args.colocate and program == "train_async.py")
    assert args.rollout_num_gpus % args.rollout_num_gpus_per_engine == 0


def judge_trl(checkout, folder):  # noqa: ARG001 - as the others
    """Parse the YAML as trl/scripts/grpo.py does, accelerate's file as its launcher, and the server."""
    from accelerate.commands.config.config_args import load_config_from_file
    from trl import GRPOConfig
    from trl.scripts import vllm_serve
    from trl.scripts.grpo import make_parser

    mesh = load_config_from_file(str(folder / "accelerate.yaml"))
    GRPOConfig.world_size = property(lambda _config: mesh.num_processes)
    text = (folder / "trl_grpo.yaml").read_text()
    assert "\nbf16: true\n" in text  # which asks for a GPU
    (folder / "local.yaml").write_text(
        text.replace("\nbf16: true\n", "\nbf16: false\n") + "use_cpu: true\n"
    )
    start = (folder / "run.sh").read_text()
    words = ["--config", str(folder / "local.yaml"), "--model_name_or_path", "m", "--dataset_name", "d"]
    if "VLLM_URL" in start:
        words += ["--vllm_server_base_url", "http://node:8000"]
    words += ["--reward_funcs", "accuracy_reward", "--output_dir", str(folder), "--learning_rate", "1e-6"]
    script, grpo, model, _ = make_parser().parse_args_and_config(words, fail_with_unknown_args=True)
    assert script.reward_funcs == ["accuracy_reward"]
    assert model.dtype == "float32"
    assert grpo.use_vllm
    assert grpo.generation_batch_size == ANSWERS
    assert grpo.steps_per_generation % grpo.gradient_accumulation_steps == 0
    assert mesh.num_processes % grpo.vllm_tensor_parallel_size == 0
    assert (folder / "serve.sh").exists() == (grpo.vllm_mode == "server")
    if grpo.vllm_mode == "server":
        served = (folder / "serve.sh").read_text()
        command = served[served.index("exec vllm serve") :].replace("\\\n", " ").replace('"$@"', "")
        ours = shlex.split(command)[4:]
        given = dict(zip(ours[::2], ours[1::2], strict=True))
        known = vllm_serve.build_command(vllm_serve.ScriptArguments(model="m", max_model_len=1))
        assert {*given} - {*known} == {"--max-num-seqs"}, given
        for name in ("--weight-transfer-config", "--logprobs-mode", "--max-logprobs"):
            assert given[name] == known[known.index(name) + 1]


ANSWERS = 128 * 16  # of a step, as tests/launchers/post_training.py asks
BEFORE = (
    "torch.distributed.tensor",
    "hydra._internal.config_loader_impl",
    "numpy",
    "pydantic",
    "packaging",
)


if __name__ == "__main__":
    launcher, checkout, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if launcher == "trl":
        sys.path.remove(str(Path(__file__).parent))  # a file there has the name of the package
        judge_trl(checkout, folder)
        raise SystemExit(0)
    for module in BEFORE:  # they look for modules that are better missing
        importlib.import_module(module)
    sys.meta_path.append(_Missing())
    sys.path.insert(0, str(checkout))
    os.chdir(checkout)
    judges = {"nemo-rl": judge_nemo_rl, "verl": judge_verl, "slime": judge_slime}
    judges[launcher](checkout, folder)
