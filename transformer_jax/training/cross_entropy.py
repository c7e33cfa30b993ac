"""Cross-entropy of logits, or of hidden vectors and a projection, in chunks of tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from transformer_jax.devices.mesh import constrain, shards
from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.models.layers.product import soft_cap

# What `cross_entropy` sums up.
METRICS = ("loss", "token_loss", "accuracy")

# Logits of more bytes than this on a device are computed in chunks, each of an equal share of the
# device's tokens. On two CPU cores a step with 32 MiB of logits takes the same time either way (one
# with 250 MiB 0.82 times as long), and smaller ones are no matter of memory.
LARGE = 2**24
CHUNKS = 8


@dataclasses.dataclass(frozen=True)
class LossSettings:
    """What the config says of losses, `config.task`'s part of it."""

    label_smoothing: float
    z_loss: float
    box_weights: tuple[float, float, float]  # of the class, of L1 and of GIoU
    no_object_weight: float
    auxiliary_losses: bool


def cross_entropy(
    logits: Float[Array, "B T V"] | Unprojected,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    settings: LossSettings,
) -> dict[str, Float[Array, ""]]:
    """Weighted sums over all tokens, in nats, under the names of `METRICS`.

    Large logits that are not there yet are computed in chunks and not kept; chunks in which no
    token has a weight are skipped. Then only "loss" has a gradient.

    loss: against the target distribution that has 1 - label_smoothing on the target and
      label_smoothing / V on each of the V tokens (Szegedy et al. 2015, section 7, and PyTorch;
      tensor2tensor leaves the target out of the second part), plus z_loss * log(Z)^2 (de
      Brébisson and Vincent 2016; weighted as in PaLM, section 5).
    token_loss: -log p(target). exp of its mean is the perplexity.
    accuracy: 1 where the target is the likeliest token, 1 / n where it is one of n such.
    """
    if isinstance(logits, Unprojected):
        if _bytes(logits) > LARGE:
            return _in_chunks(settings, logits, targets, weights)
        logits = logits.logits()
    return _plain(settings, logits, targets, weights)


