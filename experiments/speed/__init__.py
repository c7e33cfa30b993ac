"""How fast are training and decoding, next to peers on the same work and to the machine's limit?"""

SUBJECT = "tools"
