"""Expert parameters: their marks, as the layer sets them and the optimizers read them."""

from ..expert_parameters import holders_of, is_expert, mark_expert

__all__ = ["holders_of", "is_expert", "mark_expert"]
