"""Blood cells on photographs, BCCD in Pascal VOC's format: a smoke test, whose score says nothing.

    ./launch.sh train --config=configs/detr_bccd.py --workdir=runs/detr_bccd --config.data.dir=BCCD

Its 364 images of 640 x 480 pixels (https://github.com/Shenggan/BCCD_Dataset, MIT) are far too few
for a DETR from scratch. Tried for 40 steps (warm-up 10): the loss falls from 25.5 to 19.5, and the
two boxes without area are reported.
"""

from transformer_jax.configs import default, detr_shapes


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = detr_shapes.get_config(arg)
    config.data.source = "voc"
    config.data.name = ""
    config.data.train = ("ImageSets/Main/train.txt",)
    config.data.validation = ("ImageSets/Main/val.txt",)
    config.data.test = ("ImageSets/Main/test.txt",)
    config.data.image_size = (240, 320)
    config.data.channels = 3
    config.data.augment = ("flip", "colour")
    # There are up to 30 boxes in an image.
    config.data.max_target_length = 30
    config.data.batch_size = 8
    config.model.patch_size = 16
    config.model.num_queries = 40
    config.train.steps = 300
    config.train.evaluate_every = 100
    config.checkpoint.every = 100
    config.evaluate.batch_size = 8
    return config