def token_losses(logits: Float[Array, "*B V"], targets: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """-log p of each target, in nats."""
    log_z, target_logit, *_ = _statistics(logits, targets)
    return log_z - target_logit


def _plain(
    settings: LossSettings,
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    weights: Float[Array, "*B"],
) -> dict[str, Float[Array, ""]]:
    label_smoothing, z_loss = settings.label_smoothing, settings.z_loss
    log_z, target_logit, mean_logit, correct = _statistics(logits, targets)
    token_loss = log_z - target_logit
    loss = log_z - (1 - label_smoothing) * target_logit - label_smoothing * mean_logit
    loss = loss + z_loss * jnp.square(log_z)
    values = (loss, token_loss, correct)
    return {name: jnp.sum(value * weights) for name, value in zip(METRICS, values, strict=True)}


# The loss and its gradient need only these numbers of each row of logits. The derivative is
# written out because autodiff would scatter the target's part into a second (B, T, V) array and
# keep a third; this way one exp, kept from the forward pass, is all that is as large as logits.
@jax.custom_vjp
def _statistics(
    logits: Float[Array, "*B V"], targets: Int[Array, "*B"]
) -> tuple[Float[Array, "*B"], Float[Array, "*B"], Float[Array, "*B"], Float[Array, "*B"]]:
    """log of the sum of exp, the target's logit, the mean logit, and how far the target is top: 1 /
    n where it is one of the n largest, else 0."""
    return _statistics_forward(logits, targets)[0]


def _statistics_forward(logits, targets):
    logits = logits.astype(jnp.float32)
    top = jnp.max(logits, axis=-1)
    exp = jnp.exp(logits - top[..., None])
    total = jnp.sum(exp, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # Not argmax: on CPU it costs more than all the rest of the forward pass. Of logits that are top
    # together, whose floor of exp is 1, each is right by its share: equal ones know nothing.
    correct = (target_logit >= top) / jnp.sum(jnp.floor(exp), axis=-1)
    statistics = top + jnp.log(total), target_logit, jnp.mean(logits, axis=-1), correct
    return statistics, (exp, total, targets)


def _statistics_backward(residuals, cotangents):
    exp, total, targets = residuals
    d_log_z, d_target, d_mean, _ = cotangents
    vocab_size = exp.shape[-1]
    is_target = (
        jax.lax.broadcasted_iota(targets.dtype, exp.shape, exp.ndim - 1) == targets[..., None]
    )
    softmax_part = exp * (d_log_z / total)[..., None]
    target_part = jnp.where(is_target, d_target[..., None], 0.0)
    return softmax_part + target_part + (d_mean / vocab_size)[..., None], None


_statistics.defvjp(_statistics_forward, _statistics_backward)


def _bytes(logits: Unprojected) -> float:
    """Of one device's part of all logits."""
    (rows, length, _), vocab_size = logits.x.shape, logits.table.shape[0]
    parts = shards("batch", rows) * shards("length", length) * shards("vocab", vocab_size)
    return 4 * rows * length * vocab_size / parts


# The loss is linear in what multiplies it, so its gradient is computed with it, while the logits of
# a chunk are there (as in Liger Kernel, Hsu et al. 2024): no product is computed twice.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_chunks(
    settings: LossSettings,
    logits: Unprojected,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> dict[str, Float[Array, ""]]:
    return _scan(settings, logits, targets, weights, gradient=False)[0]


def _in_chunks_backward(settings, gradient, cotangents):
    def scaled(leaf):
        return (cotangents["loss"] * leaf).astype(leaf.dtype)

    return jax.tree.map(scaled, gradient), None, None


_in_chunks.defvjp(lambda *whole: _scan(*whole, gradient=True), _in_chunks_backward)


def _scan(
    settings: LossSettings,
    logits: Unprojected,
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    *,
    gradient: bool,
) -> tuple[dict[str, Float[Array, ""]], Unprojected | None]:
    """The sums and, where asked for, the gradient of the loss.

    Each device takes its own tokens, those with a weight first: so the last chunks are skipped
    where no device has any of these left. P and S count the devices that share the rows and the
    length, n the tokens of one, and k those of a chunk.
    """
    rows, length, width = logits.x.shape
    x, targets, weights = (_by_device(array) for array in (logits.x, targets, weights))
    # Gathered over fsdp here, and not for each chunk.
    table, bias = constrain(logits.table.astype(x.dtype), "vocab"), logits.bias
    devices, size = x.shape[:2], -(-x.shape[2] // CHUNKS)
    order = jnp.argsort(weights == 0, axis=-1, stable=True)
    needed = jnp.max(jnp.sum(weights != 0, axis=-1))

    def add(totals, part):
        index, order, weights = part

        def computed():
            own_x = jnp.take_along_axis(x, order[..., None], axis=2)
            chunk = Unprojected(own_x, table, bias, logits.softcap)
            own_targets = jnp.take_along_axis(targets, order, axis=2)
            sums, (d_x, *of_parameters) = _chunk(settings, chunk, own_targets, weights)
            new = (sums, of_parameters if gradient else None)
            return jax.tree.map(jnp.add, totals, new), d_x if gradient else None

        def skipped():
            return totals, jnp.zeros((*order.shape, width), x.dtype) if gradient else None

        return jax.lax.cond(index * size < needed, computed, skipped)

    zeros = None
    if gradient:
        d_table = constrain(jnp.zeros((*devices, *table.shape)), "batch", "length", "vocab")
        zeros = [d_table, None if bias is None else jnp.zeros((*devices, *bias.shape))]
    none: dict[str, Array] = dict.fromkeys(METRICS, jnp.zeros(()))
    in_order = jnp.take_along_axis(weights, order, axis=-1)
    parts = jnp.arange(CHUNKS), _cut(order, size), _cut(in_order, size)
    (sums, of_parameters), d_x = jax.lax.scan(add, (none, zeros), parts)
    if not gradient:
        return sums, None
    d_x = jnp.moveaxis(d_x, 0, 2).reshape(*devices, -1, width)
    d_x = jnp.take_along_axis(d_x, jnp.argsort(order, axis=-1)[..., None], axis=2)
    d_table, d_bias = jax.tree.map(lambda parts: jnp.sum(parts, axis=(0, 1)), of_parameters)
    d_table = constrain(d_table, "vocab", "embed")
    return sums, Unprojected(_by_row(d_x, rows, length), d_table, d_bias, logits.softcap)


def _chunk(
    settings: LossSettings,
    part: Unprojected,
    targets: Int[Array, "P S k"],
    weights: Float[Array, "P S k"],
) -> tuple[dict[str, Float[Array, ""]], tuple[Array, Array, Array | None]]:
    """The sums of a chunk, x (P, S, k, D), and the gradient of its loss on each device.

    The gradients of parameters are float32, that of x has its dtype.
    """
    x, table, bias = part.x, part.table, part.bias
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    logits = constrain(product("PSkD,VD->PSkV", x, table), "batch", "length", None, "vocab")
    logits = logits if bias is None else logits + bias[None, None, None]

    def loss(logits):
        sums = _plain(settings, soft_cap(logits, part.softcap), targets, weights)
        return sums["loss"], sums

    d_logits, sums = jax.grad(loss, has_aux=True)(logits)
    d_bias = None if bias is None else jnp.sum(d_logits, axis=2)
    d_logits = d_logits.astype(x.dtype)
    d_x = product("PSkV,VD->PSkD", d_logits, table).astype(x.dtype)
    d_table = product("PSkV,PSkD->PSVD", d_logits, x)
    return sums, (constrain(d_x, "batch", "length"), d_table, d_bias)


def _cut(array: Shaped[Array, "P S n"], size: int) -> Shaped[Array, "chunks P S k"]:
    """Chunks of this size; the last one is filled up with zeros, tokens without a weight."""
    missing = CHUNKS * size - array.shape[-1]
    array = jnp.pad(array, ((0, 0), (0, 0), (0, missing)))
    return jnp.moveaxis(array.reshape(*array.shape[:2], CHUNKS, size), 2, 0)


def _by_device(array: Shaped[Array, "B T *D"]) -> Shaped[Array, "P S n *D"]:
    """Rows and length as the devices share them, so that what follows can stay on each."""
    rows, length, *rest = array.shape
    P, S = shards("batch", rows), shards("length", length)
    array = array.reshape(P, rows // P, S, length // S, *rest).swapaxes(1, 2)
    return constrain(array.reshape(P, S, -1, *rest), "batch", "length")


def _by_row(array: Float[Array, "P S n D"], rows: int, length: int) -> Float[Array, "B T D"]:
    P, S, _, width = array.shape
    array = array.reshape(P, S, rows // P, length // S, width).swapaxes(1, 2)
    return constrain(array.reshape(rows, length, width), "batch", "length")
