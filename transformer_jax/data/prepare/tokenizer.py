"""Text to token ids and back, by bytes, words, BPE or unigram; the only home of the special ids.

Every kind is one object of the `tokenizers` library, so saving, loading and encoding in bulk are
the same for all. One vocabulary serves both languages. No token reaches across a line break.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from transformer_jax.runs.workdir import SPECIAL_IDS, TOKENIZER_CONFIG, reading, write_atomically

PAD_ID, EOS_ID, BOS_ID, UNK_ID = 0, 1, 2, 3


class SpecialIds(NamedTuple):
    """The ids of a tokenizer that stand for no text.

    eos ends texts, bos is what a decoder reads first, and unk stands for what the vocabulary lacks
    (None: it lacks nothing). mask stands for a token to be predicted (None: that of MASK, if any).
    pad fills rows up elsewhere; here whatever id does, since segments tell what is padding.
    other_eos also end what a model writes, such as those of a turn in a dialogue. never is what it
    does not write, whatever it thinks of it, such as Marian's pad, which it never saw as a target.
    in_text says whether a special token that a text spells, such as "[MASK]", is read as that token
    (an imported tokenizer's own way) and not as plain text. source_before and source_after stand
    around a source and its eos, and target_first before a target, such as the codes of languages;
    what is decoded begins with target_first in any case.
    """

    pad: int | None = PAD_ID
    eos: int = EOS_ID
    bos: int = BOS_ID
    unk: int | None = UNK_ID
    mask: int | None = None
    other_eos: tuple[int, ...] = ()
    never: tuple[int, ...] = ()
    in_text: bool = False
    source_before: tuple[int, ...] = ()
    source_after: tuple[int, ...] = ()
    target_first: tuple[int, ...] = ()

    @property
    def framed(self) -> bool:
        """Whether more than eos and bos stands around a text."""
        return bool(self.source_before or self.source_after or self.target_first)

    @property
    def ends(self) -> tuple[int, ...]:
        """All that end a text, eos first."""
        return self.eos, *self.other_eos

    @property
    def silent(self) -> tuple[int, ...]:
        """Those that are no part of a text."""
        around = (*self.source_before, *self.source_after, *self.target_first)
        return tuple(i for i in (self.pad, *self.ends, self.bos, *around) if i is not None)


OWN_IDS = SpecialIds()  # of the tokenizers that are trained here


# A blank cannot occur inside a token of text, so text never produces pad, eos, bos or mask.
_SPECIAL_TOKENS = ["< pad >", "< eos >", "< bos >", "<unk>"]
_UNK = _SPECIAL_TOKENS[UNK_ID]
MASK = "< mask >"  # stands for a token that a model has to predict
_REMEMBERED = 2**18  # words whose ids are kept
_LONGEST = 64  # characters of such a word: longer ones (lines without blanks) hardly come again


class Tokenizer:
    """Encodes and decodes with a trained vocabulary; made by train_tokenizer or load_tokenizer.

    Attributes:
        vocab_size: number of ids, the special ones included.
        fingerprint: SHA-256 of everything that decides the ids.
        special: the special ids.
        described: the text of the tokenizer_config.json beside an imported one, for its export.
    """

    vocab_size: int
    fingerprint: str
    special: SpecialIds

    def __init__(
        self, library: tokenizers.Tokenizer, special: SpecialIds = OWN_IDS, described: str = ""
    ):
        self._library = library
        self.special = special
        self.described = described
        # Those of others may cut texts off and fill them up.
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = not special.in_text
        self._fast = None if special.in_text else _fast_encoder(library)
        self.vocab_size = library.get_vocab_size()
        # As before there were the last fields
        fields = special if special.framed else special[: 8 if special.in_text else 7]
        known = library.to_str() + (special != OWN_IDS) * json.dumps(fields)
        self.fingerprint = hashlib.sha256(known.encode()).hexdigest()

    def __reduce__(self) -> tuple:
        return Tokenizer, (self._library, self.special, self.described)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without eos. Raises TypeError for a single text, not in a list."""
        if isinstance(texts, str):  # whose characters would be encoded one by one
            raise TypeError(f"expected texts, got one: encode([{texts!r:.50}])")
        if self._fast is not None:
            return list(map(self._fast, texts))
        encoded = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [e.ids for e in encoded]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Ids of each word of each sentence, as after a blank; at least one each, if only unk."""
        words = list(dict.fromkeys(itertools.chain.from_iterable(sentences)))
        encoded = self.encode([f" {word}" for word in words])
        nothing = [self.special.eos if self.special.unk is None else self.special.unk]
        ids = {word: row or nothing for word, row in zip(words, encoded, strict=True)}
        return [[ids[word] for word in sentence] for sentence in sentences]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids before any that ends it; pad and bos are skipped, unk is <unk>."""
        ends, silent = self.special.ends, self.special.silent
        before_end = itertools.takewhile(lambda i: i not in ends, map(int, ids))
        text_ids = [i for i in before_end if i not in silent]
        return self._library.decode(text_ids, skip_special_tokens=False)

    def spans(self, ids: Iterable[int]) -> dict[str, Any]:
        """The text of ids, and "ends": its characters after each id, None after a silent one."""
        before, ends, part = "", [], []
        for one in ids:
            part.append(one)
            ends.append(len(before + self.decode(part)))
            if one in self.special.silent:
                before, part, ends[-1] = before + self.decode(part), [], None
        return {"text": before + self.decode(part), "ends": ends}

    def token_id(self, token: str) -> int | None:
        """The id of a token, such as MASK; None where the vocabulary lacks it."""
        if token == MASK and self.special.mask is not None:
            return self.special.mask
        return self._library.token_to_id(token)

    def token(self, number: int) -> str | None:
        """The token of an id."""
        return self._library.id_to_token(number)

    def framed(self, *pieces: str) -> "Tokenizer":
        """A copy that puts special ids around a text for other programs; `encode` does not.

        pieces: "bos", "$A" for the text, and "eos". A post-processor that is there already stays.
        """
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        if library.post_processor is None:
            ids = {"bos": self.special.bos, "eos": self.special.eos}
            tokens = [{"id": key, "ids": [i], "tokens": [self.token(i)]} for key, i in ids.items()]
            library.post_processor = processors.TemplateProcessing(
                single=[*pieces], special_tokens=tokens
            )
        return Tokenizer(library, self.special, self.described)

    def frame(self) -> list[int]:
        """The special ids that a post-processor of its own puts around a text."""
        plain = self._library.encode("", add_special_tokens=False).ids
        return [i for i in self._library.encode("").ids if i not in plain]

    def save(self, path: str | Path) -> None:
        """Writes what load_tokenizer reads: a JSON file, and beside it what an imported one has."""
        if self.described:
            write_atomically(Path(path).with_name(TOKENIZER_CONFIG), self.described)
        if self.special != OWN_IDS:
            write_atomically(Path(path).with_name(SPECIAL_IDS), json.dumps(self.special._asdict()))
        write_atomically(Path(path), self._library.to_str(pretty=True))


def _fast_encoder(library: tokenizers.Tokenizer) -> Callable[[str], list[int]] | None:
    """Text to ids as the library has them, several times as fast; None: of other kinds than ours.

    A word is encoded once and then looked up, since no token reaches across words.
    """
    kinds = json.loads(library.to_str())
    before = library.pre_tokenizer
    plain = all(token["special"] for token in kinds["added_tokens"])  # others count in any text
    if kinds["normalizer"] is not None or before is None or not plain:
        return None
    state = before.__getstate__()
    byte_kinds = json.loads(_bytes((), 0).to_str())
    if all(kinds[part] == byte_kinds[part] for part in ("model", "pre_tokenizer")):
        first = np.int32(len(_SPECIAL_TOKENS))
        return lambda text: (np.frombuffer(text.encode(), np.uint8) + first).tolist()
    splits = {_lines_and_words: _WORD.findall, _lines_and_subwords: _subwords_of}
    for make, split in splits.items():
        if state == make().__getstate__():
            ids = _Remembered(library.model, make is _lines_and_subwords).__getitem__
            return lambda text: [*itertools.chain.from_iterable(map(ids, split(text)))]
    return None


def _subwords_of(text: str) -> list[str]:
    """What `_lines_and_subwords` makes of a text, with blanks where it puts marks."""
    if text and not text.startswith((" ", _BLANK)):
        text = f" {text}"
    return _SUBWORD.findall(text)


class _Remembered(dict):
    """The ids of words, each encoded when it is first asked for."""

    def __init__(self, model: Any, marks: bool):
        """marks: whether the model knows blanks by a mark."""
        super().__init__()
        self._model = model
        self._marks = marks
        # One object an id, since those of all words together would not stay in the core's cache.
        self._objects: dict[int, int] = {}

    def __missing__(self, word: str) -> tuple[int, ...]:
        marked = word.replace(" ", _BLANK) if self._marks else word
        numbers = [token.id for token in self._model.tokenize(marked)]
        ids = tuple(self._objects.setdefault(one, one) for one in numbers)
        if len(word) <= _LONGEST:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[word] = ids
        return ids


def load_tokenizer(path: str | Path, special: SpecialIds | None = None) -> Tokenizer:
    """The tokenizer that Tokenizer.save wrote, or another of the library's with these special ids.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a saved tokenizer.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no tokenizer file here")
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every broken file
        raise ValueError(f"{path}: not a tokenizer file ({error})") from error
    beside = path.with_name(TOKENIZER_CONFIG)
    with reading(beside, "restore it, or remove it to export without it"):
        described = beside.read_text("utf-8") if beside.is_file() else ""
    return Tokenizer(library, load_special_ids(path) if special is None else special, described)


def load_special_ids(path: str | Path) -> SpecialIds:
    """Those of the tokenizer in a file, which need not be there yet. Raises ValueError."""
    file = Path(path).with_name(SPECIAL_IDS)
    if not file.is_file():
        return OWN_IDS
    with reading(file, "restore it"):
        fields = json.loads(file.read_text())
        names = "other_eos", "never", "source_before", "source_after", "target_first"
        several = {name: tuple(fields.get(name, ())) for name in names}
        return SpecialIds(**fields | several)


def train_tokenizer(
    kind: str, texts: Sequence[str], vocab_size: int, extra_tokens: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer of at most vocab_size ids; the same texts always give the same one.

    Args:
        kind: "bytes" (UTF-8 bytes, id = 4 + byte; texts and vocab_size do not matter), "words"
            (split at blanks, most frequent words, ties alphabetical), "bpe" (Sennrich et al. 2016)
            or "unigram" (Kudo 2018).
        texts: texts of the training split, of both languages where there are two.
        vocab_size: upper bound, the special ids included.
        extra_tokens: further special tokens, such as MASK; they get the last ids.

    Raises:
        ValueError: a vocabulary too small for the characters of the texts.
    """
    row = TOKENIZERS[kind]
    special = len(_SPECIAL_TOKENS) + len(extra_tokens)
    if row.least is not None and vocab_size < (least := special + row.least(texts)):
        raise ValueError(
            f"data.tokenizer.vocab_size={vocab_size} is too small: {special} ids are special and "
            f"{kind!r} needs {least - special} more for the training split, at least {least} in all"
        )
    library = row.train(texts, vocab_size - len(extra_tokens))
    if extra_tokens:
        library.add_special_tokens(list(extra_tokens))
    return Tokenizer(library)


def _bytes(texts: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    del texts, vocab_size  # every byte is known beforehand
    # Printable characters stand for bytes (GPT-2's table, as the library uses it).
    printable = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = iter(symbol for symbol in printable if ord(symbol) >= 256)
    symbols = [chr(byte) if chr(byte) in printable else next(others) for byte in range(256)]
    vocab = {token: i for i, token in enumerate(_SPECIAL_TOKENS)}
    vocab |= {symbol: len(_SPECIAL_TOKENS) + byte for byte, symbol in enumerate(symbols)}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return library


# A line break takes the blanks beside it along: between words a blank goes without saying.
_WORD = re.compile(r" ?\n(?: (?!\n))?|[^ \n]+")
_BLANK = "\u2581"  # the mark of one, in subwords
_SUBWORD = re.compile(f" ?\\n|[ {_BLANK}][^ {_BLANK}\\n]*|[^ {_BLANK}\\n]+")


def _lines_and_words() -> Any:
    return pre_tokenizers.Split(Regex(_WORD.pattern), behavior="removed", invert=True)


def _lines_and_subwords() -> Any:
    # The mark of a blank belongs to the word after it, so "house ." comes back with its blank. The
    # text's first word gets one too, a line's first word only where the text has a blank there.
    lines = pre_tokenizers.Split(Regex(" ?\n"), behavior="isolated")
    return pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace(prepend_scheme="first")])


