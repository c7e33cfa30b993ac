import itertools
import multiprocessing
import pickle
import random

import pytest
from tokenizers import pre_tokenizers

from transformer_jax.data.prepare import tokenizer as tokenizer_file
from transformer_jax.data.prepare.tokenizer import (
    BOS_ID,
    EOS_ID,
    MASK,
    PAD_ID,
    TOKENIZERS,
    UNK_ID,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)

SYLLABLES = ["ka", "tze", "hund", "ö", "lauf", "en", "the", "cat", "'s", "ß"]


def corpus(n=300, seed=0):
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) for _ in range(80)]
    return [" ".join([*draw.choices(words, k=draw.randint(1, 9)), "."]) for _ in range(n)]


def test_bytes_are_utf8_bytes_plus_four():
    tokenizer = train_tokenizer("bytes", [], 0)
    texts = ["", " a  b ", "tab\tand\r\n", "ﬁ\u0301 \u2581 漢字 🙂 \u0000", "<unk> < eos > <eos>"]
    assert tokenizer.encode(texts) == [[4 + byte for byte in text.encode()] for text in texts]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(texts)] == texts
    every_byte = bytes(range(256))
    assert tokenizer.decode([4 + b for b in every_byte]) == every_byte.decode(errors="replace")
    assert tokenizer.vocab_size == 260


def test_words_are_ordered_by_count_then_alphabet():
    texts = ["b b b  zebra apple", "b apple zebra <unk>", "rare \u00a0"]
    tokenizer = train_tokenizer("words", texts, 7)
    ids = tokenizer.encode(["b apple zebra", "zebra  rare b <unk>", ""])
    assert ids == [[4, 5, 6], [6, UNK_ID, 4, UNK_ID], []]
    assert tokenizer.decode([4, UNK_ID, 6]) == "b <unk> zebra"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_text_of_known_characters_comes_back_and_no_token_reaches_across_the_ends_of_lines(kind):
    texts = ["a b\nc d", "a b \n\n = c = \n", "\n", "a\n \nb", "c \n \n", "d\n b \n a\n\n\nc"]
    texts += [] if kind == "words" else corpus()  # of more words than it knows
    tokenizer = train_tokenizer(kind, texts * 20, 120)
    encoded = tokenizer.encode(texts)
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    for text, ids in zip(texts, encoded, strict=True):
        tokens = [tokenizer.decode([i]) for i in ids]
        assert sum("\n" in token for token in tokens) == text.count("\n")
        assert all(token.strip(" ") == "\n" for token in tokens if "\n" in token)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_extra_tokens_have_the_last_ids_and_never_come_from_text(kind):
    texts = ["the cat < mask > sat"] * 3
    tokenizer = train_tokenizer(kind, texts, 40, extra_tokens=("< other >", MASK))
    size = tokenizer.vocab_size
    assert [tokenizer.token_id(token) for token in ("< other >", MASK)] == [size - 2, size - 1]
    assert kind == "bytes" or size <= 40
    texts = [*texts, MASK, "< other >"]
    assert all(max(ids) < size - 2 for ids in tokenizer.encode(texts))
    assert "mask" in tokenizer.decode([size - 1])
    without = train_tokenizer(kind, texts[:3], 38)
    assert without.token_id(MASK) is None
    assert without.vocab_size == size - 2
    assert without.encode(texts) == tokenizer.encode(texts)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_have_the_ids_that_they_have_after_a_blank(kind):
    sentences = [text.split(" ") for text in corpus(30)]
    tokenizer = train_tokenizer(kind, corpus(), 120)
    encoded = tokenizer.encode_words(sentences)
    assert [len(ids) for ids in encoded] == [len(words) for words in sentences]
    flat = [list(itertools.chain.from_iterable(ids)) for ids in encoded]
    assert flat == tokenizer.encode([f" {' '.join(words)}" for words in sentences])


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_special_ids_are_skipped_or_end_the_text_and_never_come_from_text(kind):
    tokenizer = train_tokenizer(kind, ["a b < eos > < pad > < bos >"] * 3, 260)
    ids = tokenizer.encode(["a b"])[0]
    assert tokenizer.decode([PAD_ID, BOS_ID, *ids, PAD_ID, EOS_ID, *ids]) == "a b"
    assert tokenizer.decode([]) == ""
    spelled = tokenizer.encode(["< eos > < pad >", "< bos >", "<unk>a"])
    assert not {PAD_ID, EOS_ID, BOS_ID} & {i for row in spelled for i in row}


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram"])
def test_unknown_characters_are_written_unk(kind):
    tokenizer = train_tokenizer(kind, corpus(), 120)
    ids = tokenizer.encode(["漢"])[0]
    assert ids[-1] == UNK_ID
    assert tokenizer.decode(ids) == "<unk>"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_saved_and_loaded_tokenizer_is_the_same(kind, tmp_path):
    tokenizer = train_tokenizer(kind, corpus(), 120, extra_tokens=(MASK,))
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.token_id(MASK) == tokenizer.token_id(MASK)
    texts = [*corpus(seed=1), f"< eos > <unk> {MASK} 漢"]
    assert loaded.encode(texts) == tokenizer.encode(texts)


