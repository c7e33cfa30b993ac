"""DETR with a ResNet-50 on COCO (Carion et al. 2020), from weights that were imported.

    ./launch.sh import --checkpoint=FOLDER --workdir=runs/detr      # facebook/detr-resnet-50
    ./launch.sh train --config=configs/detr_r50.py --workdir=runs/detr_r50 --config.data.dir=COCO \
        --config.checkpoint.init_from=runs/detr

Not run yet: no time, no score; AP 42.0 is published for 500 epochs of COCO. That is more than this
pipeline holds: the pixels of images are kept as they are fitted, 109 GB at 480x640. So it is for
smaller sets that are fine-tuned on, and for what memory and time such a model needs (`./launch.sh
preflight`). `init_from` takes all but the matrix of classes, which starts anew: the imported one
has 91 numbers, 11 of them of no class, and COCO's files name 80. A ResNet without imported weights
does not train: its norms are fixed. Differences from the paper: matrices alone decay, the rate
falls by a cosine, images are not cropped and have one size in training.
"""

from transformer_jax.configs import default

# The norms and the first convolutions stay as they are; the others make a tenth of the steps.
_STEM = "embedding/stem"
_GROUPS = (
    (f"{_STEM}/*/scale", 0.0, 0.0),
    (f"{_STEM}/*/offset", 0.0, 0.0),
    (f"{_STEM}/entry/*", 0.0, 0.0),
    (f"{_STEM}/stage_0*", 0.0, 0.0),
    (f"{_STEM}/stage_*", 0.1, 1e-4),
)


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "coco"
    config.data.train = ("annotations/instances_train2017.json",)
    config.data.validation = ("annotations/instances_val2017.json",)
    config.data.test = ()
    config.data.image_size = (800, 1312)
    config.data.image_fit = "inside"
    config.data.augment = ("flip",)
    config.data.max_target_length = 100
    config.data.packing = False
    config.data.batch_size = 64

    config.model.architecture = "encoder_set"
    config.model.residual = "post_ln"
    config.model.d_model = 256
    config.model.d_ff = 2048
    config.model.positions = "sine_2d"
    config.model.positions_in = "attention"
    config.model.num_queries = 100
    config.model.stem = "resnet"
    config.model.patch_size = 32
    config.model.prefix_tokens = 0
    config.model.pixel_mean = (0.485, 0.456, 0.406)
    config.model.pixel_std = (0.229, 0.224, 0.225)
    config.model.attention_dropout_rate = 0.1
    config.model.feed_forward_dropout_rate = 0.1

    config.task.name = "detection"
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 1e-4
    config.optimizer.clip_norm = 0.1
    config.optimizer.groups = _GROUPS

    config.train.accumulation_steps = 2  # a step as a whole needs 15.9 GiB of each of 16 v5e chips
    config.train.steps = 10_000
    config.train.evaluate_every = 1000
    config.checkpoint.every = 1000
    config.evaluate.batch_size = 16
    return config