def _words(texts: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    counts = Counter(itertools.chain.from_iterable(map(_WORD.findall, texts)))
    counts.pop(_UNK, None)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    tokens = [*_SPECIAL_TOKENS, *ordered[: vocab_size - len(_SPECIAL_TOKENS)]]
    vocab = {token: i for i, token in enumerate(tokens)}
    library = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=_UNK))
    library.pre_tokenizer = _lines_and_words()
    library.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex(r"\A(?! ?\n)"), " "),  # before every token that is a word
            decoders.Fuse(),
            decoders.Replace(Regex(r"\A (?! ?\n)|(?<=\n) (?=[^\n])"), ""),  # first of its line
        ]
    )
    return library


def _bpe(texts: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(unk_token=_UNK))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=_SPECIAL_TOKENS, show_progress=False
    )
    return _trained_subwords(library, trainer, texts)


def _unigram(texts: Sequence[str], vocab_size: int) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=_SPECIAL_TOKENS, unk_token=_UNK, show_progress=False
    )
    library = _trained_subwords(library, trainer, texts)
    library.model = _without_noise(library)
    return library


def _trained_subwords(
    library: tokenizers.Tokenizer, trainer: Any, texts: Sequence[str]
) -> tokenizers.Tokenizer:
    library.pre_tokenizer = _lines_and_subwords()
    library.decoder = decoders.Metaspace()
    library.train_from_iterator(texts, trainer)
    return library


