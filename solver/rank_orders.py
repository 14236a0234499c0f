"""Orders in which ranks are numbered along the axes of the mesh, fastest first.

Tensor-parallel ranks come first in every one of them: they talk in every layer. Experts are split over the
innermost ranks of a stage, whichever axes those belong to.
"""

from __future__ import annotations

from solver.plan import Configuration

# Every order of the other three; the first is the launchers' own.
RANK_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp")


def plain_order(config: Configuration) -> str:
    """The first order that numbers every rank as the configuration's own does."""
    sizes = {
        "cp": config.context_parallel_size,
        "dp": config.data_parallel_size,
        "pp": config.pipeline_parallel_size,
    }

    def real(order: str) -> list[str]:
        """Its axes that have more than one rank."""
        return [axis for axis in order.split("-") if sizes.get(axis, 1) > 1]

    own = real(config.rank_order)
    return next((order for order in RANK_ORDERS if real(order) == own), config.rank_order)
