"""What do states that are carried from row to row bring a small LSTM language model?"""

SUBJECT = "data"
