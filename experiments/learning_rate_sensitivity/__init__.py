"""How much does the learning rate matter by size, and can it be foretold which one fails?"""

SUBJECT = "rates"
