"""When does a model generalise that has long fitted its data, by weight decay and scheme?"""

SUBJECT = "initialisation"
