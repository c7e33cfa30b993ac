"""Where does a DETR have to be told the places of patches and queries?"""

SUBJECT = "attention"
