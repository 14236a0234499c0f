"""What ms-swift would decide by itself is written: its defaults are not what a plan is priced with."""

import re

import pytest
import yaml

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from tests.launchers.cases import DEEPSEEK_EXPERTS, DEEPSEEK_V3
from tests.launchers.plans import CASES, _for

# swift/megatron/arguments/megatron_args.py, ms-swift 4.6.0.dev0 (3602360a), by line.
DEFAULTS = {
    "recompute_granularity": (484, "selective"),
    "apply_rope_fusion": (494, "false"),
    "cross_entropy_loss_fusion": (496, "true"),
    "attention_backend": (499, "flash"),
    "use_distributed_optimizer": (587, "true"),
    "overlap_grad_reduce": (608, "false"),
    "overlap_param_gather": (609, "false"),
    "accumulate_allreduce_grads_in_fp32": (652, "false"),
}
STAGES = {"overlap_p2p_comm": (598, "true")}
EXPERTS = {
    "expert_tensor_parallel_size": (619, "1"),
    "moe_token_dispatcher_type": (657, "alltoall"),
    "moe_grouped_gemm": (659, "true"),
}


@pytest.mark.parametrize("name", CASES["ms-swift"])
def test_every_default_of_ms_swift_that_a_price_depends_on_is_written(name: str) -> None:
    case = CASES["ms-swift"][name]
    files = export(case.plan, case.problem, "ms-swift").files
    text = "\n".join(files.values())
    source = Source(name="launch.sh", text=files["launch.sh"], files=files)
    read = read_launch_files(source, Overrides(model=case.model))
    assert (read.configuration, read.unread) == (case.config, ())
    written = dict(re.findall(r"^ +--(\w+) (\S+)$", text, re.MULTILINE))
    wanted = {*DEFAULTS}
    wanted |= {*STAGES} if case.config.virtual_pipeline_size > 1 else set()
    wanted |= {*EXPERTS} if case.model.moe else set()
    assert wanted - set(written) == set()
    # what the megatron-core facts price: fused rotary embedding, gradients under the backward pass
    assert (written["apply_rope_fusion"], written["overlap_grad_reduce"]) == ("true", "true")


def test_what_the_models_own_configuration_does_not_switch_on_is_written() -> None:
    """Defaults: no prediction layer and no balancing loss (megatron_args.py:687, 699; the adapter's 0)."""
    case = _for("ms-swift", DEEPSEEK_V3, DEEPSEEK_EXPERTS, 4096)
    args = export(case.plan, case.problem, "ms-swift").files["plan_args.sh"]
    assert "    --mtp_num_layers 1\n" in args
    assert "    --moe_aux_loss_coeff 0.0001\n" in args
    case = _for("llama-factory", DEEPSEEK_V3, DEEPSEEK_EXPERTS, 4096)
    adapter = yaml.safe_load(export(case.plan, case.problem, "llama-factory").files["llama_factory.yaml"])
    assert (adapter["mtp_num_layers"], adapter["moe_aux_loss_coeff"]) == (1, 0.0001)
    # The adapter's own arguments count before additional_configs, also where they are but its defaults.
    assert (adapter["moe_token_dispatcher_type"], adapter["moe_router_dtype"]) == ("alltoall", "fp32")
    assert {*adapter["additional_configs"]} == {"tp_comm_overlap", "moe_router_load_balancing_type"}
    assert adapter["do_train"]  # or no checkpoint is gone on from


def test_megatron_bridges_performance_scripts_are_no_ms_swift() -> None:
    run = "torchrun --nproc_per_node 8 scripts/performance/run_script.py --model_recipe_name llama3_8b "
    run += "--tensor_model_parallel_size 4 --global_batch_size 512 --micro_batch_size 1 --seq_length 8192\n"
    overrides = Overrides(model=find_model("llama-3-8b"), num_gpus=8)
    for text in (run, f"worker='{run}'\n"):  # which one writes into a file and starts from there
        with pytest.raises(InvalidProblemError, match="starts Megatron-Bridge's"):
            read_launch_files(Source(name="a.sh", text=text), overrides)
