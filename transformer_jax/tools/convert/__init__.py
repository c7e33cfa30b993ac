"""Checkpoints of Hugging Face: read and written without torch or transformers, a family a file."""

from transformer_jax.tools.convert import bert, detr, gpt2, llama, marian, t5, vit
from transformer_jax.tools.convert.family import Family

# The families by their `model_type` in config.json.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (gpt2.GPT2, bert.BERT, t5.T5, marian.MARIAN, llama.LLAMA, vit.VIT, detr.DETR)
}
