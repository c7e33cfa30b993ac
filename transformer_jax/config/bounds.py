"""The least and the most that a number of the config may be: BOUNDS is the list.

What relates several settings is checked where they meet: in `build`, and where its values are made.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

# Sizes and steps are counted in int32 on devices.
LARGEST = 2**31 - 1


class Interval(NamedTuple):
    """The numbers from `least` to `most`, without an end whose bracket is round.

    hint: what the message on another number says in addition.
    """

    least: float
    most: float = math.inf
    brackets: str = "[]"
    hint: str = ""

    def __str__(self) -> str:
        opening, closing = self.brackets
        if self.most == math.inf:
            return f"{'at least' if opening == '[' else 'more than'} {self.least}{self.hint}"
        return f"in {opening}{self.least}, {self.most}{closing}{self.hint}"

    def holds(self, number: float) -> bool:
        """Whether the number is one of them."""
        opening, closing = self.brackets
        ends = {self.least: opening == "[", self.most: closing == "]"}
        return self.least <= number <= self.most and ends.get(number, True)


_BY_INTERVAL = {
    Interval(0): """
        data.validation_size decode.extra_length evaluate.memory_length model.memory_length
        optimizer.learning_rate optimizer.final_learning_rate optimizer.warmup_steps
        optimizer.burn_in_steps optimizer.decay_steps optimizer.stable_steps optimizer.epsilon
        optimizer.weight_decay optimizer.clip_norm task.z_loss train.evaluate_every
        train.diagnostics_every train.sharpness_every checkpoint.every model.prefix_tokens
        task.no_object_weight
    """,
    Interval(1, 1024): "model.patch_size",
    Interval(0, hint=" (0: all tokens)"): "decode.top_k",
    Interval(1): """
        data.max_source_length data.max_target_length data.row_source_length
        data.row_target_length data.batch_size data.streams data.workers data.tokenizer.train_bytes
        model.num_layers model.num_encoder_layers model.num_decoder_layers model.d_model model.d_ff
        model.num_heads model.num_kv_heads model.head_dim model.vocab_size model.max_length
        model.max_distance model.num_queries model.base_width model.base_depth data.channels
        model.resnet_width model.window
        task.mean_span_length train.steps train.accumulation_steps train.log_every
        checkpoint.keep_last checkpoint.average_last evaluate.batch_size
        decode.beam_size decode.num_samples
    """,
    Interval(0, 1, "[)"): """
        model.dropout_rate model.embedding_dropout_rate model.attention_dropout_rate
        model.feed_forward_dropout_rate task.label_smoothing optimizer.beta1 optimizer.beta2
        train.ema_decay
    """,
    Interval(0, 1, "(]"): """
        data.train_share task.mask_rate model.norm_epsilon model.rotary_fraction
    """,
    Interval(0, 1, "(]", " (1: all tokens)"): "decode.top_p",
    Interval(0, 2): "model.depth_exponent",
    Interval(1, 2): "optimizer.weight_decay_power",
    Interval(0, 10, "(]"): "model.attention_gain",
    Interval(0, math.inf, "(]"): """
        model.embedding_scale model.init_scale train.spike_threshold model.attention_softcap
        model.logits_softcap optimizer.beta2_half_life
    """,
    Interval(1, math.inf, "(]"): "model.rotary_base model.window_rotary_base",
    Interval(
        0, math.inf, "(]", '; for the likeliest token at each place set decode.method="greedy"'
    ): "decode.temperature",
    # Far beyond, the powers of lengths overflow, and all hypotheses have the same score.
    Interval(-10, 10): "decode.length_penalty",
    Interval(0, 2**32 - 1): "seed data.seed decode.seed",  # of jax.random.key
    # The libraries allocate a table of this size before they look at the texts.
    Interval(1, 2**24): "data.tokenizer.vocab_size",
}
BOUNDS: Mapping[str, Interval] = {
    key: interval for interval, keys in _BY_INTERVAL.items() for key in keys.split()
}


def bounds(key: str, kind: type) -> Interval:
    """What the numbers of this key may be."""
    limits = BOUNDS.get(key, Interval(-LARGEST))
    return limits._replace(most=LARGEST) if kind is int and limits.most == math.inf else limits
