"""Checkpoints of Hugging Face: read and written without torch or transformers, a family a file."""

from transformer_jax.tools.convert import bart, bert, detr, gpt2, llama, marian, opt, t5, vit
from transformer_jax.tools.convert.family import Family

# The families by their `model_type` in config.json.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(gpt2.GPT2, opt.OPT),
        *(llama.LLAMA, llama.MISTRAL, llama.QWEN3, llama.GEMMA),
        *(bert.BERT, bert.ROBERTA, bert.DISTILBERT),
        *(t5.T5, t5.MT5, marian.MARIAN, bart.BART, bart.MBART, bart.M2M_100, bart.PEGASUS),
        *(vit.VIT, detr.DETR),
    )
}
