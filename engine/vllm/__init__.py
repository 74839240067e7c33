"""A plug-in of vLLM that records each request while the server runs, and changes nothing in it."""
