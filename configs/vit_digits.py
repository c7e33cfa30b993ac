"""A Vision Transformer (Dosovitskiy et al. 2021) on scikit-learn's handwritten digits, 8x8 pixels.

    ./launch.sh train --config=configs/vit_digits.py --workdir=runs/vit_digits

The baseline of Beyer et al. 2022 in small: no class token, sines of rows and columns, the mean over
all patches, of 2x2 pixels. A shift by one pixel makes up for the 1,257 images to train on; the
other 180 and 360 of the 1,797 are of validation and test.

Time: 3 min 16 s of CPU time, mean of 3, compiling included (2 shared cores, 2026-11-27).
Score on the 360 test images: accuracy 0.9667, 0.9556 and 0.9611 with seeds 0, 1 and 2 (mean 0.9611,
standard error of one 0.010); on the 180 of validation 0.9667, 0.9889 and 0.9833.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "digits"
    config.data.image_size = (8, 8)
    config.data.channels = 1
    config.data.augment = ("shift",)
    config.data.packing = False
    config.data.batch_size = 128

    config.model.architecture = "encoder_only"
    config.model.residual = "pre_ln"
    config.model.num_layers = 4
    config.model.d_model = 64
    config.model.num_heads = 4
    config.model.d_ff = 256
    config.model.activation = "gelu"
    config.model.patch_size = 2
    config.model.prefix_tokens = 0
    config.model.positions = "sincos_2d"
    config.model.dropout_rate = 0.0
    config.model.embedding_dropout_rate = 0.0

    config.task.name = "image_classification"
    config.task.label_smoothing = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 1e-4
    config.optimizer.clip_norm = 1.0

    config.train.steps = 1000
    config.train.evaluate_every = 200
    config.checkpoint.every = 200
    return config
