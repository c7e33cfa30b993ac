"""The families of models."""

from transformer_jax.models.family import Family
from transformer_jax.models.transformer import memory
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.needs import TransformerNeeds
from transformer_jax.models.transformer.shapes import MODELS, initialise

FAMILIES = {
    "transformer": Family(
        config=TransformerConfig,
        shapes=MODELS,
        init=initialise,
        needs=TransformerNeeds,
        memory=memory.shapes,
    )
}
