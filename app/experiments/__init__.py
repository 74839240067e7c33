"""What SpecScope measures for a command, a call in Python and a tab of the page alike."""
