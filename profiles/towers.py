"""Vision towers: the encoder and the projector that turn images into tokens of the language model.

A tower is a stack of transformer layers over the patches of an image, each patch attending to all others of
its image, its tile or its window. A projector merges neighbouring patches into one token of the language
model (Liu et al. 2023, arXiv:2304.08485; Qwen2-VL, arXiv:2409.12191, section 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from meshwright.profiles.model_parts import Checked, Exclusion, Limits
from meshwright.profiles.sequences import SequenceLengths

TowerNorm = Literal["rmsnorm", "layernorm"]
# Parts of a model that training may leave frozen.
FrozenPart = Literal["vision", "projector", "language"]
TOWER_PARTS: tuple[FrozenPart, ...] = ("vision", "projector")
FROZEN_PARTS: tuple[FrozenPart, ...] = (*TOWER_PARTS, "language")

_QUANTILES = 4096  # images that stand for a distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLoad:
    """The images of one sequence as a tower reads them; all zero without images."""

    tokens: float = 0.0  # of the language model
    patches: float = 0.0
    rows: float = 0.0  # patches and further tokens that the tower's layers read
    attended: float = 1.0  # rows that a row attends to: the mean over rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec(Checked):
    """A vision tower and its projector; every field is a fact that changes parameters, FLOPs or memory."""

    POINTER = "/model/tower"
    LIMITS: ClassVar[Limits] = {
        "num_layers": (0, 1000),
        "hidden_size": (1, 2**20),
        "ffn_hidden_size": (1, 2**24),
        "num_attention_heads": (1, 2**16),
        "patch_size": (1, 4096),
        "patch_inputs": (1, 2**27),
        "merged_patches": (1, 4096),
        "projector_matrices": (1, 2**40),
        "projector_products": (0, 2**40),
        "attention_size": (0, 2**20),
        "num_kv_heads": (0, 2**16),
        "projector_vectors": (0, 2**31 - 1),
        "position_rows": (0, 2**24),
        "layer_vectors": (0, 2**24),
        "further_parameters": (0, 2**40),
        "further_tokens": (0, 4096),
        "inner_outputs": (0, 1000),
        "tile_patches": (0, 2**24),
        "window_patches": (0, 2**24),
    }

    num_layers: int  # 0: patches are projected without a tower (Gemma 4 12B)
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    patch_size: int  # pixels of a patch's side
    patch_inputs: int  # numbers of a patch that the first product reads: channels, frames and pixels
    merged_patches: int  # patches in one token of the language model
    projector_matrices: int  # weights that one token of the language model is multiplied by
    projector_products: int = 0  # multiply-adds of a token, where weights are used for several patches
    projector_vectors: int = 0  # norms and biases of the projector
    attention_size: int = 0  # of all heads together; 0: hidden_size
    num_kv_heads: int = 0  # 0: as many as heads
    model_type: str = ""  # of Hugging Face, with this tower in it; empty: none that is known
    # Inner layers with outputs that are projected, too, each added behind a layer of the language model
    inner_outputs: int = 0
    position_rows: int = 0  # of a trained table of positions
    layer_vectors: int = 0  # weights of a layer next to matrices, norms and biases: scales of its sums
    further_parameters: int = 0  # at both ends of the tower: norms, biases, trained tokens, an unused head
    further_tokens: int = 0  # trained tokens next to the patches of an image or tile
    tile_patches: int = 0  # patches of each tile, where images are cut to tiles of one size; 0: any size
    window_patches: int = 0  # patches that attend to each other in most layers; 0: all of an image
    global_layers: tuple[int, ...] = ()  # counted from 0: layers without windows
    gated_mlp: bool = False
    normalization: TowerNorm = "layernorm"
    query_key_norm: bool = False  # over all heads
    head_norms: bool = False  # of each head's queries, keys and values, the latter without weights
    norms_behind: bool = False  # of what attention and the MLP add, next to those of what they read
    rotary: bool = False  # queries and keys are rotated, which one product yields with the values
    qkv_bias: bool = True
    attention_output_bias: bool = True
    mlp_bias: bool = True

    @property
    def num_projectors(self) -> int:
        """Count the projectors: one behind the last layer, and one for each inner output."""
        return 1 + self.inner_outputs

    def exclusions(self) -> Iterable[Exclusion]:
        """Yield heads that do not divide the hidden size, and layers that the tower does not have."""
        whole, heads, layers = self.attention_width, self.num_attention_heads, self.num_layers
        name = "attention_size" if self.attention_size else "hidden_size"
        beyond = any(layer >= layers for layer in self.global_layers)
        return (
            Exclusion(
                "num_attention_heads", whole % heads, f"{heads} does not divide {name} = {whole}",
                f"a divisor of {name}",
            ),
            Exclusion(
                "global_layers", beyond, f"names a layer beyond num_layers = {layers}", f"0 to {layers - 1}"
            ),
        )  # fmt: skip

    @property
    def attention_width(self) -> int:
        """Return the elements of a patch's queries, of its keys and of its values."""
        return self.attention_size or self.hidden_size

    @property
    def head_dim(self) -> int:
        """Return the size of a head."""
        return self.attention_width // self.num_attention_heads

    @property
    def tile_tokens(self) -> int:
        """Return the tokens of the language model that a tile becomes; 0 where images have any size."""
        return self.tile_patches // self.merged_patches

    @property
    def pixels_per_token(self) -> int:
        """Return the pixels of an image that one token of the language model stands for."""
        return self.patch_size**2 * self.merged_patches

    @lru_cache(maxsize=64)  # noqa: B019 - towers are few
    def load(self, images: float, tokens: SequenceLengths) -> ImageLoad:
        """Return what so many images are to the tower, with the tokens of each as ``tokens`` has them.

        Attention's work grows with the square of an image, so a row attends to ``E[n^2] / E[n]`` rows.
        """
        if not images:
            return ImageLoad()
        patches = tokens.at((np.arange(_QUANTILES) + 0.5) / _QUANTILES) * self.merged_patches
        rows = patches + self.further_tokens
        attended = float((rows**2).sum() / rows.sum())
        if self.tile_patches:
            attended = float(self.tile_patches + self.further_tokens)
            rows = patches * (attended / self.tile_patches)
        whole = images * float(patches.mean())
        return ImageLoad(
            tokens=whole / self.merged_patches,
            patches=whole,
            rows=images * float(rows.mean()),
            attended=attended,
        )

    def end_parameters(self) -> int:
        """Return the weights before and behind the tower's layers, the projector's not counted."""
        return self.hidden_size * (self.patch_inputs + self.position_rows) + self.further_parameters

    @property
    def projector_work(self) -> int:
        """Return the multiply-adds of the projector for one token of the language model."""
        return self.projector_products or self.projector_matrices

    def projector_parameters(self) -> int:
        """Return the weights between the tower and the language model."""
        return self.projector_matrices + self.projector_vectors
