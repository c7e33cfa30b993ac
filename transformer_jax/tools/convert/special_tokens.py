"""The special ids and the tokenizer of a checkpoint of theirs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.data.prepare.tokenizer import OWN_IDS, SpecialIds, Tokenizer, load_tokenizer
from transformer_jax.runs.workdir import TOKENIZER, TOKENIZER_CONFIG
from transformer_jax.tools.convert import sentencepiece
from transformer_jax.tools.convert.safetensors import read_if_there

_FILES = "config.json", "generation_config.json", TOKENIZER_CONFIG
# What a tokenizer_config.json may leave unsaid: BERT's class of tokenizers has these by default.
_OF_BERT = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("pad", "sep", "cls", "unk", "mask")}
_BY_DEFAULT = {
    **dict.fromkeys(("bert", "distilbert", "electra"), _OF_BERT),
    "gpt2": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
}
# What export takes over of a tokenizer_config.json; tokenizer.json has the rest.
_TAKEN_OVER = """model_max_length chat_template padding_side truncation_side unk_token
    clean_up_tokenization_spaces""".split()
_NO_END = 1e9  # what stands for no end there is more
_ORIGIN = "model_type"  # what of config.json is kept with it
# How a model reads a text $A: its encoder, or else its decoder.
_READ = {
    "encoder_decoder": ("$A", "eos"),
    "encoder_only": ("bos", "$A", "eos"),
    "decoder_only": ("bos", "$A"),
}


class _Frame(NamedTuple):
    """What stands around a text, by names of special ids and the two "languages".

    start: what the decoder reads first; "": as the files say. target: what each target begins with.
    """

    source: str = "$A eos"
    target: str = ""
    start: str = ""


# Those of encoder-decoders whose texts have more than eos and what the decoder reads first.
_FRAMES = {
    "bart": _Frame("bos $A eos", "bos"),
    "mbart": _Frame("$A eos source", start="target"),
    "mbart50": _Frame("source $A eos", "target"),
    "m2m_100": _Frame("source $A eos", "target"),
    "m2m_100, legacy": _Frame("$A eos source", "target"),  # NLLB's, as before huggingface#22313
}


def tokenizer(
    folder: Path, architecture: str, languages: Sequence[str | None] = (None, None)
) -> Tokenizer | None:
    """The tokenizer of a folder with the ids that its files name; None: it has none.

    Of a decoder that has no bos, eos is that, too. languages: the codes of source and target.

    Raises:
        ValueError: a file is broken, or no id ends texts, or none begins decoding.
    """
    if (library := _load(folder)) is None:
        return None
    config, generation, names = (read_if_there(folder / name) for name in _FILES)
    names = _BY_DEFAULT.get(config.get("model_type", ""), {}) | names
    if (chat := folder / "chat_template.jinja").is_file():
        names["chat_template"] = chat.read_text("utf-8")

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

    def checked(what: str, value: Any) -> int:
        if value is None:
            raise ValueError(f"{folder}: none of {', '.join(_FILES)} names {what}")
        if not isinstance(value, int) or not 0 <= value < library.vocab_size:
            raise ValueError(
                f"{folder}: {what}={value!r} is no id of its {TOKENIZER}, which has "
                f"{library.vocab_size}"
            )
        return value

    pad = number("pad_token_id", "pad_token")
    # -1: old Llamas have none.
    pad = None if pad in (None, -1) else checked("pad_token_id", pad)
    eos = checked("eos_token_id", number("eos_token_id", "eos_token", "sep_token"))
    named, frame = {"eos": eos}, _Frame()
    if config.get("is_encoder_decoder"):
        bos, kind = number("decoder_start_token_id"), config.get("model_type", "")
        if kind == "mbart" and (bos == eos or "50" in names.get("tokenizer_class", "")):
            kind = "mbart50"
        frame = _FRAMES.get(f"{kind}, legacy" if names.get("legacy_behaviour") else kind, frame)
        named |= _codes(folder, kind, frame, library, languages)
        if "bos" in frame.source:
            named["bos"] = checked("bos_token_id", number("bos_token_id", "bos_token"))
        bos = named.get(frame.start, pad if bos is None else bos)
    else:
        bos = number("bos_token_id", "bos_token", "cls_token")
        if bos is None and architecture == "decoder_only":
            bos = eos  # which stood between the texts that it was trained with
    bos = checked("bos_token_id", bos)
    # Those that end what is generated may be more than those that end what is read.
    lists = (values.get("eos_token_id") for values in (config, generation))
    eos_ids = [i for ids in lists for i in (ids if isinstance(ids, list) else [ids])]
    ends = [checked("eos_token_id", i) for i in eos_ids if i is not None]
    never = []
    for values in (config, generation):
        for words in values.get("bad_words_ids") or ():
            if not isinstance(words, list) or len(words) != 1:
                raise ValueError(
                    f"{folder}: of bad_words_ids, {words!r} has no counterpart here, only [an id]"
                )
            never.append(checked("bad_words_ids", words[0]))
    unk = number("unk_token_id", "unk_token")
    before, after = frame.source.split("$A eos")
    special = SpecialIds(
        pad=pad,
        eos=eos,
        bos=bos,
        unk=None if unk == eos else unk,  # GPT-2's, whose bytes leave nothing unknown
        mask=number("mask_token_id", "mask_token"),
        other_eos=tuple(dict.fromkeys(i for i in ends if i != eos)),
        never=tuple(dict.fromkeys(never)),
        in_text=not names.get("split_special_tokens"),
        source_before=tuple(named[name] for name in before.split()),
        source_after=tuple(named[name] for name in after.split()),
        target_first=tuple(named[name] for name in frame.target.split()),
    )
    if unk is None:
        names.pop("unk_token", None)
    model_tokenizer = _load(folder, special)
    assert model_tokenizer is not None  # as above
    described = {key: names[key] for key in _TAKEN_OVER if key in names}
    model_tokenizer.described = json.dumps({_ORIGIN: config.get("model_type"), **described})
    return model_tokenizer


def _load(folder: Path, special: SpecialIds | None = None) -> Tokenizer | None:
    """The tokenizer of a folder's tokenizer.json, or else of its files of SentencePiece."""
    if (folder / TOKENIZER).is_file():
        return load_tokenizer(folder / TOKENIZER, special)
    library = sentencepiece.read(folder)
    return library and Tokenizer(library, special or OWN_IDS)


