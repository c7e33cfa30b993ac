"""What a recurrent model takes of memory, by arithmetic on its config: so at any size, untraced."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS, chunks
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.settings import ARCHITECTURES, Stack
from transformer_jax.models.recurrent.cells import CELLS
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.process.machine import Need

_FLOAT = 4  # bytes of a float32
_SIDES: dict[Stack, str] = {"encoder": "source", "decoder": "target"}


@dataclasses.dataclass(frozen=True)
class RecurrentNeeds:
    """See `family.Needs`."""

    config: RecurrentConfig

    def parameters(self) -> list[Need]:
        """Tables and kernels alone, as `least`: biases add a thousandth or so."""
        config, tied = self.config, TIED_EMBEDDINGS[self.config.tied_embeddings]
        tables = 1 if tied.tables or len(self._stacks) == 1 else 2
        tables += not tied.logits and not HEADS[config.head].labels
        size = _FLOAT * tables * config.vocab_size * config.d_model
        found = [Need("parameters", size, size, self._settings("vocab_size", "d_model"))]
        for stack in self._stacks:
            size = _FLOAT * self._kernels(stack)
            settings = self._settings(f"num_{stack}_layers", "d_model")
            found.append(Need("parameters", size, size, settings))
        return found

    def constants(self, length: int) -> list[Need]:
        """None: there are no positions."""
        return []

    def activations(self, rows: int, lengths: Mapping[str, int], *, training: bool) -> list[Need]:
        """See `family.Needs`. Attention counts apart from all other activations."""
        config, found = self.config, []
        for stack in self._stacks:
            layers, length = self._directions(stack), lengths[_SIDES[stack]]
            # Products with the input; in training also each step's gates and states.
            gates = len(CELLS[config.row.cell].bias) + 1
            token = config.d_model * _FLOAT * (3 * gates if training else gates)
            least = rows * length * config.d_model * _FLOAT
            likely = rows * length * token * (layers if training else 1)
            settings = self._settings(f"num_{stack}_layers", "d_model")
            found.append(Need("activations", least, likely, settings))
        target = lengths.get("target", 0)
        if config.row.attends or config.row.tape:
            seen = lengths["source"] if config.row.attends else target
            met = rows * seen * config.d_model * config.compute_dtype.itemsize
            # A tape is computed again step by step.
            steps = target if training and config.row.attends and config.remat == "none" else 1
            found.append(Need("attention", met, met * (3 + steps), self._settings("d_model")))
        outputs, length = self._outputs(), lengths[_SIDES[self._stacks[-1]]]
        size = rows * length * outputs.least
        size /= chunks(size)
        # What is kept of them for the backward pass, and the gradient.
        found.append(outputs._replace(least=size, likely=(3 if training else 2) * size))
        return found

    def decoding(
        self, rows: int, hypotheses: int, prompt: int, length: int, *, room: int, beam: bool
    ) -> list[Need]:
        """See `family.Needs`. States do not grow; a tape does, and is copied then."""
        config, count = self.config, rows * hypotheses
        state = config.num_decoder_layers * config.d_model * _FLOAT
        if config.row.tape:
            states, read = 3 * state, prompt - 1
            least = count * (states * (room + read) + state)
            likely = (3 if beam else 2) * count * states * (length + read)
        else:
            least = count * CELLS[config.row.cell].states * state
            likely = 3 * least
        if config.source_width is not None:  # keys and values of each token, or the last states
            kept = rows * config.source_width * _FLOAT
            if config.row.attends:
                width = config.d_model + config.source_width
                kept = rows * prompt * width * config.compute_dtype.itemsize
            least, likely = least + kept, likely + kept
        settings = self._settings("num_decoder_layers", "d_model")
        found = [Need("decoding cache", least, likely, settings)]
        tokens = count * length * _FLOAT
        found.append(Need("decoded tokens", tokens, (4 if beam else 1) * tokens, {}))
        outputs = self._outputs()
        logits = count * outputs.least
        found.append(outputs._replace(least=logits, likely=3 * logits))
        if beam:  # probabilities and ids of each hypothesis' likeliest continuations
            width = min(hypotheses + 1, config.vocab_size)
            continuations = count * width * 2 * _FLOAT
            found.append(Need("beam candidates", continuations, 2 * continuations, {}))
        return found

    @property
    def _stacks(self) -> tuple[Stack, ...]:
        return ARCHITECTURES[self.config.architecture]

    def _layers(self, stack: Stack) -> int:
        config = self.config
        return config.num_encoder_layers if stack == "encoder" else config.num_decoder_layers

    def _directions(self, stack: Stack) -> int:
        """Layers of the model's width: one that reads in both directions counts twice."""
        layers = self._layers(stack)
        if stack == "decoder" or self.config.source_width is None:  # else each has half the width
            return layers
        return layers + sum(self.config.both_ways(layer + 1) for layer in range(layers))

    def _kernels(self, stack: Stack) -> int:
        """Values of the kernels of a stack; layers that are alike are not looped over."""
        config = self.config
        layers, width, source = self._layers(stack), config.d_model, config.source_width or 0
        if stack == "decoder":
            if config.row.tape:
                gates = len(CELLS[config.row.cell].bias)
                return layers * width**2 * (2 * gates + 3)
            size = layers * self._layer(width + source, width)
            if config.row.attends:
                size += width * (width + source)
            if config.row.bridge:
                size += source // 2 * width
            return size + (2 * (2 * width + source) * width if config.row.maxout else 0)
        if config.architecture == "encoder_only":
            return layers * 2 * self._layer(width, width // 2)
        if config.row.bidirectional is None:
            return 2 * self._layer(width, width) + (layers - 1) * 2 * self._layer(2 * width, width)
        both = min(config.row.bidirectional, layers)
        size = 2 * self._layer(width, width) + (both - 1) * 2 * self._layer(2 * width, width)
        if layers == both:
            return size
        return (
            size + self._layer(2 * width, width) + (layers - both - 1) * self._layer(width, width)
        )

    def _layer(self, inputs: int, width: int) -> int:
        cell = CELLS[self.config.row.cell]
        return width * (inputs * len(cell.bias) + width * sum(cell.kernels.values()))

    def _outputs(self) -> Need:
        """Logits of one token."""
        if HEADS[self.config.head].labels:
            size = _FLOAT * self.config.num_labels
            return Need("logits", size, size, {"labels": self.config.num_labels})
        size = _FLOAT * self.config.vocab_size
        return Need("logits", size, size, self._settings("vocab_size"))

    def _settings(self, *names: str) -> dict[str, Any]:
        config = self.config
        found = {f"model.{name}": getattr(config, name) for name in names}
        for name in [name for name in names if name.endswith("_layers")]:
            if config.num_encoder_layers == config.num_decoder_layers:
                found["model.num_layers"] = found.pop(f"model.{name}")
        return found
