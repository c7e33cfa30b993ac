"""How much weight decay does a model ask for that reads the same text again and again?"""

SUBJECT = "data"
