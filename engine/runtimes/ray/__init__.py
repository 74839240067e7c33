"""Workers as Ray actors, on this machine or on several."""
