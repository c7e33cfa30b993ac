"""How many steps do optimizers save over AdamW, all tuned alike, and fewer in a wider model?"""

SUBJECT = "optimizers"
