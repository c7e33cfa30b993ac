"""Does the gradient of a Transformer's last layer depend on depth before it is trained?"""

SUBJECT = "initialisation"