def _codes(
    folder: Path, kind: str, frame: _Frame, library: Tokenizer, languages: Sequence[str | None]
) -> dict[str, int]:
    """The ids of the languages' codes, where a frame has them. Raises ValueError."""
    if "source" not in frame.source:
        if any(languages):
            raise ValueError(
                f"{folder}: texts of a {kind} have no codes of languages: leave them out"
            )
        return {}
    code_ids = {}
    for side, code in zip(("source", "target"), languages, strict=True):
        if code is None:
            raise ValueError(
                f"{folder}: texts of a {kind} have the code of their language: add "
                f"--{side}_language=CODE, a token of its {TOKENIZER}"
            )
        ids = [library.token_id(token) for token in (code, f"__{code}__")]
        code_ids[side] = next((i for i in ids if i is not None), None)
        if code_ids[side] is None:
            raise ValueError(
                f"{folder}: --{side}_language={code} is no token of its {TOKENIZER}: see its "
                "added_tokens"
            )
    return code_ids


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    """What was kept of the checkpoint that a tokenizer came with."""
    return json.loads(tokenizer.described or "{}")


def origin(tokenizer: Tokenizer) -> str | None:
    """The `model_type` of the checkpoint that a tokenizer came with."""
    return _described(tokenizer).get(_ORIGIN)


def longest(tokenizer: Tokenizer) -> int:
    """The tokens of a text at most, as the checkpoint of a tokenizer says; 0: it says nothing."""
    most = _described(tokenizer).get("model_max_length")
    return int(most) if isinstance(most, int | float) and most < _NO_END else 0


def unlike(folder: Path, special: SpecialIds, architecture: str) -> list[str]:
    """How a model here reads a text unlike the tokenizer in a folder of theirs, if it does."""
    if not (folder / TOKENIZER).is_file():  # files of SentencePiece say nothing of it
        return []
    library = load_tokenizer(folder / TOKENIZER)
    theirs = library.frame()
    ours = [getattr(special, name) for name in _READ[architecture] if name != "$A"]
    ours = [*special.source_before, *ours, *special.source_after]
    if ours == theirs:
        return []
    pairs = ([repr(library.token(i)) for i in ids] for ids in (theirs, ours))
    there, here = (" and ".join(names) or "nothing" for names in pairs)
    return [
        f"{folder / TOKENIZER} puts {there} around a text; here the model reads a text with "
        f"{here}, as in training. To compare, give transformers the same ids."
    ]


def named(special: SpecialIds, architecture: str) -> dict[str, Any]:
    """The special ids as their config.json has them: eos is a list where several ids end a text."""
    if architecture == "encoder_only":
        return {"pad_token_id": special.pad}
    ends = {"eos_token_id": [*special.ends] if special.other_eos else special.eos}
    if architecture == "decoder_only":
        return {"bos_token_id": special.bos, "pad_token_id": special.pad, **ends}
    start = {"decoder_start_token_id": special.bos, "pad_token_id": special.pad}
    start |= {"bos_token_id": _bos(special)} if special.framed else {}
    return {"is_encoder_decoder": True, **start, **ends}


def _bos(special: SpecialIds) -> int:
    """What stands in front of both sides, as in BART, or else what the decoder reads first."""
    both = special.source_before == special.target_first != ()
    return special.target_first[0] if both else special.bos


def save(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], architecture: str) -> None:
    """Writes the tokenizer, and the files that describe it to them.

    config: their config.json. architecture: of the model, which decides how it reads a text.
    """
    special = tokenizer.special
    tokenizer.framed(*_READ[architecture]).save(folder / TOKENIZER)
    encoder = architecture == "encoder_only"  # BERT's names
    named = {
        "pad_token": special.pad,
        "sep_token" if encoder else "eos_token": special.eos,
        "cls_token" if encoder else "bos_token": _bos(special),
        "unk_token": special.unk,
        "mask_token": special.mask,
    }
    described: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Releases before 5 would give types of tokens too, which a GPT-2 adds to what it reads.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": config.get("max_position_embeddings", config.get("n_positions")),
        "split_special_tokens": not special.in_text,
        **_described(tokenizer),
        **{key: tokenizer.token(i) for key, i in named.items() if i is not None},
    }
    described.pop(_ORIGIN, None)
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(described, indent=1))
    if special.never or special.target_first:  # which their config.json has no place for
        ids = "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"
        generation: dict[str, Any] = {key: config[key] for key in ids if key in config}
        if special.never:
            generation["bad_words_ids"] = [[i] for i in special.never]
        if special.target_first:
            generation["forced_bos_token_id"] = special.target_first[0]
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
