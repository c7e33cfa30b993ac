"""Functions that run operation by operation, so that tests compile little."""

import jax

# A decorator of what is called once, as draws of parameters: an operation is compiled once for all
# programs of a process, and what two of them have in common is rounded alike in both. Of gradients
# and of what loops over time or steps, compiled programs take less time.
stepwise = jax.disable_jit()
