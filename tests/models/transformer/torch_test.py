"""With weights copied, logits and gradients equal those of PyTorch's own Transformer."""

import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny

torch = pytest.importorskip("torch")

ATTENTION_NAMES = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}


def torch_transformer(config):
    """nn.Transformer without dropout, and without the final norms that Post-LN does not have."""
    pre_ln = config.encoder_residual == "pre_ln"
    modules = torch.nn.Transformer(
        config.d_model,
        config.num_heads,
        config.num_encoder_layers,
        config.num_decoder_layers,
        config.d_ff,
        dropout=0.0,
        activation=config.activation,
        batch_first=True,
        norm_first=pre_ln,
    )
    if not pre_ln:
        modules.encoder.norm = modules.decoder.norm = None
    return modules


def to_torch(params, config) -> dict[str, np.ndarray]:
    """Our parameter tree under the names of `torch_transformer`'s state dict; the key bias is zero.

    The rows of the token table, which are not in it, are left out.
    """
    d_model = config.d_model
    norm_name = "pre_norm" if config.encoder_residual == "pre_ln" else "post_norm"
    params = jax.tree.map(np.asarray, params)
    state = {}
    for stack, sublayers in tiny.stacks(config).items():
        for layer in range(getattr(config, f"num_{stack}_layers")):
            weights = jax.tree.map(operator.itemgetter(layer), params[stack])
            prefix = f"{stack}.layers.{layer}."
            for number, sublayer in enumerate(sublayers, 1):
                norm = weights[f"{sublayer}_residual"][norm_name]
                state[f"{prefix}norm{number}.weight"] = norm["scale"]
                state[f"{prefix}norm{number}.bias"] = norm["bias"]
                w = weights[sublayer]
                if sublayer == "feed_forward":
                    state[prefix + "linear1.weight"] = w["up"].T
                    state[prefix + "linear1.bias"] = w["up_bias"]
                    state[prefix + "linear2.weight"] = w["down"].T
                    state[prefix + "linear2.bias"] = w["down_bias"]
                    continue
                name = prefix + ATTENTION_NAMES[sublayer]
                kernels = [w[k].reshape(d_model, d_model).T for k in ("query", "key", "value")]
                biases = [w["query_bias"].ravel(), np.zeros(d_model, np.float32)]
                state[name + ".in_proj_weight"] = np.concatenate(kernels)
                state[name + ".in_proj_bias"] = np.concatenate([*biases, w["value_bias"].ravel()])
                state[name + ".out_proj.weight"] = w["output"].reshape(d_model, d_model).T
                state[name + ".out_proj.bias"] = w["output_bias"]
        if config.encoder_residual == "pre_ln":
            state[f"{stack}.norm.weight"] = params[f"{stack}_norm"]["scale"]
            state[f"{stack}.norm.bias"] = params[f"{stack}_norm"]["bias"]
    return state


def torch_logits(config, modules, table, batch):
    """Logits of every token by PyTorch, from the rows of the token table."""

    def embed(ids):
        places = torch.tensor(reference.sinusoid(ids.shape[1], config.d_model)).float()
        return table[ids] * math.sqrt(config.d_model) + places

    tokens = {name: torch.tensor(batch[name]).long() for name in ("inputs", "targets")}
    padding = {name: torch.tensor(batch[f"{name}_segment_ids"] == 0) for name in tokens}
    start = torch.full_like(tokens["targets"][:, :1], config.bos_id)
    shifted = torch.cat([start, tokens["targets"][:, :-1]], dim=1)
    length = shifted.shape[1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    outputs = modules(
        embed(tokens["inputs"]),
        embed(shifted),
        tgt_mask=future,
        src_key_padding_mask=padding["inputs"],
        memory_key_padding_mask=padding["inputs"],
        tgt_key_padding_mask=padding["targets"],
    )
    return outputs @ table.T


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(("residual", "activation"), [("post_ln", "relu"), ("pre_ln", "gelu")])
def test_logits_and_gradients_equal_pytorch(residual, activation):
    config = tiny.config(residual=residual, activation=activation)
    params = tiny.random_parameters(config)
    batch = tiny.pack([[pair] for pair in tiny.sentences((9, 8), (5, 6), (3, 2))])
    real = batch["targets_segment_ids"] > 0
    generator = np.random.default_rng(1)
    # One cotangent stands for any loss; padded positions have none, their logits mean nothing.
    cotangent = generator.normal(size=(*real.shape, config.vocab_size)) * real[..., None]
    cotangent = (cotangent / real.sum()).astype(np.float32)

    def loss(params):
        logits = tiny.logits(config, params, batch)
        return jnp.sum(logits * cotangent), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    modules = torch_transformer(config)
    state = {name: torch.tensor(value) for name, value in to_torch(params, config).items()}
    modules.load_state_dict(state, strict=True)
    table = torch.tensor(np.asarray(params["embedding"]["table"]), requires_grad=True)
    theirs = torch_logits(config, modules, table, batch)
    torch.sum(theirs * torch.tensor(cotangent)).backward()

    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    assert_close(logits[real], theirs.detach().numpy()[real])
    assert_close(gradients["embedding"]["table"], table.grad)
    # The map from our tree to PyTorch's is linear in the parameters, so it maps gradients as well;
    # its zero key bias says that PyTorch's gradient vanishes there.
    torch_gradients = dict(modules.named_parameters())
    ours = to_torch(gradients, config)
    assert ours.keys() == torch_gradients.keys()
    for name, gradient in ours.items():
        assert np.abs(gradient).max() > 1e-4, f"{name}: no gradient to compare"
        assert_close(gradient, torch_gradients[name].grad, err_msg=name)
