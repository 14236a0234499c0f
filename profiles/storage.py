"""How frozen weights of few bits lie in memory, and what a product does to read them in 16 bits.

Linear layers alone are stored so, or experts in one tensor alone. Every format is one row of ``STORAGE``,
with its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BasePrecision = Literal[
    "bf16", "fp32", "int8", "nf4", "nf4-double", "gptq", "gptq-8bit", "awq", "aqlm", "nvfp4"
]  # fmt: skip
WHOLE_PRECISIONS = ("bf16", "fp32")  # of all weights; others are of linear layers alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One format of frozen weights.

    Attributes:
        bits: of one weight.
        group: weights of one scale; 0: those of one output.
        scale_bytes: of one scale.
        zero_bits: of one group's zero point.
        nested_group: scales of one fp32 scale of scales; 0: scales are not quantised.
        input_bytes: of the index that every input has of its group.
        table_bytes: of code points and offsets of one matrix.
        moved_bytes: moved for one weight to make it 16-bit before its product, forward and backward.
        kernels: that do so.
        keeps_whole: whether the 16-bit copy stays for the input's gradient.
        saves_input: whether the product's context holds its input, which no frozen weight needs.
        checkpoint: whether a published checkpoint alone has it: nothing quantises to it at loading.
        cut: whether FSDP can cut its elements over ranks, and gather them as they lie; scales stay whole.
        stacked_bytes: moved for one weight of experts in one tensor, forward and backward, where that is
            not as for a layer's: a parametrisation makes all of them 16-bit, which the product saves.
        of_experts: whether experts in one tensor alone are so, and linear layers are 16-bit.
    """

    bits: int
    group: int
    scale_bytes: int
    zero_bits: int = 0
    nested_group: int = 0
    input_bytes: int = 0
    table_bytes: int = 0
    moved_bytes: tuple[float, float]
    kernels: int = 2
    keeps_whole: bool = False
    saves_input: bool = False
    checkpoint: bool = False
    cut: bool = False
    stacked_bytes: tuple[float, float] | None = None
    of_experts: bool = False

    @property
    def cut_bytes(self) -> float:
        """Return the bytes of one weight that is cut over ranks, without what belongs to it."""
        return self.bits / 8.0

    def matrix_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes of a matrix of ``inputs`` to ``outputs`` with all that belongs to it."""
        weights = inputs * outputs
        groups = -(-weights // self.group) if self.group else outputs
        nested = 4 * -(-groups // self.nested_group) if self.nested_group else 0
        scales = groups * self.scale_bytes + -(-groups * self.zero_bits // 8) + nested
        return -(-weights * self.bits // 8) + scales + inputs * self.input_bytes + self.table_bytes


# Of GPTQ in training, operators of torch one by one, none of them fused (GPTQModel 7.3,
# ``nn_modules/qlinear/__init__.py:953-1003``): shift to int32, cast (a code of 4 bits to int8, one of 8 to
# int16, ``torch.py:171``), mask, scales and zero points of every weight, difference, product. The 16-bit
# copy is what torch's ``matmul`` saves (``torch.py:337``).
_GPTQ_4 = (0.5 + 4) + (4 + 1) + (1 + 1) + (2 + 2) + (1 + 1) + (1 + 1 + 1) + (2 + 1 + 2)
_GPTQ_8 = (1.0 + 4) + (4 + 2) + (2 + 2) + (2 + 2) + (2 + 2) + (2 + 2 + 2) + (2 + 2 + 2)

STORAGE: Mapping[BasePrecision, Storage] = {
    # bitsandbytes 0.50 ``functional.int8_vectorwise_quant``: an fp32 scale for each output.
    # ``MatMul8bitLt`` holds its input, and scales weights backward; forward, casts of inputs and outputs
    # (15 bytes, .08 ms for 4096 tokens of h = 4096 on an H100) take what the product saves.
    # Axolotl 0.19 cuts ``Int8Params`` (monkeypatch/fsdp2_qlora.py:54). Its experts in one tensor
    # (monkeypatch/moe_quant.py:23) are times their scales, and times a constant, in fp32 (bitsandbytes
    # ``backends/default/ops.py`` int8_vectorwise_dequant: 1 + 4 and 4 + 4), then cast (4 + 2).
    "int8": Storage(
        bits=8, group=0, scale_bytes=4, moved_bytes=(0.0, 7.0), saves_input=True, cut=True,
        stacked_bytes=(19.0, 0.0),
    ),
    # ``functional.quantize_4bit`` and ``QuantState``: an fp32 scale for each 64, 16 code points in fp32.
    # ``MatMul4Bit``: half a byte read, two written, both times. They are cut in elements of bf16
    # (``bnb_4bit_quant_storage``).
    "nf4": Storage(bits=4, group=64, scale_bytes=4, table_bytes=16 * 4, moved_bytes=(2.5, 2.5), cut=True),
    # Scales in one byte, an fp32 scale for each 256 of them, 256 code points and an offset.
    "nf4-double": Storage(
        bits=4, group=64, scale_bytes=1, nested_group=256, table_bytes=16 * 4 + 256 * 4 + 4,
        moved_bytes=(2.5, 2.5), cut=True,
    ),
    # Frantar et al. 2022 (arXiv:2210.17323). GPTQModel 7.3 ``nn_modules/qlinear/__init__.py``, buffers
    # ``scales``, ``qzeros`` and ``g_idx`` (int32).
    "gptq": Storage(
        bits=4, group=128, scale_bytes=2, zero_bits=4, input_bytes=4, moved_bytes=(_GPTQ_4, 0.0),
        kernels=9, keeps_whole=True, checkpoint=True,
    ),
    "gptq-8bit": Storage(
        bits=8, group=128, scale_bytes=2, zero_bits=8, input_bytes=4, moved_bytes=(_GPTQ_8, 0.0),
        kernels=9, keeps_whole=True, checkpoint=True,
    ),
    # Lin et al. 2023 (arXiv:2306.00978). AutoAWQ 0.2.9 ``modules/linear/gemm.py``, ``WQLinearMMFunction``:
    # one kernel writes all weights (from 1024 tokens on), again backward; its context holds the input.
    "awq": Storage(
        bits=4, group=128, scale_bytes=2, zero_bits=4, moved_bytes=(2.5, 2.5), kernels=1,
        saves_input=True, checkpoint=True,
    ),
    # Egiazarov et al. 2024 (arXiv:2401.06118), one codebook of 16 bits for 8 inputs. aqlm 1.1
    # ``inference.py:31-52`` and ``:92`` (its context holds the input), ``kernel_selector.py``,
    # ``code1x16_matmat_dequant``: a quarter of a byte read, two written, both times.
    "aqlm": Storage(
        bits=2, group=0, scale_bytes=2, table_bytes=2**16 * 8 * 2, moved_bytes=(2.25, 2.25), kernels=1,
        saves_input=True, checkpoint=True,
    ),
    # ModelOpt's NVFP4 under Axolotl 0.19: torchao's ``NVFP4Tensor``, a scale of a byte for each 16 weights
    # and one in fp32 for each expert. Linear layers that a checkpoint has so are loaded in bf16
    # (integrations/kernels/libs/scattermoe_lora/nvfp4_weight_converter.py:318). SonicMoE makes all experts
    # 16-bit before the grouped products, which save them (libs/sonicmoe/nvfp4_lora.py
    # ``grouped_moe_reference_forward``; triton_nvfp4.py ``_dequant_kernel``: 9 bits read, 16 written).
    # ScatterMoE reads them as they lie (libs/scattermoe_lora/grouped_train.py:65: Marlin), and makes 16
    # experts wider for the gradient of their input (:83 ``CHUNK_E``, ``_base_dx``).
    "nvfp4": Storage(
        bits=4, group=16, scale_bytes=1, table_bytes=4, moved_bytes=(2.5 + 1.0 / 16.0, 0.0), kernels=1,
        keeps_whole=True, checkpoint=True, of_experts=True,
    ),
}  # fmt: skip
STREAMED_EXPERTS = 16


def storage_of(precision: BasePrecision) -> Storage | None:
    """Return how linear layers of a precision are stored; None: whole."""
    return STORAGE.get(precision)


def is_checkpoints(precision: BasePrecision) -> bool:
    """Return whether only a published checkpoint has weights of a precision."""
    storage = STORAGE.get(precision)
    return storage is not None and storage.checkpoint


def is_of_experts(precision: BasePrecision) -> bool:
    """Return whether experts in one tensor alone are of few bits, and linear layers are not."""
    storage = STORAGE.get(precision)
    return storage is not None and storage.of_experts


def is_cut(precision: BasePrecision) -> bool:
    """Return whether ranks can share frozen weights of few bits: bitsandbytes'."""
    storage = STORAGE.get(precision)
    return storage is not None and storage.cut


def is_packed(precision: BasePrecision) -> bool:
    """Return whether frozen weights are bitsandbytes' of 4 bits, which are cut in elements of bf16."""
    storage = STORAGE.get(precision)
    return storage is not None and storage.cut and storage.bits == 4  # noqa: PLR2004 - bits
