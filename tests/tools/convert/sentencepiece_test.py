"""Files of SentencePiece, read without it, give the ids that it gives."""

import json

import numpy as np
import pytest

from transformer_jax.tools.convert import special_tokens

library = pytest.importorskip("sentencepiece")

LINES = [
    "The animal did not cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "two  blanks, a tab\tand ﬁne ligatures ①",
    "",
    " leading and trailing ",
    "unknown: 漢字",
]


@pytest.mark.parametrize(
    ("kind", "name"), [("unigram", "source.spm"), ("bpe", "sentencepiece.bpe.model")]
)
def test_texts_become_the_ids_of_sentencepiece(tmp_path, kind, name):
    words = np.random.default_rng(0).permutation(" ".join(LINES[:3] * 40).split())
    (tmp_path / "text").write_text("\n".join(" ".join(row) for row in np.split(words[:1200], 120)))
    library.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=120,
        model_type=kind, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    (tmp_path / "m.model").rename(tmp_path / name)
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / name))
    pieces = [theirs.id_to_piece(i) for i in range(3, theirs.vocab_size())]
    order = np.random.default_rng(1).permutation(len(pieces))  # ids that are not SentencePiece's
    tokens = ["</s>", "<unk>", *(pieces[i] for i in order), ">>deu<<", "<pad>"]
    ids = {token: number for number, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    config = {"model_type": "marian", "is_encoder_decoder": True, "eos_token_id": 0}
    config |= {"pad_token_id": len(ids) - 1, "decoder_start_token_id": len(ids) - 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = special_tokens.tokenizer(tmp_path, "encoder_decoder")
    assert tokenizer is not None
    for line, row in zip(LINES, tokenizer.encode(LINES), strict=True):
        expected = [ids.get(piece, ids["<unk>"]) for piece in theirs.encode(line, out_type=str)]
        assert row == expected, line
        if ids["<unk>"] not in row:
            assert tokenizer.decode(row) == theirs.decode(theirs.encode(line))
    assert tokenizer.encode([">>deu<< The"])[0][0] == ids[">>deu<<"]
