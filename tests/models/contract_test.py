"""What every row of the models' tables has to keep: a new row is tested here by being there."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from tests.models.tiny import assert_close
from transformer_jax.evaluation import search
from transformer_jax.models import FAMILIES
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.layers.settings import ARCHITECTURES
from transformer_jax.models.recurrent.config import RecurrentConfig

# A tiny model of each family and shape, and of each row of the recurrent models.
CONFIGS = {
    **{f"transformer-{shape}": tiny.config(architecture=shape) for shape in ARCHITECTURES},
    **tiny.RECURRENT,
}


def test_each_family_and_shape_is_among_the_models():
    models = {(type(config), config.architecture) for config in CONFIGS.values()}
    shapes = [(row.config, shape) for row in FAMILIES.values() for shape in ARCHITECTURES]
    assert models == {shape for shape in shapes if shape != (RecurrentConfig, "encoder_set")}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_parameter_says_what_it_is(name):
    """A matrix takes all axes of a layer's own; matrices decay, and an additive score's vector."""
    config = CONFIGS[name]
    boxes = tiny.flat(tiny.abstract_parameters(config), is_leaf=lambda leaf: hasattr(leaf, "names"))
    roles = tiny.roles(config)
    assert roles.keys() == boxes.keys()
    for path, role in roles.items():
        rank = len(boxes[path].names) - role.stacked
        assert role.matrix is None or sum(role.matrix) == rank, path
        # It is a kernel of one output, as in `AdditiveScore`.
        assert role.decay == (role.matrix is not None or path.endswith("/vector")), path
        assert role.stacked == ("layers" in boxes[path].names[:1]), path
        assert (role.axes, role.shape) == (boxes[path].names, boxes[path].value.shape), path


def prompts(config, batch):
    """The inputs of a batch; of a decoder alone a prompt of bos alone."""
    inputs = {key: value for key, value in batch.items() if key.startswith("inputs")}
    if config.architecture == "encoder_decoder":
        return inputs
    bos = np.full((len(batch["targets"]), 1), config.bos_id, np.int32)
    return {"inputs": bos, "inputs_segment_ids": bos * 0 + 1, "inputs_positions": bos * 0}


@pytest.mark.parametrize("name", ["transformer-decoder_only", "rnnsearch-encoder_decoder"])
def test_a_full_beam_finds_what_brute_force_does(name):
    """All sequences of at most three of five tokens but the worst, best first, by their scores.

    With one model of each family: what any other decodes in a beam, `decoding_test` compares.
    """
    config = dataclasses.replace(CONFIGS[name], vocab_size=5)
    params, sources = tiny.random_parameters(config), [np.array([3, 4, 1]), np.array([4, 4, 3, 1])]
    call = functools.partial(tiny.model(config).apply, {"params": params})
    inputs = tiny.pack([[(source, source)] for source in sources], 4, 4)

    @jax.jit
    def searched(inputs):
        first, context, cache = call(inputs, 3, method="start")
        beams = search.begin_beams(
            first, cache, beam_size=20, num_results=20, length=3, limit=jnp.array([3, 3]), pad=0
        )
        step = functools.partial(call, context, method="step")
        extend = functools.partial(search.extend_beams, step=step, length_penalty=0.6, ends=(1,))
        return search.advance(beams, extend=extend, until=3)

    beams = searched(prompts(config, inputs))
    sequences = [
        (*prefix, 1)
        for length in range(3)
        for prefix in itertools.product((0, 2, 3, 4), repeat=length)
    ]
    for row, source in enumerate(sources):
        texts = [np.array(sequence) for sequence in sequences]
        batch = tiny.pack([[(source, text)] for text in texts], 4, 3)
        logits = tiny.apply_function(config)(params, batch)
        log_probs = np.asarray(jax.nn.log_softmax(logits))
        scores = [
            sum(log_p[np.arange(len(text)), text]) / ((5 + len(text)) / 6) ** 0.6
            for log_p, text in zip(log_probs, texts, strict=True)
        ]
        best = np.argsort(scores)[::-1][:20]
        assert_close(beams.finished_scores[row], np.array(scores)[best])
        beam = [tuple(ids[: ids.index(1) + 1]) for ids in beams.finished_tokens[row].tolist()]
        assert beam == [sequences[number] for number in best]


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_refuse_the_odd_sizes_that_they_cannot_split(kind):
    for size in ("d_model", "head_dim"):
        if size == POSITIONS[kind].even:
            with pytest.raises(ValueError, match=f"{kind} positions need .* model.{size}.* got 15"):
                tiny.config(positions=kind, grid=(2, 3), **{size: 15})
        else:
            tiny.config(positions=kind, grid=(2, 3), **{size: 15})
