"""The shape of one recurrent model: frozen, checked when made; RECURRENCES is the list of them."""

import dataclasses

from transformer_jax.models.layers.settings import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrence:
    """One row.

    Attributes:
      cell: a key of `CELLS`.
      architectures: what it is made for.
      bidirectional: the layers of an encoder that read in both directions, from the bottom; None:
        all of them. A decoder has none.
      attends: whether the decoder looks at all of the encoder's output, by additive attention from
        the bottom layer's state before. Otherwise all layers and steps see the encoder's last
        states, one of each direction.
      bridge: whether the decoder's bottom layer starts from tanh(W h + b) of the state with which
        the encoder, reading backwards, ends; otherwise from zeros.
      maxout: whether the readout is the larger of two sums of state, token before and context, at
        each channel (Goodfellow et al. 2013); otherwise the top layer's state.
      residual_from: the layer, counted from 1, from which on a layer's input is added to its
        output; None: none.
      tape: whether a state is what is read, by attention, from a tape of all states before.
    """

    cell: str
    architectures: tuple[str, ...] = ("encoder_decoder",)
    bidirectional: int | None = None
    attends: bool = False
    bridge: bool = False
    maxout: bool = False
    residual_from: int | None = None
    tape: bool = False


RECURRENCES = {
    # Bahdanau et al. 2014 (1409.0473), appendix A. The readout sees the new state, as in equation 4
    "rnnsearch": Recurrence(cell="gru_reset_first", attends=True, bridge=True, maxout=True),
    # The same without attention, after Cho et al. 2014 (1406.1078)
    "rnnencdec": Recurrence(cell="gru_reset_first", bridge=True, maxout=True),
    # Wu et al. 2016 (1609.08144), section 3: 8 + 8 layers of 1024
    "gnmt": Recurrence(cell="lstm", bidirectional=1, attends=True, residual_from=3),
    # Hochreiter and Schmidhuber 1997; as an encoder in both directions, each of half the width
    "lstm": Recurrence(cell="lstm", architectures=("encoder_only", "decoder_only")),
    # Cho et al. 2014, in the form of cuDNN and PyTorch; an encoder likewise
    "gru": Recurrence(cell="gru", architectures=("encoder_only", "decoder_only")),
    # Cheng, Dong and Lapata 2016 (1601.06733), section 3.1
    "lstmn": Recurrence(cell="lstm", architectures=("decoder_only",), tape=True),
}

_MOST_LAYERS = 1_000  # of a stack; each is traced and compiled by itself


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """Sizes and choices of one model; `config.kinds.CHOICES` has the table of each choice.

    `d_model` is the width of each layer's state as well.

    Raises:
      ValueError: a recurrence or carried states that do not fit the architecture, an odd width of
        an encoder alone, or more layers than can be compiled.
    """

    recurrence: str
    stateful: bool
    init_scale: float | None

    # The norm of a head.
    norm = "layer_norm"
    norm_epsilon = 1e-5

    def __post_init__(self):
        deepest = max(self.num_encoder_layers, self.num_decoder_layers)
        if deepest > _MOST_LAYERS:
            raise ValueError(
                f"model.num_layers={deepest} (or that of one stack) is more than {_MOST_LAYERS}: "
                "recurrent layers are compiled one by one"
            )
        if self.architecture not in self.row.architectures:
            fitting = [
                name for name, row in RECURRENCES.items() if self.architecture in row.architectures
            ]
            raise ValueError(
                f"model.recurrence={self.recurrence!r} is for model.architecture="
                f"{' or '.join(map(repr, self.row.architectures))}; with {self.architecture!r} "
                f"set it to {' or '.join(map(repr, fitting))}"
            )
        if self.architecture == "encoder_only" and self.d_model % 2:
            raise ValueError(
                f"model.d_model={self.d_model} is odd, and an encoder alone has half of it in each "
                "direction"
            )
        if self.stateful and (self.architecture != "decoder_only" or self.row.tape):
            raise ValueError(
                "model.stateful=True carries the last states of a decoder alone, as with "
                "model.architecture='decoder_only' and model.recurrence='lstm' or 'gru', got "
                f"{self.architecture!r} and {self.recurrence!r}: set it to False"
            )
        if self.row.tape and self.remat != "none":
            raise ValueError(
                f"model.remat={self.remat!r} has no effect with model.recurrence="
                f"{self.recurrence!r}, whose steps are always computed again: set it to 'none'"
            )

    @property
    def row(self) -> Recurrence:
        """What the model is."""
        return RECURRENCES[self.recurrence]

    def both_ways(self, layer: int) -> bool:
        """Whether this layer of the encoder, counted from 1, reads in both directions."""
        return self.row.bidirectional is None or layer <= self.row.bidirectional

    def adds_input(self, layer: int) -> bool:
        """Whether the input of this layer, counted from 1, is added to its output."""
        return self.row.residual_from is not None and layer >= self.row.residual_from

    def divides(self, devices: int) -> bool:
        """Whether so many devices can share the width of each layer: states are never divided."""
        return devices == 1
