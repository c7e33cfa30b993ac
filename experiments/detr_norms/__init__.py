"""Where do the norms of a DETR belong, and which residual schemes train it?"""

SUBJECT = "norms"
