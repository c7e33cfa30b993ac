"""Do losses jump because Adam's second moments lag behind, or because curvature is too large?"""

SUBJECT = "optimizers"
