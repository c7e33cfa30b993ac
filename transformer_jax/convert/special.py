"""The special ids and the tokenizer of a checkpoint of theirs."""

import json
from pathlib import Path
from typing import Any

from transformer_jax.data.tokenizer import SpecialIds, Tokenizer, load_tokenizer
from transformer_jax.workdir import TOKENIZER

_FILES = "config.json", "generation_config.json", "tokenizer_config.json"


def tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder with the ids that its files name; None: it has no tokenizer.json.

    Raises:
        ValueError: a file is broken, or no id ends texts, or none begins decoding.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    library = load_tokenizer(folder / TOKENIZER)
    config, generation, names = (_read(folder / name) for name in _FILES)

    def number(key: str, *tokens: str) -> int | None:
        """What the files say, in their order, or the id of a token that they name."""
        for values in (config, generation):
            if (value := values.get(key)) is not None:
                return value[0] if isinstance(value, list) else value
        for token in tokens:
            name = names.get(token)
            text = name.get("content") if isinstance(name, dict) else name
            if text is not None and (value := library.token_id(text)) is not None:
                return value
        return None

    pad = number("pad_token_id", "pad_token")
    eos = number("eos_token_id", "eos_token", "sep_token")
    if config.get("is_encoder_decoder"):
        bos = number("decoder_start_token_id")
        bos = pad if bos is None else bos
    else:
        bos = number("bos_token_id", "bos_token", "cls_token")
    for what, value in (("eos_token_id", eos), ("bos_token_id", bos)):
        if value is None:
            raise ValueError(f"{folder}: none of {', '.join(_FILES)} names {what}")
    assert eos is not None and bos is not None
    unk = number("unk_token_id", "unk_token")
    special = SpecialIds(
        pad=pad,
        eos=eos,
        bos=bos,
        unk=None if unk == eos else unk,  # GPT-2's, whose bytes leave nothing unknown
        mask=number("mask_token_id", "mask_token"),
    )
    return load_tokenizer(folder / TOKENIZER, special)


def described(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer_config.json of theirs."""
    special = tokenizer.special
    named = {
        "pad_token": special.pad,
        "eos_token": special.eos,
        "bos_token": special.bos,
        "unk_token": special.unk,
        "mask_token": special.mask,
    }
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return found | {key: tokenizer.token(i) for key, i in named.items() if i is not None}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object")
    return found
