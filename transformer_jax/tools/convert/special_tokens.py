"""The special ids and the tokenizer of a checkpoint of theirs."""

import json
from pathlib import Path
from typing import Any

from transformer_jax.data.prepare.tokenizer import SpecialIds, Tokenizer, load_tokenizer
from transformer_jax.runs.workdir import TOKENIZER

_FILES = "config.json", "generation_config.json", "tokenizer_config.json"
# What a tokenizer_config.json may leave unsaid: BERT's class of tokenizers has these by default.
_BY_DEFAULT = {
    "bert": {
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "cls_token": "[CLS]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    }
}
# How a model reads a text $A: its encoder, or else its decoder.
_READ = {
    "encoder_decoder": ("$A", "eos"),
    "encoder_only": ("bos", "$A", "eos"),
    "decoder_only": ("bos", "$A"),
}


def tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder with the ids that its files name; None: it has no tokenizer.json.

    Raises:
        ValueError: a file is broken, or no id ends texts, or none begins decoding.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    library = load_tokenizer(folder / TOKENIZER)
    config, generation, names = (_read(folder / name) for name in _FILES)
    names = _BY_DEFAULT.get(config.get("model_type", ""), {}) | names

    def number(key: str, *tokens: str) -> int | None:
        """What the files say, in their order, or the id of a token that they name."""
        for values in (config, generation):
            value = values.get(key)
            if isinstance(value, list):
                value = value[0] if value else None
            if value is not None:
                return value
        for token in tokens:
            name = names.get(token)
            text = name.get("content") if isinstance(name, dict) else name
            if text is not None and (value := library.token_id(text)) is not None:
                return value
        return None

    def checked(what: str, value: int | None) -> int | None:
        known = isinstance(value, int) and 0 <= value < library.vocab_size
        if value is not None and not known:
            raise ValueError(
                f"{folder}: {what}={value!r} is no id of its {TOKENIZER}, which has "
                f"{library.vocab_size}"
            )
        return value

    pad = number("pad_token_id", "pad_token")
    pad = None if pad == -1 else checked("pad_token_id", pad)  # -1: old Llamas have none
    eos = number("eos_token_id", "eos_token", "sep_token")
    if config.get("is_encoder_decoder"):
        bos = number("decoder_start_token_id")
        bos = pad if bos is None else bos
    else:
        bos = number("bos_token_id", "bos_token", "cls_token")
    for what, value in (("eos_token_id", eos), ("bos_token_id", bos)):
        if value is None:
            raise ValueError(f"{folder}: none of {', '.join(_FILES)} names {what}")
        checked(what, value)
    assert eos is not None and bos is not None
    # Those that end what is generated may be more than those that end what is read.
    lists = (values.get("eos_token_id") for values in (config, generation))
    ends = [i for ids in lists for i in (ids if isinstance(ids, list) else [ids]) if i is not None]
    for value in ends:
        checked("eos_token_id", value)
    never = []
    for values in (config, generation):
        for words in values.get("bad_words_ids") or ():
            one = words[0] if isinstance(words, list) and len(words) == 1 else None
            if (value := checked("bad_words_ids", one)) is None:
                raise ValueError(
                    f"{folder}: of bad_words_ids, {words!r} has no counterpart here, only [an id]"
                )
            never.append(value)
    unk = number("unk_token_id", "unk_token")
    special = SpecialIds(
        pad=pad,
        eos=eos,
        bos=bos,
        unk=None if unk == eos else unk,  # GPT-2's, whose bytes leave nothing unknown
        mask=number("mask_token_id", "mask_token"),
        other_eos=tuple(dict.fromkeys(i for i in ends if i != eos)),
        never=tuple(dict.fromkeys(never)),
    )
    return load_tokenizer(folder / TOKENIZER, special)


def save(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], architecture: str) -> None:
    """Writes the tokenizer, and the files that describe it to them.

    config: their config.json. architecture: of the model, which decides how it reads a text.
    """
    special = tokenizer.special
    tokenizer.framed(*_READ[architecture]).save(folder / TOKENIZER)
    _write(folder / "tokenizer_config.json", _described(tokenizer))
    if special.never:
        _write(folder / "generation_config.json", _generation(special, config))


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer_config.json of theirs."""
    special = tokenizer.special
    named = {
        "pad_token": special.pad,
        "eos_token": special.eos,
        "bos_token": special.bos,
        "unk_token": special.unk,
        "mask_token": special.mask,
    }
    found: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Releases before 5 would give types of tokens too, which a GPT-2 adds to what it reads.
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return found | {key: tokenizer.token(i) for key, i in named.items() if i is not None}


def _generation(special: SpecialIds, config: dict[str, Any]) -> dict[str, Any]:
    """A generation_config.json of theirs, for what their config.json has no place for."""
    ids = "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"
    found: dict[str, Any] = {key: config[key] for key in ids if key in config}
    return found | {"bad_words_ids": [[i] for i in special.never]}


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1))


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
