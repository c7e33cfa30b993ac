"""T5, 1.0 and 1.1, against Hugging Face's, where it is installed: outputs and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# Longer than the largest distance that has a bucket of its own, so that all buckets are read.
LENGTHS = ((150, 140), (90, 60))
VERSIONS = {
    "1.0": dict(activation="relu", tied_embeddings="all"),
    "1.1": dict(activation="geglu_tanh", tied_embeddings="inputs"),
}


def config_of(version):
    """An epsilon large enough to tell, and heads whose size is not their share of the width."""
    return tiny.config(
        residual="pre_ln",
        norm="rms_norm",
        norm_epsilon=0.01,
        bias=False,
        positions="relative",
        attention_score="dot_product",
        num_decoder_layers=3,
        num_heads=4,
        head_dim=6,
        bos_id=0,
        **VERSIONS[version],
    )


def hugging_face(config, version):
    settings = transformers.T5Config(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_kv=config.head_dim,
        d_ff=config.d_ff,
        num_layers=config.num_encoder_layers,
        num_decoder_layers=config.num_decoder_layers,
        num_heads=config.num_heads,
        dropout_rate=0.0,
        layer_norm_epsilon=config.norm_epsilon,
        feed_forward_proj="relu" if version == "1.0" else "gated-gelu",
        tie_word_embeddings=version == "1.0",
        decoder_start_token_id=config.bos_id,
    )
    model = transformers.T5ForConditionalGeneration(settings).eval()
    if version == "1.1":  # newer releases tie a head that they make until it is loaded
        model.lm_head = torch.nn.Linear(config.d_model, config.vocab_size, bias=False)
    return model


def to_hugging_face(params, config) -> dict[str, np.ndarray]:
    """Our parameters under T5's names. The map is linear, so that it maps gradients as well, but
    for `shared`, which 1.0 reads twice: see the test."""
    root = config.d_model**0.5
    params = jax.tree.map(np.asarray, params)
    state = {"shared.weight": params["embedding"]["table"] * root}
    if config.tied_embeddings == "inputs":
        state["lm_head.weight"] = params["logits"]["kernel"].T
    inner = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}
    letters = {"query": "q", "key": "k", "value": "v"}
    feed_forward = {"up": "wi", "down": "wo"}
    if config.activation != "relu":
        feed_forward = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    for stack, sublayers in tiny.stacks(config).items():
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        state[first] = params[f"{stack}_bias"]["table"]
        state[f"{stack}.final_layer_norm.weight"] = params[f"{stack}_norm"]["scale"]
        for layer in range(getattr(config, f"num_{stack}_layers")):
            weights = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params[stack])
            for number, kind in enumerate(sublayers):
                at, w = f"{stack}.block.{layer}.layer.{number}.", weights[kind]
                norm = weights[f"{kind}_residual"]["pre_norm"]
                state[f"{at}layer_norm.weight"] = norm["scale"]
                if kind == "feed_forward":
                    for ours, theirs in feed_forward.items():
                        state[f"{at}DenseReluDense.{theirs}.weight"] = w[ours].T
                    continue
                for ours, theirs in letters.items():
                    kernel = w[ours].reshape(config.d_model, -1)
                    state[f"{at}{inner[kind]}.{theirs}.weight"] = kernel.T
                state[f"{at}{inner[kind]}.o.weight"] = w["output"].reshape(-1, config.d_model).T
    return state


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_logits_and_gradients_equal_hugging_face(version):
    """Ours is the same model where its table is T5's over the root of D: 1.0 scales its logits by
    that instead, 1.1 none of both."""
    config = config_of(version)
    params = tiny.random_parameters(config, deviation=0.2)  # no sharp softmax
    batch = tiny.pack([[pair] for pair in tiny.sentences(*LENGTHS)], *LENGTHS[0])
    real = batch["targets_segment_ids"] > 0
    generator = np.random.default_rng(1)
    cotangent = generator.normal(size=(*real.shape, config.vocab_size)) * real[..., None]
    cotangent = (cotangent / real.sum()).astype(np.float32)

    def loss(params):
        logits = tiny.logits(config, params, batch)
        return jnp.sum(logits * cotangent), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    model = hugging_face(config, version)
    state = {name: torch.tensor(value) for name, value in to_hugging_face(params, config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    assert set(missing) <= tied | ({"lm_head.weight"} if version == "1.0" else set())
    assert not unexpected
    shifted = np.roll(batch["targets"], 1, axis=1)
    shifted[:, 0] = config.bos_id
    theirs = model(
        input_ids=torch.tensor(batch["inputs"]).long(),
        attention_mask=torch.tensor(batch["inputs_segment_ids"] > 0),
        decoder_input_ids=torch.tensor(shifted).long(),
    ).logits
    torch.sum(theirs * torch.tensor(cotangent)).backward()

    largest = np.abs(logits[real]).max()
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5)
    assert_close(logits[real], theirs.detach().numpy()[real], atol=1e-5 * largest)
    found = dict(model.named_parameters())
    ours = to_hugging_face(gradients, config)
    # d/d table = sqrt(D) d/d shared, since shared = sqrt(D) table.
    ours["shared.weight"] = ours["shared.weight"] / config.d_model
    for name, gradient in ours.items():
        largest = np.abs(gradient).max()
        assert largest > 1e-4, f"{name}: no gradient to compare"
        atol = 1e-5 * max(1.0, largest)
        assert_close(gradient, found[name].grad, atol=atol, err_msg=name)
