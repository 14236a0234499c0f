"""What one sample of a batch is: a sequence, or the answers that training on preferences compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# The model whose log-probabilities a loss on preferences reads: none, a frozen copy of the model, or the
# trained model with its adapters turned off.
Reference = Literal["none", "frozen", "adapters-off"]
SampleKind = Literal["sequence", "pair", "triple", "unpaired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a batch."""

    sequences: int  # that are trained on, each as long as seq_length
    scored: float  # forward passes without gradients for each trained one, where there is a reference
    words: str


SAMPLES: Mapping[SampleKind, Sample] = {
    "sequence": Sample(sequences=1, scored=1.0, words="sequences"),
    # A chosen and a rejected answer, one after the other in one batch, and again through the reference
    # (TRL 1.16, trainer/dpo_trainer.py _compute_loss; LLaMA-Factory 0.9.5, train/dpo/trainer.py).
    "pair": Sample(sequences=2, scored=1.0, words="pairs"),
    # The same two and a third answer that is learnt, in one batch (TRL 1.16,
    # experimental/tpo/tpo_trainer.py _compute_loss, ``n_branches``).
    "triple": Sample(sequences=3, scored=1.0, words="triples"),
    # An answer, whose divergence is estimated on another one's: the model scores that, the reference both
    # (TRL 1.16, trainer/kto_trainer.py; LLaMA-Factory 0.9.5, train/kto/trainer.py concatenated_forward).
    "unpaired": Sample(sequences=1, scored=3.0, words="answers"),
}
