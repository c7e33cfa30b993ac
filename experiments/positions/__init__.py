"""Do sinusoidal, learned and rotary positions train alike, and which extrapolate?"""

SUBJECT = "attention"
