"""What the browser tests ask, small enough to be answered in a second."""

from dataclasses import replace

from playwright.sync_api import Page, expect

from meshwright.solver.answer import Answer
from meshwright.solver.problem import Problem
from tests.served.reports import small_answer

MODEL, CLUSTER = "llama-3.1-8b", "dgx-h100"
CONFIG = """{
 "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
 "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192
}
"""
SCRIPT = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 \\
  --global-batch-size 64 --seq-length 4096 --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --group-query-attention \\
  --num-query-groups 8 --max-position-embeddings 4096 --bf16 --vocab-size 128256 \\
  --untie-embeddings-and-output-weights --use-distributed-optimizer
"""


def fill_in(page: Page, url: str, *, batch: str = "64", model: str = MODEL, nodes: str = "2") -> None:
    """The first page with a small question typed in."""
    page.goto(url)
    page.get_by_label("Model", exact=True).fill(model)
    page.get_by_label("GPU or node type", exact=True).fill(CLUSTER)
    page.get_by_label("GPUs", exact=True).fill(str(8 * int(nodes)))
    page.get_by_label("Batch", exact=True).fill(batch)
    page.get_by_label("Sequence length").fill("4096")


def search(page: Page) -> str:
    """Submit, and wait for the page of the job; its id."""
    page.get_by_role("button", name="Search", exact=True).click()
    page.wait_for_url("**/jobs/*")
    return str(page.url).rpartition("/")[2]


def await_answer(page: Page) -> None:
    """Wait until the ranking is there."""
    expect(page.get_by_role("heading", name="Ranking")).to_be_visible(timeout=60_000)


def ten_thousand_plans() -> tuple[Problem, Answer]:
    """A real answer whose best plan is said ten thousand times, each a little slower."""
    problem, answer = small_answer()
    best = answer.plans[0]
    many = tuple(
        replace(
            best,
            plan_id=f"{rank:012x}",
            rank=rank,
            prediction=replace(best.prediction, step_time_s=best.prediction.step_time_s * (1 + rank / 1e5)),
        )
        for rank in range(1, 10_001)
    )
    return problem, replace(answer, plans=many, pareto=None)
