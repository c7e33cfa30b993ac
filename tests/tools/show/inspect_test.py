"""What `inspect` says of the parameters of a model beyond its base."""

import re
from typing import Any

import pytest

from tests.data import datasets
from transformer_jax import tasks
from transformer_jax.config import build_data
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.tools.show.inspect import inspect

DEFAULT = default.__file__


def test_each_parameter_is_shown_with_what_its_parameterisation_gives_it(tmp_path, capsys):
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 4, "tied_embeddings": "none"}
    sizes |= {"parameterization": "depth_mup", "base_width": 8, "base_depth": 2}
    sizes |= {"architecture": "decoder_only", "residual": "pre_ln"}
    changes: dict[str, Any] = {f"model.{key}": value for key, value in sizes.items()}
    (tmp_path / "text").write_text("a b c\n")
    changes |= {"data.source": "text", "data.dir": str(tmp_path), "data.tokenizer.kind": "bytes"}
    changes["data.packing"] = False  # no rows are packed to see how full they are
    changes |= {f"data.{split}": ("text",) for split in ("train", "validation", "test")}
    config = load(DEFAULT, changes | {"data.cache_dir": str(tmp_path / "cache")})
    assert inspect(config, None) == 0
    out = capsys.readouterr().out
    # Yang et al. 2021, table 8, and 2023: n = 4 and N = 2, as powers of multiplier, learning rate
    # and epsilon.
    n, deep = 4.0, 2.0**-0.5
    expected = {
        "embedding/table": (1, 1, 1 / n),
        "decoder/feed_forward/up": (1, deep / n, deep / n),
        "decoder/self_attention/query": (1, deep / n, deep / n),
        "logits/kernel": (1 / n, 1, 1 / n),
        "decoder_norm/scale": (1, 1, 1),  # behind the stack
    }
    for path, factors in expected.items():
        (line,) = re.findall(rf"^  {path} .*$", out, re.M)
        match = re.search(r"multiplier \* (\S+), learning rate \* (\S+), epsilon \* (\S+)$", line)
        assert match, line
        assert [float(text) for text in match.groups()] == pytest.approx(factors, rel=1e-3)


def test_a_model_with_less_tokens_than_a_tokenizer_at_hand_is_refused_as_in_training(tmp_path):
    datasets.write(tmp_path)
    changes = {
        "data.source": "text",
        "data.dir": str(tmp_path / "pairs"),
        "data.cache_dir": str(tmp_path / "cache"),
        "data.tokenizer.kind": "words",
        "model.vocab_size": 4,
    }
    config = load(DEFAULT, changes)
    task = tasks.choose(config.task.name, config.model.architecture)
    data = build_data.dataset(config, task, None)
    with pytest.raises(ValueError, match="tokens, more than model.vocab_size=4") as refused:
        _ = data.tokenizer  # which is trained, and kept
    with pytest.raises(ValueError) as inspected:
        inspect(config, None)
    assert str(inspected.value) == str(refused.value)
    for kind, message in (("bytes", "260 tokens"), ("words", "tokens")):
        with pytest.raises(ValueError, match=message):
            inspect(load(DEFAULT, changes | {"data.tokenizer.kind": kind}), None)
