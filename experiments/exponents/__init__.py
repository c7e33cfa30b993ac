"""Which exponents of scaling are there on data whose entropy and exponent are known?"""

SUBJECT = "data"
