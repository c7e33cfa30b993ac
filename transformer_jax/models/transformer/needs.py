"""What a Transformer takes of memory, by arithmetic on its config: so at any size, untraced."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS, chunks
from transformer_jax.models.layers.feed_forward import ACTIVATIONS
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.layers.stack import REMAT
from transformer_jax.models.transformer.config import TransformerConfig, depth, scheme, stacks
from transformer_jax.models.transformer.schemes import Depth, Stack
from transformer_jax.process.machine import Need

_FLOAT = 4  # bytes of a float32
_SIDES: dict[Stack, str] = {"encoder": "source", "decoder": "target"}


@dataclasses.dataclass(frozen=True)
class TransformerNeeds:
    """See `family.Needs`."""

    config: TransformerConfig

    def parameters(self) -> list[Need]:
        """Tables and kernels alone, as `least`: norms and biases add a thousandth or so."""
        config, tied = self.config, TIED_EMBEDDINGS[self.config.tied_embeddings]
        tables = 1 if tied.tables or len(stacks(config)) == 1 else 2
        tables += not tied.logits and not HEADS[config.head].labels
        found = [self._need("parameters", tables * config.vocab_size, "vocab_size", "d_model")]
        if POSITIONS[config.positions].learned:
            size = len(stacks(config)) * config.max_length
            found.append(self._need("parameters", size, "max_length", "d_model"))
        return found + [need for stack in stacks(config) for need in self._layers(stack)]

    def constants(self, length: int) -> list[Need]:
        """Sinusoids, which are float64 on their way, and the scales of sublayers."""
        found = []
        if POSITIONS[self.config.positions].vectors:
            found.append(self._need("the table of positions", 2 * length, "d_model"))
        for stack in stacks(self.config):
            row, at = scheme(self.config, stack), depth(self.config, stack)
            if row.skip or row.branch or row.gain:
                size = _FLOAT * at.layers
                settings = self._settings(f"num_{stack}_layers")
                found.append(Need("the scales of sublayers", size, size, settings))
        return found

    def activations(self, rows: int, lengths: Mapping[str, int], *, training: bool) -> list[Need]:
        """See `family.Needs`. Weights of attention count apart from all other activations."""
        config, found = self.config, []
        for stack in stacks(config):
            at, length = depth(config, stack), lengths[_SIDES[stack]]
            tokens, stream = rows * length, rows * length * config.d_model
            layer = tokens * self._token(at)
            names = REMAT[config.remat]
            kept = layer if names is None else tokens * self._kept(at, names)
            likely = (at.layers * kept if training else 0) + layer
            # Each layer's input, in the products' dtype, has a part in the gradient of its kernels.
            least = (at.layers if training else 1) * stream * config.compute_dtype.itemsize
            settings = self._settings(f"num_{stack}_layers", "d_model", "d_ff")
            found.append(Need("activations", least, likely, settings))
            if KERNELS[config.attention_kernel].holds_weights:
                found.append(self._weights(stack, rows, lengths, training))
        if config.memory_length:
            places = rows * config.num_decoder_layers * config.memory_length
            size = places * config.d_model * config.compute_dtype.itemsize
            settings = self._settings("memory_length", "num_decoder_layers", "d_model")
            found.append(Need("memory of what was read", size, 2 * size, settings))
        outputs, length = self._outputs(), lengths[_SIDES[stacks(config)[-1]]]
        size = rows * length * outputs.least
        size /= chunks(size)
        # What is kept of them for the backward pass, and the gradient.
        found.append(outputs._replace(least=size, likely=(3 if training else 2) * size))
        return found

    def decoding(
        self, rows: int, hypotheses: int, prompt: int, length: int, *, room: int, beam: bool
    ) -> list[Need]:
        """See `family.Needs`. The cache is copied when it grows, which it may never do."""
        config = self.config
        token = 2 * config.kv_heads * config.head_dim * config.compute_dtype.itemsize
        layers = config.num_decoder_layers * token
        # A decoder alone keeps the prompt, short of its last token, with every hypothesis.
        alone = len(stacks(config)) == 1
        slot, read = rows * hypotheses * layers, prompt - 1 if alone else 0
        shared = 0 if alone else rows * layers * prompt
        least, likely = slot * (room + read) + shared, 2 * slot * (length + read) + shared
        heads = "num_heads" if config.num_kv_heads is None else "num_kv_heads"
        settings = self._settings("num_decoder_layers", heads, "head_dim")
        found = [Need("decoding cache", least, likely, settings)]
        apart = config.compute_dtype.itemsize / _FLOAT
        for need in self._layers("decoder"):
            found.append(need._replace(name="layers apart", likely=apart * need.likely, least=0))
        # Each hypothesis of a beam looks at the rows of all.
        weights = rows * hypotheses * config.num_heads * (hypotheses if beam else 1) * _FLOAT
        settings = self._settings("num_heads")
        least, likely = weights * (room + read), 3 * weights * (length + read)
        found.append(Need("attention weights", least, likely, settings))
        tokens = rows * hypotheses * length * _FLOAT
        found.append(Need("decoded tokens", tokens, (4 if beam else 1) * tokens, {}))
        outputs = self._outputs()
        logits = rows * hypotheses * outputs.least
        found.append(outputs._replace(least=logits, likely=3 * logits))
        if beam:  # probabilities and ids of each hypothesis' likeliest continuations
            width = min(hypotheses + 1, config.vocab_size)
            continuations = rows * hypotheses * width * 2 * _FLOAT
            found.append(Need("beam candidates", continuations, 2 * continuations, {}))
        return found

    def _layers(self, stack: Stack) -> list[Need]:
        """The kernels of a stack's layers."""
        config, layers, at = self.config, f"num_{stack}_layers", depth(self.config, stack)
        heads = 2 * (config.num_heads + config.kv_heads)
        attention = at.layers * _attentions(at) * heads * config.head_dim
        hidden = at.layers * (3 if ACTIVATIONS[config.activation].gated else 2) * config.d_ff
        return [
            self._need("parameters", attention, layers, "d_model", "num_heads", "head_dim"),
            self._need("parameters", hidden, layers, "d_model", "d_ff"),
        ]

    def _weights(self, stack: Stack, rows: int, lengths: Mapping[str, int], training: bool) -> Need:
        """Weights of attention: of one layer for certain, since they are results of products."""
        config, at = self.config, depth(self.config, stack)
        length = lengths[_SIDES[stack]]
        pairs = rows * config.num_heads * length * (length + config.memory_length)
        if _attentions(at) == 2:
            crossed = rows * config.num_heads * length * lengths["source"]
        else:
            crossed = 0
        layer = (pairs + crossed) * _FLOAT
        kept = at.layers * layer if training and config.remat == "none" else 0
        settings = self._settings("num_heads", f"num_{stack}_layers")
        return Need("attention weights", pairs * _FLOAT, kept + 2 * layer, settings)

    def _outputs(self) -> Need:
        """Logits of one token."""
        if HEADS[self.config.head].labels:
            size = _FLOAT * self.config.num_labels
            return Need("logits", size, size, {"labels": self.config.num_labels})
        size = _FLOAT * self.config.vocab_size
        return Need("logits", size, size, self._settings("vocab_size"))

    def _token(self, at: Depth) -> float:
        """Bytes that the backward pass of one layer needs of a token when it keeps everything."""
        config, itemsize = self.config, self.config.compute_dtype.itemsize
        inner = config.num_heads * config.head_dim
        gated = ACTIVATIONS[config.activation].gated
        hidden = (3 if gated else 2) * config.d_ff * itemsize
        stream = 3 * len(at.kinds) * config.d_model * _FLOAT
        return stream + 4 * _attentions(at) * inner * itemsize + hidden

    def _kept(self, at: Depth, names: tuple[str, ...]) -> float:
        """Bytes of a layer's input and of what it keeps under these names, of a token."""
        config, itemsize = self.config, self.config.compute_dtype.itemsize
        attended = _attentions(at) * config.num_heads * config.head_dim * itemsize
        hidden, gated = config.d_ff * itemsize, ACTIVATIONS[config.activation].gated
        sizes = dict.fromkeys(("query", "heads"), attended)
        sizes |= dict.fromkeys(("key", "value"), attended * config.kv_heads / config.num_heads)
        sizes |= {"up": hidden, "gate": gated * hidden}
        sizes["stream"] = len(at.kinds) * config.d_model * _FLOAT
        return config.d_model * _FLOAT + sum(sizes[name] for name in names)

    def _need(self, name: str, count: float, *settings: str) -> Need:
        """Of `count` vectors of the model's width, in float32."""
        size = count * self.config.d_model * _FLOAT
        return Need(name, size, size, self._settings(*settings))

    def _settings(self, *names: str) -> dict[str, Any]:
        config = self.config
        found = {f"model.{name}": getattr(config, name) for name in names}
        for name in [name for name in names if name.endswith("_layers")]:
            if config.num_encoder_layers == config.num_decoder_layers:
                found["model.num_layers"] = found.pop(f"model.{name}")
        return found


def _attentions(at: Depth) -> int:
    return len(at.kinds) - 1
