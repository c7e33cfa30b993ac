"""Which residual schemes and positions learn hops, orders, sums and grammars, from which depth?"""

SUBJECT = "attention"
