"""Functions that run operation by operation, so that tests compile little."""

import jax

# A decorator of what is called once or twice and has many operations of the same shapes: draws of
# parameters, and optimizers. An operation is compiled once for all programs of a process; and what
# two programs have in common is rounded alike in both.
stepwise = jax.disable_jit()
