"""SentencePiece's files as a tokenizer.json, for checkpoints without one (OPUS-MT, M2M-100).

Such a folder has its ids in vocab.json, and how texts become pieces in one .spm a side, of which
the source's counts, or in one file for all: a protocol buffer, of which three fields matter.
"""

import struct
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from transformer_jax.tools.convert.safetensors import read_json

_FILES = "source.spm", "sentencepiece.bpe.model", "spiece.model"
_VOCABULARY = "vocab.json"
_BLANK = "▁"
_BPE = 2  # of `TrainerSpec.model_type`; 1 is unigram
_NEVER = -1e4  # the score of what the source's side does not know


def read(folder: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer of a folder's files; None: it has none. Raises ValueError for a broken file."""
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None or not (folder / _VOCABULARY).is_file():
        return None
    try:
        pieces, bpe, normal = _parsed(path.read_bytes())
    except (DecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a model of SentencePiece ({error})") from error
    ids = read_json(folder / _VOCABULARY)
    unknown = ids.get("<unk>")
    if sorted(ids.values()) != list(range(len(ids))) or unknown is None:
        raise ValueError(f"{folder / _VOCABULARY}: ids are not 0 to {len(ids) - 1} with an <unk>")
    model = _bpe(pieces, ids) if bpe else _unigram(pieces, ids)
    library = tokenizers.Tokenizer(model)
    steps = [normalizers.Precompiled(normal)] if normal else []
    extra = normalizers.Replace(Regex(" {2,}"), " ")
    library.normalizer = normalizers.Sequence([*steps, extra, normalizers.Strip()])
    library.pre_tokenizer = pre_tokenizers.Metaspace(_BLANK, prepend_scheme="always")
    library.decoder = decoders.Metaspace(_BLANK, prepend_scheme="always")
    # Codes of languages are in no file of pieces, and are read where a text spells them.
    marks = [word for word in ids if word.startswith((">>", "__")) and word not in dict(pieces)]
    library.add_special_tokens(["<unk>", "<pad>", "</s>", *marks])
    return library


def _unigram(pieces: list[tuple[str, float]], ids: dict[str, int]) -> Any:
    scores = dict(pieces)
    vocabulary = [(word, scores.get(word, _NEVER)) for word in sorted(ids, key=ids.__getitem__)]
    return models.Unigram(vocabulary, unk_id=ids["<unk>"])


def _bpe(pieces: list[tuple[str, float]], ids: dict[str, int]) -> Any:
    """Pieces are joined in the order of their scores; whatever two pieces make one is a merge."""
    rank = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = [
        (rank[piece], rank[piece[:end]], rank[piece[end:]], (piece[:end], piece[end:]))
        for piece in rank
        for end in range(1, len(piece))
        if piece[:end] in rank and piece[end:] in rank
    ]
    known = [merge for *_, merge in sorted(merges) if {*merge, "".join(merge)} <= ids.keys()]
    return models.BPE(ids, known, unk_token="<unk>", fuse_unk=True)


def _parsed(data: bytes) -> tuple[list[tuple[str, float]], bool, bytes]:
    """The pieces with their scores, whether the model is BPE, and the map of the normaliser."""
    pieces, bpe, normal = [], False, b""
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(value))
            if piece.get(3, 1) in (1, 4):  # an ordinary one, or one that a user has named
                score = struct.unpack("<f", struct.pack("<I", piece.get(2, 0)))[0]
                pieces.append((piece[1].decode(), score))
        elif field == 2:
            bpe = dict(_fields(value)).get(3) == _BPE
        elif field == 3:
            normal = dict(_fields(value)).get(2, b"")
    return pieces, bpe, normal


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message by number: whole numbers, also for floats, and bytes of all else."""
    message = empty_pb2.Empty.FromString(data)  # which knows none of them
    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]
