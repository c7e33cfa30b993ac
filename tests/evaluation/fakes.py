"""What the tests of decoding share."""

import jax
import jax.numpy as jnp
import numpy as np

PAD, EOS, BOS = 0, 1, 2


def padded(rows, length):
    return np.array([[*row, *[PAD] * (length - len(row))] for row in rows], np.int32)


def own_history(tokens, ancestors):
    """What each hypothesis has read, from the rows of its sentence that hold it."""
    if ancestors is None:
        return tokens
    ancestors = ancestors[:, :, : tokens.shape[1]]
    rows = tokens.reshape(ancestors.shape)
    return jnp.take_along_axis(rows, ancestors, axis=1).reshape(tokens.shape)


def counting(step, calls):
    """The step, which adds its index to the calls each time that it runs."""

    def counted(*arguments):
        *_, index, _ = arguments
        jax.debug.callback(lambda index: calls.append(int(index)), index)
        return step(*arguments)

    return counted
