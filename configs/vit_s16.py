"""ViT-S/16 on ImageNet-1k (Dosovitskiy et al. 2021), by the recipe of Beyer et al. 2022.

    ./launch.sh train --config=configs/vit_s16.py --workdir=runs/vit_s16 --config.data.dir=FOLDER

FOLDER holds `train/LABEL/FILE` and `validation/LABEL/FILE`.

Not run yet: no time, no score; 76.5 % are published for 90 epochs. ImageNet's training split is
more than this pipeline holds: the pixels of images are kept as they are fitted, 193 GB. So it is
for a part of it, for other folders, and for what memory and time such a model needs
(`./launch.sh preflight`). Differences from the paper: neither RandAugment nor mixup; images are
fitted to 224x224 before the crop, whatever their aspect.
"""

from transformer_jax.configs import default, vit_digits


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = vit_digits.get_config(arg)

    config.data.source = "folder"
    config.data.test = ()
    config.data.image_size = (224, 224)
    config.data.channels = 3
    config.data.augment = ("crop", "flip")
    config.data.batch_size = 1024

    config.model.num_layers = 12
    config.model.d_model = 384
    config.model.num_heads = 6
    config.model.d_ff = 1536
    config.model.activation = "gelu_tanh"
    config.model.norm_epsilon = 1e-6
    config.model.patch_size = 16
    config.model.dtype = "bfloat16"

    config.optimizer.name = "adamw_independent"
    config.optimizer.warmup_steps = 10_000

    config.train.steps = 112_603
    config.train.evaluate_every = 5000
    config.checkpoint.every = 5000
    return config
