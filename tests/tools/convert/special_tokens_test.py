"""Imported tokenizers read a text as the library of their checkpoint does."""

import hashlib
import json
import pickle

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from transformer_jax.data.prepare.tokenizer import SpecialIds, load_tokenizer
from transformer_jax.tools.convert import special_tokens

LINES = ["Hi", "a [MASK] b", "[SEP]", "grün\n x", "", " two  blanks ", "x<extra>y [MASK]"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCAB = {"[UNK]": 0} | {symbol: number for number, symbol in enumerate(ALPHABET, 1)}
SPECIAL = ["[MASK]", "[SEP]", "[CLS]"]
KINDS = {
    # A GPT of bytes, whose ids are not ours; and other models behind the same pre-tokenizer.
    "bpe": lambda: models.BPE(vocab=VOCAB, merges=[]),
    "words": lambda: models.WordLevel(VOCAB, unk_token="[UNK]"),
    "pieces": lambda: models.WordPiece(VOCAB, unk_token="[UNK]"),
    "unigram": lambda: models.Unigram([(token, -1.0) for token in VOCAB], unk_id=0),
}


def checkpoint(folder, model, *, frame="[CLS] $A [SEP]", added=()):
    """A folder with such a tokenizer, and the library's own object."""
    library = Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.add_special_tokens(SPECIAL)
    library.add_tokens([AddedToken(text, normalized=False) for text in added])
    if frame:
        ids = [(token, library.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        library.post_processor = processors.TemplateProcessing(single=frame, special_tokens=ids)
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return library


@pytest.mark.parametrize(("added", "split"), [((), 0), (("<extra>",), 0), ((), 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_an_imported_tokenizer_are_the_librarys(tmp_path, kind, added, split):
    library = checkpoint(tmp_path / "theirs", KINDS[kind](), added=added)
    library.encode_special_tokens = bool(split)  # whether their spelling is a text
    described = {"split_special_tokens": split, "padding_side": "left"}
    (tmp_path / "theirs/tokenizer_config.json").write_text(json.dumps(described))
    expected = [e.ids for e in library.encode_batch(LINES, add_special_tokens=False)]
    library.enable_padding(direction="left")  # which are for batches, and no part of a text
    library.enable_truncation(2)
    library.save(str(tmp_path / "theirs/tokenizer.json"))
    # Whose names are BERT's by default
    imported = special_tokens.tokenizer(tmp_path / "theirs", "encoder_only")
    assert imported is not None
    names = (imported.token(i) for i in imported.special[1:5] if i is not None)
    assert [*names] == ["[SEP]", "[CLS]", "[UNK]", "[MASK]"]
    imported.save(tmp_path / "tokenizer.json")
    saved = load_tokenizer(tmp_path / "tokenizer.json")
    for tokenizer in (imported, saved, pickle.loads(pickle.dumps(saved))):
        assert tokenizer.encode(LINES) == expected
        assert tokenizer.fingerprint == imported.fingerprint
        assert json.loads(tokenizer.described)["padding_side"] == "left"  # as export writes it
        assert tokenizer.described == imported.described


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_imported_before_reads_special_tokens_as_text_as_it_did(tmp_path, kind):
    library = checkpoint(tmp_path / "theirs", KINDS[kind](), added=("<extra>",))
    library.save(str(tmp_path / "tokenizer.json"))
    ids = {"pad": None, "eos": 258, "bos": 259, "unk": 0, "mask": 257}
    (tmp_path / "special_ids.json").write_text(json.dumps(ids))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    library.encode_special_tokens = True
    assert tokenizer.encode(LINES) == [e.ids for e in library.encode_batch(LINES, False, False)]
    assert tokenizer.special == SpecialIds(**ids)
    suffix = json.dumps([None, 258, 259, 0, 257, [], []])  # so data prepared then is still its own
    assert tokenizer.fingerprint == hashlib.sha256((library.to_str() + suffix).encode()).hexdigest()
    in_text = load_tokenizer(tmp_path / "tokenizer.json", SpecialIds(**ids, in_text=True))
    assert tokenizer.fingerprint != in_text.fingerprint


@pytest.mark.parametrize(
    ("frame", "architecture", "words"),
    [
        ("[CLS] $A [SEP]", "encoder_only", None),
        ("$A [SEP]", "encoder_decoder", None),
        (None, "decoder_only", "puts nothing around a text; here .* with '\\[CLS\\]', as"),
        (None, "encoder_only", "puts nothing .* with '\\[CLS\\]' and '\\[SEP\\]'"),
        ("[CLS] $A [SEP]", "encoder_decoder", "puts '\\[CLS\\]' and '\\[SEP\\]' .* '\\[SEP\\]'"),
    ],
)
def test_it_is_said_where_a_model_reads_other_ids_around_a_text(
    tmp_path, frame, architecture, words
):
    checkpoint(tmp_path / "theirs", KINDS["bpe"](), frame=frame)
    imported = special_tokens.tokenizer(tmp_path / "theirs", architecture)
    assert imported is not None
    warnings = special_tokens.unlike(tmp_path / "theirs", imported.special, architecture)
    if words is None:
        assert not warnings
        return
    with pytest.raises(ValueError, match=words):
        raise ValueError(*warnings)
