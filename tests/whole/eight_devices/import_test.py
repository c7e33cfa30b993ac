"""A model of Hugging Face, imported onto a mesh."""

import jax
import numpy as np

from tests.tools.convert import llama
from transformer_jax.config.build import built
from transformer_jax.config.load import load
from transformer_jax.tools.convert import FAMILIES, commands, safetensors, tensors

MESHES = {"one": (1, 1, 1), "eight": (2, 2, 2)}


def test_an_imported_model_is_the_same_on_a_mesh(tmp_path):
    """Each device is given its slice, as the run wants it, and reads no whole stack."""
    folder = llama.checkpoint(tmp_path / "theirs")
    assert commands.import_(tmp_path / "ours", str(folder)) == 0
    found = {name: _logits(tmp_path / "ours", folder, name) for name in MESHES}
    np.testing.assert_allclose(found["eight"], found["one"], atol=1e-5 * np.abs(found["one"]).max())


def _logits(workdir, folder, mesh):
    names = ("data", "fsdp", "tensor")
    changes = {f"mesh.{name}": size for name, size in zip(names, MESHES[mesh], strict=True)}
    changes["data.batch_size"] = 8
    config = load(str(workdir / "config.json"), changes)
    with jax.default_matmul_precision("highest"), built(config, workdir) as run:
        abstract = run.abstract_state().params
        given = tensors.named(safetensors.find(folder), FAMILIES["llama"])
        params = tensors.read(given, FAMILIES["llama"], run.model.config, abstract)
        same = jax.tree.map(lambda x, y: x.sharding == y.sharding, params, abstract)
        assert all(jax.tree.leaves(same))
        shape = (8, 6)
        batch = {
            "targets": np.random.default_rng(0).integers(4, 12, shape).astype(np.int32),
            "targets_segment_ids": np.ones(shape, np.int32),
            "targets_positions": np.broadcast_to(np.arange(6, dtype=np.int32), shape),
        }
        return np.asarray(run.outputs(params, batch, None, ())[0].arrays())