def _without_noise(library: tokenizers.Tokenizer) -> models.Unigram:
    """The unigram model freed of what differs between two trainings on the same texts.

    Training walks through hash tables: it adds up floats in their order, so that scores differ in
    the last digits, and gives characters that it had pruned the scores lowest, lowest + 0.0001,
    ... in their order. Hence rounded scores, one score for those, and ties in alphabetical order.
    """
    pieces = json.loads(library.to_str())["model"]["vocab"]
    special = [(token, 0.0) for token in _SPECIAL_TOKENS]
    scores = {piece: round(score, 4) for piece, score in pieces[len(special) :]}
    lowest = min(scores.values())
    restored = lowest + 0.0001 * sum(len(piece) == 1 for piece in scores)
    for piece, score in scores.items():
        if len(piece) == 1 and score < restored:
            scores[piece] = lowest
    rest = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram(special + rest, unk_id=UNK_ID)


class Kind(NamedTuple):
    """One kind of tokenizer.

    train: (texts, size of the vocabulary without extra tokens) -> the library's object.
    least: texts -> ids besides the special ones that it cannot do without; None: neither texts nor
    vocab_size matter.
    """

    train: Callable[[Sequence[str], int], tokenizers.Tokenizer]
    least: Callable[[Sequence[str]], int] | None


def _characters(texts: Sequence[str]) -> int:
    return len(set(" ").union(*texts))


TOKENIZERS = {
    "bytes": Kind(_bytes, None),
    "words": Kind(_words, lambda texts: 1),
    "bpe": Kind(_bpe, _characters),
    "unigram": Kind(_unigram, _characters),
}
