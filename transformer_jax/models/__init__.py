"""The families of models."""

from transformer_jax.models import memory
from transformer_jax.models.family import Family
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.stacks import draw_parameters, recurrent_stacks
from transformer_jax.models.shapes import model_of
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.initialisation import initialise
from transformer_jax.models.transformer.stacks import transformer_stacks

FAMILIES = {
    "transformer": Family(
        config=TransformerConfig,
        model=model_of(transformer_stacks),
        init=initialise,
        memory=memory.shapes,
        memory_key="memory_length",
        inspected=True,
    ),
    "recurrent": Family(
        config=RecurrentConfig,
        model=model_of(recurrent_stacks),
        init=draw_parameters,
        memory=memory.state_shapes,
        memory_key="stateful",
    ),
}