def _fingerprints(queue):
    queue.put([train_tokenizer(kind, corpus(), 120).fingerprint for kind in TOKENIZERS])


def test_training_is_the_same_in_every_process():
    """Hash tables are seeded anew in every process; training here twice would prove less."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_fingerprints, args=(queue,))
    process.start()
    assert queue.get() == [train_tokenizer(kind, corpus(), 120).fingerprint for kind in TOKENIZERS]
    process.join()


def test_bad_settings_and_files(tmp_path):
    with pytest.raises(ValueError, match="vocab_size=5 is too small: 5 ids are special.*least 6"):
        train_tokenizer("words", corpus(), 5, extra_tokens=(MASK,))
    for kind, size in [("words", 4), ("bpe", 3), ("bpe", 12), ("unigram", 12)]:
        with pytest.raises(ValueError, match=f"data.tokenizer.vocab_size={size}"):
            train_tokenizer(kind, corpus(), size)
    characters = len(set("".join(corpus())))
    message = f"'bpe' needs {characters} more.*at least {characters + 4}"
    with pytest.raises(ValueError, match=message):
        train_tokenizer("bpe", corpus(), 12)
    train_tokenizer("bpe", corpus(), characters + 4)  # and no more
    with pytest.raises(FileNotFoundError, match="nothing.json"):
        load_tokenizer(tmp_path / "nothing.json")
    (tmp_path / "cut.json").write_text('{"version": "1.0"')
    with pytest.raises(ValueError, match="cut.json: not a tokenizer file"):
        load_tokenizer(tmp_path / "cut.json")


@pytest.mark.parametrize("kind", ["words", "bytes", "bpe", "unigram"])
def test_looking_words_up_gives_the_ids_of_the_library(kind, monkeypatch):
    draw = random.Random(0)
    parts = ["a", "b", "c", " ", "  ", "\n", "\u2581", "<unk>", "é", "\r", "\u2028", MASK]
    texts = ["".join(draw.choices(parts, k=draw.randrange(12))) for _ in range(5000)]
    tokenizer = train_tokenizer(kind, texts[:40], 60, (MASK,))
    monkeypatch.setattr(tokenizer_file, "_REMEMBERED", 20)  # so that some are forgotten
    ids = tokenizer.encode(texts)
    assert ids == pickle.loads(pickle.dumps(tokenizer)).encode(texts)
    assert tokenizer._fast is not None
    tokenizer._fast = None
    assert tokenizer.encode(texts) == ids


OF_OTHERS = [
    pre_tokenizers.Whitespace(),
    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]),
]


@pytest.mark.parametrize("split", OF_OTHERS)
def test_what_others_split_in_another_way_has_the_ids_of_the_library(split):
    library = train_tokenizer("words", corpus(), 60)._library
    library.pre_tokenizer = split
    texts = [*corpus(seed=1), "the cat's, ka\n en  ."]
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    assert Tokenizer(library).encode(texts) == expected
