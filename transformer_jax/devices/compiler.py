"""What XLA is told, in addition to the program, when a training step is compiled."""

from jax.sharding import Mesh

# By platform. Preflight compiles the same step, and so with the same options; `docs/devices.md` has
# its figures.
OPTIONS: dict[str, dict[str, str]] = {
    "tpu": {
        # Otherwise XLA turns a product with a weight that is sharded over fsdp into a loop over its
        # shards (windowed einsum), so that products overlap with exchanges. Each iteration reads
        # and writes the whole sum so far: of bert_large's traffic these were 153 of 234 GB, and
        # with this option 21% of all FLOPs become 40%. XLA gathers the whole weight instead, which
        # it can still start before the layer that needs it, but no more in the midst of a product.
        "xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000",
    }
}


def options(mesh: Mesh) -> dict[str, str]:
    """The options for the devices of a mesh."""
    return OPTIONS.get(mesh.devices.flat[0].platform, {})
