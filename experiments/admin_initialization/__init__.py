"""Which parts of Admin's initialisation matter?"""

SUBJECT = "initialisation"
