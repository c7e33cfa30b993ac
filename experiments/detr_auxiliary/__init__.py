"""What do losses of the layers below the last bring a DETR?"""

SUBJECT = "models"
