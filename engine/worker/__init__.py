"""What a device does: jobs in, values and time stamps out."""
