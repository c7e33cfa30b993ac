"""Where do gradients vanish: in the encoder, in the decoder, and under which norms?"""

SUBJECT = "norms"
