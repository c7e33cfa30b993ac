"""What does a decoder that begins with zeros do to the gradients of a DETR?"""

SUBJECT = "initialisation"
