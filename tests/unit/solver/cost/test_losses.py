"""Bytes and time of a loss by its kernel, with the arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.frameworks import OPTION_WORDS
from meshwright.profiles.samples import Reference
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.losses import gathered_bytes, loss_bytes, parts_of_logits
from meshwright.solver.cost.price import head_seconds
from tests.problems.pricing import a_layout, a_problem, a_profile

# 2 sequences of 1024 tokens, 51 200 words, h = 1024
TOKENS, WORDS, HIDDEN = 2048, 51_200, 1024
HEAD_WEIGHTS = WORDS * HIDDEN


def held_bytes(kernel: str, micro_batches: int = 1, framework: str = "accelerate") -> float:
    problem = a_problem(framework_options={"loss_kernel": kernel})
    columns = Columns.of([a_layout(num_microbatches=micro_batches)])
    _, backward = loss_bytes(context_of(problem, columns, a_profile(problem, framework)))
    return float(backward[0])


@pytest.mark.parametrize(
    ("kernel", "micro_batches", "expected"),
    [
        # 12 bytes a logit, and the head's input in 4
        ("whole", 8, TOKENS * WORDS * 12 + 4 * TOKENS * HIDDEN),
        # a tile of 2048 x 32768 in 2 bytes, gradients of input and head in fp32
        ("chunked", 8, TOKENS * 32_768 * 2 + 8 * TOKENS * HIDDEN + 4 * HEAD_WEIGHTS),
        # the first gradient of the head is the one that is kept
        ("chunked", 1, TOKENS * 32_768 * 2 + 8 * TOKENS * HIDDEN),
        # 51200 / 1024 = 50 parts of 41 rows, rounded up to 64
        ("liger", 1, 64 * WORDS * 2 + 6 * TOKENS * HIDDEN),
        ("cut", 1, 4 * TOKENS * HIDDEN),
    ],
)
def test_bytes_of_a_loss(kernel: str, micro_batches: int, expected: float) -> None:
    assert held_bytes(kernel, micro_batches) == pytest.approx(expected)


@pytest.mark.parametrize("kernel", ["whole", "chunked", "liger"])
def test_a_head_of_labels_has_no_logits(kernel: str) -> None:
    problem = a_problem(framework_options={"loss_kernel": kernel})
    model = replace(problem.model, num_labels=1, tied_embeddings=False)
    problem = replace(problem, model=model)
    context = context_of(problem, Columns.of([a_layout()]), a_profile(problem, "accelerate"))
    # 12 bytes of each token's score, and the head's input in 4
    assert float(loss_bytes(context)[1][0]) == 12 * TOKENS + 4 * TOKENS * HIDDEN


def test_a_loss_in_chunks_multiplies_four_times() -> None:
    def context(kernel: str) -> Context:
        problem = a_problem(framework_options={"loss_kernel": kernel})
        return context_of(problem, Columns.of([a_layout()]), a_profile(problem, "accelerate"))

    once, again = context("cut"), context("chunked")
    before, after = head_seconds(once), head_seconds(again)
    product_and_loss_s = before.forward
    assert after.forward == pytest.approx(product_and_loss_s)
    # half of the loss is in either pass, half as many bytes as of logits that are whole
    loss_s = 0.5 * TOKENS * WORDS * 0.5 * once.constants.loss_bytes / once.hbm_bytes_per_s
    assert after.backward - before.backward == pytest.approx(product_and_loss_s - loss_s)


def test_ligers_parts_each_cast_the_head_and_add_to_its_gradient() -> None:
    problem = a_problem(framework_options={"loss_kernel": "liger"})
    ctx = context_of(problem, Columns.of([a_layout()]), a_profile(problem, "accelerate"))
    split = parts_of_logits(ctx)
    assert split is not None
    rows, parts = split
    assert float((rows * parts)[0]) >= TOKENS > float((rows * (parts - 1))[0])
    # fp32 weights: cast (4 + 2), gradient read and written (8) for each further part; once zeros and a
    # scale
    each = 14.0 * (parts[0] - 1.0) + 12.0
    assert float(np.asarray(gathered_bytes(ctx))[0]) == each * ctx.padded_vocabulary * HIDDEN


@pytest.mark.parametrize("kernel", OPTION_WORDS["loss_kernel"])
def test_every_kernel_that_can_be_stated_has_a_price(kernel: str) -> None:
    bound = "compared"  # which holds tensors of two models
    assert 0.0 < held_bytes(kernel, framework="trl") <= held_bytes(bound, framework="trl")
    if kernel != bound:
        assert held_bytes(kernel, framework="trl") <= held_bytes("whole", framework="trl")


@pytest.mark.parametrize(
    ("kernel", "framework", "forward", "backward"),
    [
        # logits in 2 bytes; in fp32 three log-softmaxes, the cast, its shift, q log p
        # and the difference (7); the reference's logits, their shift, their softmax, q log q (4) in 2 bytes
        ("compared", "deepspeed", 2 + 7 * 4 + 4 * 2, 4 * 4 + 2),
        # accelerate casts the outputs of both models to fp32, so that the cast is the logits themselves
        ("compared", "accelerate", 7 * 4 + 4 * 4, 4 * 4 + 4),
        # logits, their shift and the gathered rows in 2 bytes; the rows' cast and log-softmax
        ("masked", "deepspeed", 3 * 2 + 2 * 4, 3 * 4),
        ("masked", "axolotl", 2 * 4 + 2 * 4, 3 * 4),
    ],
)
def test_a_trainers_own_loss_of_whole_logits(
    kernel: str, framework: str, forward: int, backward: int
) -> None:
    problem = a_problem(framework_options={"loss_kernel": kernel}, reference="frozen")
    ctx = context_of(problem, Columns.of([a_layout()]), a_profile(problem, framework))
    inputs = 4 * TOKENS * HIDDEN  # of the head
    held = [float(each[0]) for each in loss_bytes(ctx)]
    assert held == [TOKENS * WORDS * forward + inputs, TOKENS * WORDS * backward + inputs]


def test_divergence_moves_more_in_the_trained_models_pass_alone() -> None:
    def context(kernel: str, reference: Reference) -> Context:
        problem = a_problem(framework_options={"loss_kernel": kernel}, reference=reference)
        return context_of(problem, Columns.of([a_layout()]), a_profile(problem, "accelerate"))

    plain, own = context("whole", "none"), context("compared", "frozen")
    before, after = head_seconds(plain), head_seconds(own)
    each_s = TOKENS * WORDS / plain.single_bytes_per_s
    # model's own loss 14, shift 8, log-softmax 8, q log q 6, q log p 10, difference 10, sum 4
    assert after.forward - before.forward == pytest.approx(60 * each_s)
    # negation 4, product 10, log-softmax 12, sum of gradients 12, shift 12
    assert after.backward - before.backward == pytest.approx(50 * each_s)
    assert head_seconds(context("compared", "none")).forward == pytest.approx(before.forward)
