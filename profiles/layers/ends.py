"""Operators at the ends of a model: behind the embedding, before and in the output head, in predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.profiles.layers.operators import Matrix, Operator

if TYPE_CHECKING:
    from meshwright.profiles.model import ModelSpec


def head_of(model: ModelSpec) -> tuple[Operator, ...]:
    """Return the projection to the vocabulary, and the products before it, if a model has any."""
    h = model.hidden_size
    logits = Matrix(name="lm_head", inputs=model.embedding_width, outputs=model.head_outputs)
    found = [
        Operator(name="head", title="head (logits)", block="head", matrices=(logits,), over="vocabulary")
    ]
    if width := model.projection_parameters // h:
        found.append(_whole("project_out", "projection before the head", h, width))
    if model.head_transform:
        found.append(_whole("head_transform", "transform before the head", h, h))
    if count := model.hyper_streams:
        weighing = Matrix(name="hc_fn", inputs=count * h, outputs=count, split="nothing", is_linear=False)
        found.append(
            Operator(
                name="hc_head", title="sum of streams", block="head", matrices=(weighing,), is_priced=False,
                further_products=count * h,
            )
        )  # fmt: skip
    return tuple(found)


def first_of(model: ModelSpec) -> tuple[Operator, ...]:
    """Return the products between the embedding and the first layer."""
    h, found = model.hidden_size, []
    if width := model.projection_parameters // h:
        found.append(_whole("project_in", "projection behind the embedding", width, h))
    if width := model.num_layers * model.layer_embedding_size:
        found.append(_whole("layer_embeddings", "projection of the layers' embeddings", h, width))
    return tuple(found)


def prediction_of(model: ModelSpec) -> Operator:
    """Return what joins a token's embedding and its hidden state before a prediction layer."""
    h = model.hidden_size
    both = Matrix(name="eh_proj", inputs=2 * h, outputs=h)
    return Operator(name="eh_proj", title="projection of a prediction", block="head", matrices=(both,))


def _whole(name: str, title: str, inputs: int, outputs: int) -> Operator:
    matrix = Matrix(name=name, inputs=inputs, outputs=outputs, split="nothing")
    return Operator(name=name, title=title, block="head", matrices=(matrix,))
