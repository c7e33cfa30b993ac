"""Checkpoints of Hugging Face: read and written without torch or transformers, a family a file."""

from transformer_jax.tools.convert import (
    bart,
    bert,
    detr,
    gemma,
    gpt2,
    llama,
    modernbert,
    neox,
    opt,
    t5,
    vit,
)
from transformer_jax.tools.convert.family import Family

# The families by their `model_type` in config.json.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(gpt2.GPT2, opt.OPT, gpt2.GPT_NEO, neox.GPT_NEOX, neox.PHI),
        *(llama.LLAMA, llama.MISTRAL, llama.QWEN2, llama.QWEN3, llama.SMOLLM3, llama.PHI3),
        *(gemma.GEMMA, gemma.GEMMA2, gemma.GEMMA3, llama.OLMO, llama.OLMO2, llama.OLMO3),
        *(bert.BERT, bert.ROBERTA, bert.XLM_ROBERTA, bert.CAMEMBERT),
        *(bert.DISTILBERT, bert.ELECTRA, modernbert.MODERNBERT),
        *(t5.T5, t5.MT5, t5.UMT5, bart.MARIAN, bart.BART, bart.MBART, bart.M2M_100, bart.PEGASUS),
        *(vit.VIT, detr.DETR),
    )
} | {"gemma3": gemma.GEMMA3}
