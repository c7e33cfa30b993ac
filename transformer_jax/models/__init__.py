"""The families of models."""

from transformer_jax.models.family import Family
from transformer_jax.models.recurrent import shapes as recurrent
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.transformer import initialisation, memory
from transformer_jax.models.transformer import shapes as transformer
from transformer_jax.models.transformer.config import TransformerConfig

FAMILIES = {
    "transformer": Family(
        config=TransformerConfig,
        shapes=transformer.MODELS,
        init=initialisation.initialise,
        memory=memory.shapes,
        inspected=True,
    ),
    "recurrent": Family(
        config=RecurrentConfig,
        shapes=recurrent.MODELS,
        init=recurrent.initialise,
    ),
}
