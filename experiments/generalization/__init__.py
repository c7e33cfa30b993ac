"""Do residual scheme and position kind decide what a Transformer generalises to on SCAN?"""

SUBJECT = "data"
