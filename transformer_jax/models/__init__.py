"""The families of models."""

from transformer_jax.models import memory
from transformer_jax.models import shapes as transformer
from transformer_jax.models.family import Family
from transformer_jax.models.recurrent import shapes as recurrent
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.needs import RecurrentNeeds
from transformer_jax.models.transformer import initialisation
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.needs import TransformerNeeds

FAMILIES = {
    "transformer": Family(
        config=TransformerConfig,
        shapes=transformer.MODELS,
        init=initialisation.initialise,
        needs=TransformerNeeds,
        memory=memory.shapes,
        inspected=True,
    ),
    "recurrent": Family(
        config=RecurrentConfig,
        shapes=recurrent.MODELS,
        init=recurrent.initialise,
        needs=RecurrentNeeds,
    ),
}
